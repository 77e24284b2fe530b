import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { join, resolve } from 'node:path';

const pagesIn = (folder: string): string[] =>
  readdirSync(resolve(__dirname, '../../docs', folder)).map(
    (file) => `${folder}/${file.replace(/\.md$/, '')}`,
  );
const GUIDES = pagesIn('guides').filter((page) => page !== 'guides/README');
const MIGRATION = pagesIn('migration');
/**
 * Each is a page docs/<name>.md whose examples are the files of the folder <name> here: `npm run docs:examples` writes
 * them. What a guide shows is driven by the spec of its name in guides/, or is a spec itself.
 */
const PAGES = ['around-a-lock', 'rate-limits', 'secrets', 'telemetry', 'testing', ...GUIDES, ...MIGRATION];
/** Pages where examples without a name at their head are pieces to read. */
const WITH_PIECES: readonly string[] = ['rate-limits', 'secrets', 'migration/syncguard'];

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

describe('docs/guides/', () => {
  const read = (guide: string): string =>
    readFileSync(resolve(__dirname, '../../docs', `${guide}.md`), 'utf8');

  it.each(GUIDES)('%s begins with the problem, says what happens at the edges, and links on', (guide) => {
    expect(read(guide)).toMatch(/^# .+\n\n"[^]+?"[^]+\n## At the edges\n[^]+\nMore: .*\]\([^]*\n$/);
  });

  // So many lines fit on two screens of 1100 x 900, and code of 98 characters needs no scrolling there.
  it.each(GUIDES)('%s is short', (guide) => {
    // One of them has five problems, of which a reader has one.
    const most = guide === 'guides/something-is-wrong' ? 170 : 83;
    expect(read(guide).split('\n').length).toBeLessThanOrEqual(most);
    const code = [...read(guide).matchAll(/^```\w+\n(.*?)^```$/gms)].flatMap(([, block = '']) =>
      block.split('\n'),
    );
    expect(code.filter((line) => line.length > 98)).toEqual([]);
  });

  it.each(GUIDES)('%s is run by a spec', (guide) => {
    const isSpec = readdirSync(join(__dirname, guide)).some((file) => file.endsWith('.spec.ts'));
    expect(isSpec || existsSync(join(__dirname, `${guide}.spec.ts`))).toBe(true);
  });

  it('has each guide in its index', () => {
    const index = read('guides/README');
    expect(GUIDES.filter((guide) => !index.includes(`](${guide.slice('guides/'.length)}.md)`))).toEqual([]);
  });
});
