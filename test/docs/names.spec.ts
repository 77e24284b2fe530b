import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import ts from 'typescript';
import { exportsOf } from './exports.js';
import { isIn, namesInFirstCells, ROOT, sources } from './sources.js';

const read = (file: string): string => readFileSync(join(ROOT, file), 'utf8');
const filesIn = (folder: string, pattern: RegExp): string[] =>
  readdirSync(join(ROOT, folder), { recursive: true, encoding: 'utf8' })
    .map((file) => join(folder, file))
    .filter((file) => pattern.test(file) && !/(^|\/)(node_modules|dist)\//.test(file));

const guides = readdirSync(join(ROOT, 'docs')).filter((file) => file.endsWith('.md'));

describe('docs/api.md', () => {
  const page = read('docs/api.md').split(/^## /m);
  const section = (entry: string): string =>
    page.find((text) => text.startsWith(`\`nestjs-syncguard${entry}\``)) ?? '';
  /** In any cell: types stand in the second. */
  const namesIn = (text: string): string[] =>
    [...text.matchAll(/^\|.*\|$/gm)].flatMap(([row]) =>
      [...row.matchAll(/`([A-Za-z]\w+)`/g)].map(([, name = '']) => name),
    );

  it.each([
    ['', 'index'],
    ['/core', 'core'],
    ['/compat', 'compat'],
    ['/testing', 'testing/index'],
  ] as const)('has every name that nestjs-syncguard%s exports, and no other', (entry, file) => {
    const names = new Set(namesIn(section(entry)));
    const exported = [...exportsOf(file).keys()];
    expect(exported.length).toBeGreaterThan(3);
    expect(exported.filter((name) => !names.has(name))).toEqual([]);
    const known = new Set([...exported, ...everyName]);
    expect([...names].filter((name) => !known.has(name))).toEqual([]);
    if (entry === '')
      expect(namesInFirstCells(section('')).filter((name) => !exported.includes(name))).toEqual([]);
  });
});

const isText = (node: ts.Node): node is ts.LiteralLikeNode =>
  ts.isStringLiteralLike(node) || ts.isTemplateLiteralToken(node);

/** All that the code names, and the text that it holds: what a code span may mean. */
const everyName = new Set(
  sources.flatMap((source) => [
    ...isIn(ts.isIdentifier)(source).map(({ text }) => text),
    ...isIn(isText)(source).flatMap(({ text }) => text.match(/\w+/g) ?? []),
  ]),
);

describe('the reference pages', () => {
  it.each(['api.md', 'errors.md', 'options.md'])(
    'docs/%s names nothing of ours that the code does not have',
    (page) => {
      // Names of two words or more are ours; a single word may be anything.
      const ours = [...read(`docs/${page}`).matchAll(/`([^`\n]+)`/g)]
        .flatMap(([, code = '']) => code.match(/[A-Za-z_]\w*/g) ?? [])
        .filter((name) => /[a-z][A-Z]|[A-Z]_[A-Z]|^[A-Z][a-z]+[A-Z]/.test(name));
      expect(ours.length).toBeGreaterThan(10);
      expect([...new Set(ours)].filter((name) => !everyName.has(name) && !OTHERS.has(name))).toEqual([]);
    },
  );

  /** Names of Nest, Express and ioredis that the pages give advice about. */
  const OTHERS = new Set(['trustProxy', 'fieldResolverEnhancers', 'ConfigService']);
});

describe('the repository', () => {
  const texts = [
    ...['README.md', 'CONTRIBUTING.md', 'CHANGELOG.md', 'package.json', '.dependency-cruiser.cjs'],
    ...filesIn('docs', /\.md$/),
    ...filesIn('lib', /\.ts$/),
    ...filesIn('sample', /\.(ts|html|json)$/),
    ...filesIn('test', /\.(ts|c|cjs)$/),
    ...filesIn('tools', /\.[cm]?js$/),
  ];

  it('cites nothing that is not in it', () => {
    const elsewhere = [
      /\bseed ?0\d\d\b/i,
      /\bseed[’']s\b/i,
      /\b(of|in|by) the seed\b(?! gives)/i,
      /shared\/(design|seeds)/,
      /\/work\/(main|wt|shared)/,
      /\b(house|architecture)\.md\b/,
    ];
    const found = texts
      .filter((file) => file !== 'test/docs/names.spec.ts')
      .flatMap((file) =>
        read(file)
          .split('\n')
          .map((line, i) => ({ at: `${file}:${i + 1}`, line })),
      )
      .filter(({ line }) => elsewhere.some((pattern) => pattern.test(line)));
    expect(found).toEqual([]);
  });

  it('has every decision and every page that is cited', () => {
    const decisions = readdirSync(join(ROOT, 'docs/adr')).map((file) => file.slice(0, 4));
    const missing = texts.flatMap((file) => {
      const text = read(file);
      return [
        ...[...text.matchAll(/\bADR[ -](\d{4})\b/g)].filter(([, id = '']) => !decisions.includes(id)),
        ...[...text.matchAll(/\bdocs\/([\w-]+\.md)\b/g)].filter(([, page = '']) => !guides.includes(page)),
      ].map(([cited]) => `${file}: ${cited}`);
    });
    expect(missing).toEqual([]);
  });

  it('has every decision in the index', () => {
    const index = read('docs/adr/README.md');
    const pages = readdirSync(join(ROOT, 'docs/adr')).filter((file) => /^\d{4}-/.test(file));
    expect(pages.filter((page) => !index.includes(`](${page})`))).toEqual([]);
  });

  it('has what its pages link to, headings included', () => {
    const pages = ['README.md', 'CONTRIBUTING.md', ...filesIn('docs', /\.md$/)];
    const broken = pages.flatMap((page) =>
      [...read(page).matchAll(/\]\((?!\w+:)([^)#\s]*)(?:#([^)\s]+))?\)/g)]
        .filter(([, path = '', anchor]) => {
          const target = path === '' ? page : join(dirname(page), path);
          if (!existsSync(join(ROOT, target))) return true;
          return anchor !== undefined && target.endsWith('.md') && !anchorsOf(read(target)).has(anchor);
        })
        .map(([link]) => `${page}: ${link}`),
    );
    expect(broken).toEqual([]);
  });
});

/** As GitHub makes them of headings. */
const anchorsOf = (text: string): Set<string> =>
  new Set(
    [...text.matchAll(/^#+ (.+)$/gm)].map(([, heading = '']) =>
      heading
        .toLowerCase()
        .replace(/\]\([^)]*\)/g, '')
        .replace(/[^\p{L}\p{N} _-]/gu, '')
        .replaceAll(' ', '-'),
    ),
  );
