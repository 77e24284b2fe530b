import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { dirname, join, relative } from 'node:path';
import { ROOT } from './sources.js';

const { files } = JSON.parse(readFileSync(join(ROOT, 'package.json'), 'utf8')) as { files: string[] };

/** Whether npm publishes a file: `files` of package.json has names, folders, and `*` within a folder. */
const isPublished = (path: string): boolean =>
  /^(README\.md|LICENSE|package\.json)$/.test(path) ||
  files.some((entry) =>
    new RegExp(`^${entry.replaceAll('.', '\\.').replaceAll('*', '[^/]*')}(/|$)`).test(path),
  );

const docs = readdirSync(join(ROOT, 'docs'), { recursive: true, encoding: 'utf8' });
const pages = ['README.md', 'CHANGELOG.md', ...docs.map((name) => `docs/${name}`)]
  .filter((page) => page.endsWith('.md') && isPublished(page))
  .sort();

const withoutCode = (text: string): string =>
  text.replace(/^```.*?^```$/gms, '').replace(/`[^`\n]*`/g, 'code');

/** The anchors of a page, as GitHub and npm make them from its headings. */
function anchorsOf(page: string): string[] {
  const headings = [...readFileSync(join(ROOT, page), 'utf8').matchAll(/^#{1,6} (.+)$/gm)];
  return headings.map(([, heading = '']) =>
    heading
      .toLowerCase()
      .replace(/\[([^\]]*)\]\([^)]*\)/g, '$1')
      .replace(/[^\p{L}\p{N} _-]/gu, '')
      .replaceAll(' ', '-'),
  );
}

describe.each(pages)('%s', (page) => {
  const text = readFileSync(join(ROOT, page), 'utf8');
  const links = [...withoutCode(text).matchAll(/\]\((?!\w+:)([^)#\s]*)(?:#([^)\s]*))?\)/g)].map(
    ([, path = '', anchor]) => ({
      path: path === '' ? page : relative(ROOT, join(ROOT, dirname(page), path)),
      anchor,
    }),
  );

  it('links to files that are published with it', () => {
    expect(
      links.map(({ path }) => path).filter((path) => !existsSync(join(ROOT, path)) || !isPublished(path)),
    ).toEqual([]);
  });

  it('links to headings that exist', () => {
    const dead = links.filter(
      ({ path, anchor }) => anchor !== undefined && path.endsWith('.md') && !anchorsOf(path).includes(anchor),
    );
    expect(dead).toEqual([]);
  });

  it('has no comments for maintainers', () => {
    expect(text).not.toContain('<!--');
  });
});

describe('what is published', () => {
  it('is known to this test', () => {
    expect(pages).toEqual(expect.arrayContaining(['README.md', 'docs/api.md', 'docs/guides/README.md']));
    expect(['dist/index.js', 'docs/tour.md', 'docs/guides/README.md'].map(isPublished)).toEqual([
      true,
      true,
      true,
    ]);
    expect(['CONTRIBUTING.md', 'test/docs/links.spec.ts', 'docsx/a.md'].map(isPublished)).toEqual([
      false,
      false,
      false,
    ]);
  });
});
