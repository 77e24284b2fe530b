// Builds the site into site/dist: `node tools/site.mjs`. The pages are those of docs/, and the reference comes from TSDoc.
import { spawnSync } from 'node:child_process';
import { cpSync, existsSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { basename, dirname, join, relative, resolve } from 'node:path';

const root = resolve(import.meta.dirname, '..');
const pages = join(root, 'site/pages');
const dist = join(root, 'site/dist');

function run(command, ...args) {
  const { status } = spawnSync(join(root, 'node_modules/.bin', command), args, {
    cwd: root,
    stdio: 'inherit',
  });
  if (status !== 0) process.exit(status ?? 1);
}

const filesIn = (folder, extension) =>
  readdirSync(folder, { recursive: true }).filter((name) => name.endsWith(extension));

/** Pages outside of docs/ that its pages link to. */
const FROM_OUTSIDE = { 'CONTRIBUTING.md': 'contributing.md', 'CHANGELOG.md': 'changelog.md' };

/** Links work in the repository. On the site, files that are no pages have no address, so their names are text. */
function asOnSite(text, from) {
  return text
    .replace(/<!--.*?-->\n*/gs, '')
    .replace(/(?<!!)\[([^\]]*)\]\((?!\w+:|#)([^)#\s]+)(#[^)\s]*)?\)/g, (link, label, path, anchor = '') => {
      const target = relative(root, resolve(root, dirname(from), path));
      const page = FROM_OUTSIDE[target] ?? (target.startsWith('docs/') ? target.slice(5) : undefined);
      if (!page?.endsWith('.md')) return label;
      const here = dirname(FROM_OUTSIDE[from] ?? relative('docs', from));
      return `[${label}](./${relative(here, asIndex(page))}${anchor})`;
    })
    .replace(/(!\[[^\]]*\]\()docs\//g, '$1./');
}

const asIndex = (page) => (basename(page) === 'README.md' ? join(dirname(page), 'index.md') : page);

function addPage(from, to) {
  const file = join(pages, asIndex(to));
  mkdirSync(dirname(file), { recursive: true });
  writeFileSync(file, asOnSite(readFileSync(join(root, from), 'utf8'), from));
}

function gatherPages() {
  rmSync(pages, { recursive: true, force: true });
  for (const page of filesIn(join(root, 'docs'), '.md')) addPage(join('docs', page), page);
  for (const [from, to] of Object.entries(FROM_OUTSIDE)) addPage(from, to);
  const front = readFileSync(join(root, 'site/index.md'), 'utf8');
  writeFileSync(join(pages, 'index.md'), front + install() + problems());
  cpSync(join(root, 'docs/architecture.svg'), join(pages, 'architecture.svg'));
  cpSync(join(root, 'docs/assets'), join(pages, 'assets'), { recursive: true });
}

/** The first page begins as the README does: an app that runs as pasted. */
function install() {
  const [section] = /^## Install\n[^]*?(?=\nApps to copy)/m.exec(
    readFileSync(join(root, 'README.md'), 'utf8'),
  );
  return `\n${section}`;
}

/** The first page has the table of the guides: a problem and its guide. */
function problems() {
  const [table] = /^\| your problem .*(\n\|.*)+/m.exec(readFileSync(join(pages, 'guides/index.md'), 'utf8'));
  return `\n## What is your problem?\n\n${table.replaceAll('](./', '](./guides/')}\n`;
}

/** VitePress knows dead links to pages. This finds those to headings and files, too. */
function deadLinks() {
  const files = filesIn(dist, '.html');
  const text = new Map(files.map((file) => [file, readFileSync(join(dist, file), 'utf8')]));
  const ids = new Map(
    [...text].map(([file, html]) => [
      file,
      new Set([...html.matchAll(/ id="([^"]+)"/g)].map(([, id]) => id)),
    ]),
  );
  return [...text].flatMap(([file, html]) =>
    [...html.matchAll(/ (?:href|src)="(?!\w+:|\/\/)([^"#?]*)(?:#([^"]+))?"/g)]
      .filter(([, path, anchor]) => {
        const target =
          path === '' ? file : relative(dist, resolve(dist, dirname(file), path.replace(/^\//, `${dist}/`)));
        const page = [target, `${target}.html`, join(target, 'index.html')].find(
          (name) =>
            ids.has(name) ||
            (name !== '' && !name.endsWith('.html') && /\.\w+$/.test(name) && existsSync(join(dist, name))),
        );
        if (page === undefined) return true;
        return anchor !== undefined && ids.has(page) && !ids.get(page).has(decodeURIComponent(anchor));
      })
      .map(([link]) => `${file}:${link}`),
  );
}

gatherPages();
run('typedoc', '--options', 'site/typedoc.json');
run('vitepress', 'build', 'site');
const dead = [...new Set(deadLinks())];
if (dead.length > 0) {
  console.error(`Links that lead nowhere:\n${dead.join('\n')}`);
  process.exit(1);
}
console.log(`The site is in ${relative(process.cwd(), dist)}. To look at it: npx vitepress preview site`);
