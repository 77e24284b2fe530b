import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { dirname, join, resolve } from 'node:path';

const ROOT = resolve(__dirname, '../..');
const PAGE = join(ROOT, 'docs/glossary.md');
const text = readFileSync(PAGE, 'utf8');

const [concepts = ''] = text.split('\n## Words that stay');
const rows = [...concepts.matchAll(/^\| (.+) \| (.+) \| `(lib\/.+)` \| \[.+\]\((.+)\) \|$/gm)].map(
  ([, word = '', meaning = '', file = '', page = '']) => ({ word, meaning, file, page }),
);

const sources = readdirSync(join(ROOT, 'lib'), { recursive: true, encoding: 'utf8' }).filter((file) =>
  file.endsWith('.ts'),
);

/** Names that were replaced by a word of the glossary. */
const RETIRED = [
  'BlockNotes',
  'Denial',
  'guardMethod',
  'hasAnotherStory',
  'LimitBook',
  'LimitOutcome',
  'nameHold',
  'Ruling',
  'RunsElsewhere',
  'tellBalances',
  'tellingThresholds',
  'Verdict',
];

describe('docs/glossary.md', () => {
  it('has a row for each line of its tables', () => {
    const lines = concepts.split('\n').filter((line) => line.startsWith('| '));
    const heads = lines.filter((line) => /^\| (word|---) /.test(line));
    expect(rows.length).toBeGreaterThan(50);
    expect(rows).toHaveLength(lines.length - heads.length);
  });

  it('has each word once', () => {
    const words = rows.map(({ word }) => word);
    expect(words).toEqual([...new Set(words)]);
  });

  it.each(rows)('$word: one sentence or two, a file and a page that exist', ({ meaning, file, page }) => {
    expect(meaning).toMatch(/^[A-Z].*\.$/);
    expect(existsSync(join(ROOT, file))).toBe(true);
    expect(existsSync(join(dirname(PAGE), page))).toBe(true);
  });
});

describe('lib/', () => {
  it.each(RETIRED)('does not use the retired name %s', (name) => {
    const uses = sources.filter((file) =>
      new RegExp(`\\b${name}\\b`).test(readFileSync(join(ROOT, 'lib', file), 'utf8')),
    );
    expect(uses).toEqual([]);
  });
});
