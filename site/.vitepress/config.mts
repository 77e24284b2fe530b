import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { type DefaultTheme, defineConfig } from 'vitepress';

const pages = resolve(import.meta.dirname, '../pages');

const titleOf = (page: string): string =>
  /^# (.+)$/m.exec(readFileSync(join(pages, `${page}.md`), 'utf8'))?.[1]?.replaceAll('`', '') ?? page;

const item = (page: string): DefaultTheme.SidebarItem => ({
  text: titleOf(page),
  link: `/${page.replace(/(^|\/)index$/, '$1')}`,
});

/** All pages of a folder: its index first, and then in the order of the index. */
function folder(name: string): string[] {
  const index = readFileSync(join(pages, name, 'index.md'), 'utf8');
  return readdirSync(join(pages, name))
    .filter((file) => file.endsWith('.md') && file !== 'template.md')
    .sort((a, b) => index.indexOf(`(./${a})`) - index.indexOf(`(./${b})`))
    .map((file) => `${name}/${file.slice(0, -3)}`);
}

const group = (text: string, names: string[], collapsed?: boolean): DefaultTheme.SidebarItem => ({
  text,
  collapsed,
  items: names.map(item),
});

const guide = [
  group('Start', ['tour', 'why']),
  group('Guides', folder('guides')),
  group('Features', ['locks', 'around-a-lock', 'rate-limits', 'budgets', 'secrets', 'once']),
  group(
    'Your app',
    [
      'contexts',
      'testing',
      'telemetry',
      'operations',
      'redis',
      'rolling-out',
      'guarantees',
      'performance',
    ].filter(has),
  ),
  group('Moving here', folder('migration'), true),
  group('Reference', ['options', 'errors', 'api', 'glossary', 'wire-format', 'changelog']),
  group('For contributors', ['contributing', 'scripts'], true),
  group('Decisions', folder('adr'), true),
].filter(({ items }) => items?.length);

function has(page: string): boolean {
  return existsSync(join(pages, `${page}.md`));
}

const listed = new Set(guide.flatMap(({ items = [] }) => items.map(({ link }) => link)));
const others = readdirSync(pages)
  .filter((file) => file.endsWith('.md') && file !== 'index.md')
  .map((file) => file.slice(0, -3))
  .filter((page) => !listed.has(`/${page}`));
if (others.length > 0) guide.push(group('More', others));

const reference = JSON.parse(
  readFileSync(join(pages, 'reference/typedoc-sidebar.json'), 'utf8'),
) as DefaultTheme.SidebarItem[];

/** As GitHub makes them of headings, so that links hold in both places. */
const slugify = (heading: string): string =>
  heading
    .toLowerCase()
    .replace(/[^\p{L}\p{N} _-]/gu, '')
    .replaceAll(' ', '-');

export default defineConfig({
  title: 'SyncGuard for Nest',
  description: 'Locks, limits, budgets and secrets for NestJS, on Redis or in memory.',
  srcDir: 'pages',
  outDir: 'dist',
  cleanUrls: true,
  // Nothing is fetched from elsewhere, and the site may be opened under any path.
  head: [['link', { rel: 'icon', href: 'data:,' }]],
  markdown: {
    theme: { light: 'github-light-high-contrast', dark: 'github-dark-default' },
    anchor: { slugify },
  },
  themeConfig: {
    nav: [
      { text: 'Tour', link: '/tour' },
      { text: 'Why', link: '/why' },
      { text: 'Options', link: '/options' },
      { text: 'API', link: '/reference/' },
    ],
    sidebar: { '/reference/': [{ text: 'API', items: reference }], '/': guide },
    outline: [2, 3],
    search: {
      provider: 'local',
      // Who searches for a word wants the page that explains it, before the list of names.
      options: {
        miniSearch: {
          searchOptions: { boostDocument: (id: string) => (/^\/reference\//.test(id) ? 0.2 : 1) },
        },
      },
    },
  },
});
