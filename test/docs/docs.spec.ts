import { readdirSync, readFileSync } from 'node:fs';
import { join, resolve } from 'node:path';

/** Each is a page docs/<name>.md whose examples are the files of the folder <name> here. */
const PAGES = ['around-a-lock', 'secrets', 'telemetry', 'testing'];
/** Pages where examples without a name at their head are pieces to read. */
const WITH_PIECES: readonly string[] = ['secrets'];

describe.each(PAGES)('docs/%s.md', (page) => {
  const folder = join(__dirname, page);
  const text = readFileSync(resolve(__dirname, '../../docs', `${page}.md`), 'utf8');
  const blocks = [...text.matchAll(/^```ts\n(.*?)^```$/gms)].map(([, code = '']) => code);

  it('shows each example once', () => {
    const all = blocks.map((code) => /^\/\/ (.+)\n/.exec(code)?.[1]);
    const names = WITH_PIECES.includes(page) ? all.filter((name) => name?.endsWith('.ts')) : all;
    expect(names.sort()).toEqual(readdirSync(folder).sort());
  });

  it.each(readdirSync(folder))('shows %s as it runs', (file) => {
    expect(blocks).toContain(readFileSync(join(folder, file), 'utf8'));
  });
});
