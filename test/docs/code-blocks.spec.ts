import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import ts from 'typescript';
import { ROOT } from './sources.js';

const filesIn = (folder: string, ending: string): string[] =>
  readdirSync(join(ROOT, folder), { recursive: true, encoding: 'utf8' })
    .filter((file) => file.endsWith(ending) && !file.includes('node_modules'))
    .map((file) => join(folder, file));

/** Without what prettier may set otherwise: white space, and commas at ends. */
const packed = (code: string): string => code.replace(/\s+/g, '').replace(/,(?=[)\]}]|$)/g, '');

/** The compiler checks them, and most of them run. What pages show in pieces is in test/docs/pieces/, or in a file that runs. */
const checked = filesIn('test/docs', '.ts').map((file) => packed(readFileSync(join(ROOT, file), 'utf8')));

const PAGES = [...['README.md', 'CONTRIBUTING.md', 'SECURITY.md'], ...filesIn('docs', '.md')];
/** Of the page to say of pieces where something whole is: a sentence with a link. */
const SAYS_WHERE = /^Code without imports is a piece[^]*?\]\([^)]+\)/m;

const blocksOf = (text: string, language: string): string[] =>
  [...text.matchAll(/^```(\S*)\n(.*?)^```$/gms)].flatMap(([, name, code = '']) =>
    name === language ? [code] : [],
  );

describe.each(PAGES)('%s', (page) => {
  const text = readFileSync(join(ROOT, page), 'utf8');
  const blocks = blocksOf(text, 'ts');

  it('shows no TypeScript that the compiler has not seen', () => {
    const isChecked = (code: string): boolean => {
      const parts = code.split('\n\n').map(packed);
      return checked.some((file) => parts.every((part) => file.includes(part)));
    };
    const unseen = blocks.filter((code) => !isChecked(code));
    expect(unseen).toEqual([]);
  });

  it('says of pieces where something whole is', () => {
    const pieces = blocks.filter((code) => !/^import /m.test(code));
    expect(pieces.length > 0).toBe(SAYS_WHERE.test(text));
  });

  it('shows JavaScript and JSON that can be read', () => {
    for (const code of blocksOf(text, 'js')) {
      const { diagnostics = [] } = ts.transpileModule(code, { reportDiagnostics: true });
      expect(diagnostics.map(({ messageText }) => messageText)).toEqual([]);
    }
    for (const code of blocksOf(text, 'json')) expect(() => JSON.parse(code) as unknown).not.toThrow();
  });

  // YAML is that of docs/telemetry.md, which alerts.spec reads.
  it('names the language of each block, and no other than these', () => {
    const fences = [...text.matchAll(/^```(.*)$/gm)].map(([, name]) => name);
    const opening = fences.filter((_, i) => i % 2 === 0);
    expect(opening.filter((name = '') => !/^(ts|js|json|yaml|sh|sql|acl|text)$/.test(name))).toEqual([]);
  });
});
