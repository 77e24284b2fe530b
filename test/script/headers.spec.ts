import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { examples } from './examples/all.examples.js';
import type { ScriptExample } from './examples/example.js';

/** The comment above a script. `name` may end with `*`, for scripts that one function makes. */
interface Header {
  readonly name: string;
  readonly keys: string;
  readonly lines: number;
}

const HEADER =
  /\/\*\*\n \* ([\w-]+\*?): [A-Z](?:(?!\*\/)[^])*?\n \* KEYS: ([^]*?)\n \* ARGV: [^]*?\n \* Reply: [^]*?\n \* Atomic: [^]*?\n \*\/\n/g;

const lib = join(__dirname, '../../lib');
const sources = readdirSync(lib, { recursive: true, encoding: 'utf8' })
  .filter((path) => path.endsWith('.ts') && !path.endsWith('define-script.ts'))
  .map((path): [string, string] => [path, readFileSync(join(lib, path), 'utf8')])
  .filter(([, text]) => /define\w*Script(<|\()/.test(text));

const headersOf = (text: string): Header[] =>
  [...text.matchAll(HEADER)].map(([all, name = '', keys = '']) => ({
    name,
    keys,
    lines: all.split('\n').length - 3,
  }));

const headers = sources.flatMap(([, text]) => headersOf(text));

/** The header of a script. A script of several keys has the one of a single key. */
function headerOf({ script }: ScriptExample): Header {
  const name = script.name.replace(/:\d+$/, '');
  const found = headers.filter((header) =>
    header.name.endsWith('*') ? name.startsWith(header.name.slice(0, -1)) : header.name === name,
  );
  expect([name, found.length]).toStrictEqual([name, 1]);
  return found[0] as Header;
}

/** The keys that a header names. A `*` behind a name says that there may be several, or none. */
const namedBy = ({ keys }: Header): string[] =>
  keys === 'none'
    ? []
    : keys
        .replace(/\([^)]*\)|\.[^]*/g, '')
        .split(',')
        .map((name) => name.trim());

describe('the header of a script', () => {
  it.each(sources)('is above each script of %s, in 4 to 8 lines', (_path, text) => {
    expect(headersOf(text)).toHaveLength(text.match(/define\w*Script\(\{/g)?.length ?? 0);
    for (const { name, lines } of headersOf(text))
      expect([name, lines >= 4 && lines <= 8]).toEqual([name, true]);
  });

  it.each(sources)(
    'stands in a file of at most 330 lines, where editors colour the Lua: %s',
    (_path, text) => {
      expect(text.split('\n').length).toBeLessThanOrEqual(331);
      expect(text).not.toMatch(/\blua: `/);
    },
  );

  it.each(examples.map((example): [string, ScriptExample] => [example.script.name, example]))(
    'names the keys of %s',
    (_name, example) => {
      const used = new Set(example.script.keys.map((key) => key.replace(/:?\d+$/, '')));
      const named = namedBy(headerOf(example));
      for (const key of used) expect(named.map((each) => each.replace('*', ''))).toContain(key);
      expect(named.filter((each) => !each.endsWith('*') && !used.has(each))).toStrictEqual([]);
    },
  );
});
