import { readdirSync } from 'node:fs';
import { join } from 'node:path';
import { examples } from './examples/all.examples.js';
import { luacheck } from './luacheck.js';

/** What a fragment of Lua declares in its first lines: the names that it finds, assigns anew, and makes. */
interface Declared {
  readonly reads: readonly string[];
  readonly changes: readonly string[];
  readonly sets: readonly string[];
  /** Where the declaration begins in the text. */
  readonly at: number;
}

const DECLARATION =
  /^ *-- (?:Reads: ([^.]*)\.(?:\n *-- )?)?(?:Changes: ([^.]*)\.(?:\n *-- )?)?(?:Sets: ([^.]*)\.)?$/gm;

const namesIn = (list = ''): string[] => list.match(/\w+/g)?.sort() ?? [];

const declaredIn = (lua: string): Declared[] =>
  [...lua.matchAll(DECLARATION)]
    .filter(([, ...lists]) => lists.some(Boolean))
    .map(({ index: at, 1: reads, 2: changes, 3: sets }) => ({
      ...{ reads: namesIn(reads), changes: namesIn(changes), sets: namesIn(sets) },
      at,
    }));

const namesOf = (lua: string, pattern: RegExp): string[] => [
  ...new Set([...lua.matchAll(pattern)].flatMap(([, ...names]) => namesIn(names.join(',')))),
];

/** The locals that a fragment leaves behind. */
const setBy = (lua: string): string[] => namesOf(lua, /^local (?:function (\w+)|(\w+(?:,\s*\w+)*))/gm).sort();

/** The names that a Lua text makes: locals and parameters. */
const madeIn = (lua: string): Set<string> =>
  new Set([...setBy(lua.replace(/^ +/gm, '')), ...namesOf(lua, /\bfunction ?\w*\((\w+(?:,\s*\w+)*)/g)]);

/** Which names the declarations of a script need that nothing above them makes. */
const missingIn = (lua: string): string[] =>
  declaredIn(lua).flatMap(({ reads, changes, at }) => {
    const above = madeIn(lua.slice(0, at));
    return [...reads, ...changes].filter((name) => !above.has(name));
  });

const lib = join(__dirname, '../../lib');
const fragments = readdirSync(lib, { recursive: true, encoding: 'utf8' })
  .filter((path) => /fragments\.ts$/.test(path))
  .flatMap((path) => Object.entries(jest.requireActual<Record<string, unknown>>(join(lib, path))))
  .filter((each): each is [string, string] => typeof each[1] === 'string' && each[1].startsWith('\n'));

describe('fragments of Lua', () => {
  it.each(fragments)('%s reads, changes and sets what it declares, and nothing else', (_name, lua) => {
    const [declared] = declaredIn(lua);
    const warned = luacheck(new Map([['fragment', lua]])).join('\n');
    const names = (pattern: RegExp): string[] => [
      ...new Set([...warned.matchAll(pattern)].map(([, name = '']) => name)),
    ];
    const changes = names(/\(W11[12]\) (?:setting|mutating) non-standard global variable '(\w+)'/g).sort();
    const reads = names(/\(W113\) accessing undefined variable '(\w+)'/g).sort();
    expect(declared?.changes).toStrictEqual(changes);
    expect(declared?.reads).toStrictEqual(reads.filter((name) => !changes.includes(name)));
    expect(declared?.sets).toStrictEqual(setBy(lua));
  });

  it.each(examples.map(({ script }) => [script.name, script.lua]))(
    '%s has all that its fragments read',
    (_, lua) => {
      expect(missingIn(lua)).toStrictEqual([]);
    },
  );

  it('finds a script that lacks what a fragment reads', () => {
    const lua = `local one = KEYS[1]\n-- Reads: one, two.\n-- Sets: three.\nlocal three = one + two`;
    expect(missingIn(lua)).toStrictEqual(['two']);
  });
});
