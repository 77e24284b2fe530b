import { existsSync, readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { ROOT } from './sources.js';

const PAGE = join(ROOT, 'docs/why.md');
const rows = [...readFileSync(PAGE, 'utf8').matchAll(/^\| (.+) \|$/gm)]
  .map(([, row = '']) => row.split(' | '))
  .filter(([first]) => first !== 'promise' && first !== '---');
const cells = rows.flatMap(([promise = '', ...others]) => others.map((cell) => ({ promise, cell })));

describe('docs/why.md', () => {
  it('has every promise', () => {
    expect(rows.length).toBeGreaterThan(25);
    for (const word of [
      'fence',
      'loss',
      'first come',
      'answer was lost',
      'exact',
      'blocks',
      'one step',
      'engines',
      'Nest',
      'dependencies',
    ])
      expect(rows.filter(([promise]) => promise?.includes(word))).not.toEqual([]);
  });

  it.each(cells)('$promise: "$cell" has a source', ({ cell }) => {
    const [, link, test] = /^.*[^\s(].* \((?:\[[^\]]+\]\(([^)\s]+)\)|`(test\/[^`]+)`)\)$/.exec(cell) ?? [];
    const source = link ?? (test && `../${test}`) ?? '';
    if (!source.startsWith('https://'))
      expect(existsSync(join(dirname(PAGE), source.replace(/#.*/, '')))).toBe(true);
    expect(source).not.toBe('');
  });
});
