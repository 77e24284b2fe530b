import { readdirSync, readFileSync } from 'node:fs';
import { join, resolve } from 'node:path';

const PAGE = resolve(__dirname, '../../docs/testing.md');
const EXAMPLES = join(__dirname, 'examples');

const blocks = [...readFileSync(PAGE, 'utf8').matchAll(/^```ts\n(.*?)^```$/gms)].map(([, code = '']) => code);

describe('docs/testing.md', () => {
  it('shows each example once', () => {
    const names = blocks.map((code) => /^\/\/ (.+)\n/.exec(code)?.[1]);
    expect(names.sort()).toEqual(readdirSync(EXAMPLES).sort());
  });

  it.each(readdirSync(EXAMPLES))('shows %s as it runs', (file) => {
    expect(blocks).toContain(readFileSync(join(EXAMPLES, file), 'utf8'));
  });
});
