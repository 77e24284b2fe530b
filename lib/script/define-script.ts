import { hash } from 'node:crypto';
import { inLines } from './fragments.js';

export type ScriptArg = string | number | Buffer;

/** A Lua text as a command of a client. */
export interface LuaCommand {
  readonly command: string;
  readonly lua: string;
  /** True if replies are Buffers, for data that is not text. */
  readonly binary: boolean;
  /** Undefined if the first argument of each call is the number of its keys. */
  readonly numberOfKeys: number | undefined;
}

/** One atomic step on the server. docs/scripts.md has the laws that every script keeps, and the tests that check them. */
export interface Script<
  Key extends string = string,
  Arg extends string = string,
  Result = unknown,
> extends LuaCommand {
  readonly name: string;
  /**
   * The names of KEYS, in order. Each name becomes a local variable in Lua. A name such as `record:2` cannot, so the
   * script reads that key by its index.
   */
  readonly keys: readonly Key[];
  readonly numberOfKeys: number;
  /** The names of ARGV, in order, which are local variables in Lua too. */
  readonly args: readonly Arg[];
  /**
   * True if its reply holds a payload of any size. It is never part of a batch: one broken reply would lose them all.
   */
  readonly alone: boolean;
  /** Turns the raw reply into a typed result. Throws on any shape that the script does not document. */
  decode(reply: unknown): Result;
}

export type ScriptDefinition<Key extends string, Arg extends string, Result> = Pick<
  Script<Key, Arg, Result>,
  'name' | 'keys' | 'args' | 'lua' | 'decode'
> & { readonly binary?: boolean; readonly alone?: boolean };

/**
 * Defines a script whose keys and arguments have names in both languages: `KEYS[1]` is `local lockKey` in Lua
 * and `{ lockKey }` in TypeScript.
 */
export const defineScript = <const Key extends string, const Arg extends string, Result>(
  definition: ScriptDefinition<Key, Arg, Result>,
): Script<Key, Arg, Result> => new LazyScript(definition);

/** Composes its text at its first use, because an app in memory uses none. Then `lua` and `command` are plain properties. */
class LazyScript<Key extends string, Arg extends string, Result> implements Script<Key, Arg, Result> {
  readonly name: string;
  readonly keys: readonly Key[];
  readonly numberOfKeys: number;
  readonly args: readonly Arg[];
  readonly binary: boolean;
  readonly alone: boolean;
  readonly decode: (reply: unknown) => Result;
  readonly #body: string;

  constructor(definition: ScriptDefinition<Key, Arg, Result>) {
    const { name, keys, args, lua, decode, binary = false, alone = false } = definition;
    this.name = name;
    this.keys = keys;
    this.numberOfKeys = keys.length;
    this.args = args;
    this.binary = binary;
    this.alone = alone;
    this.decode = decode;
    this.#body = lua;
  }

  get lua(): string {
    return this.#compose().lua;
  }

  get command(): string {
    return this.#compose().command;
  }

  #compose(): LuaCommand {
    // Fragments leave empty lines where they meet.
    const body = this.#body.replace(/^\s*\n/gm, '').trim();
    const lua = [...bind('KEYS', this.keys, body), ...bind('ARGV', this.args, body), body, ''].join('\n');
    const plain = (value: string) => ({ value, writable: true, enumerable: true, configurable: true });
    return Object.defineProperties(this, { lua: plain(lua), command: plain(commandOf(this.name, lua)) });
  }
}

/** Returns the name under which a client registers a Lua text. By its hash, no script of another library has the same. */
export const commandOf = (name: string, lua: string): string =>
  `syncguard:${name}:${hash('sha1', lua).slice(0, 8)}`;

/** Returns the commands of Redis that a Lua text calls. */
export const commandsOf = (lua: string): string[] => [
  ...new Set([...lua.matchAll(/\bp?call\(\s*'([A-Z]+)'/g)].map(([, command]) => command as string)),
];

/** Returns the names that a Lua text uses. Comments and texts in it do not count. */
export const wordsOf = (lua: string): Set<string> =>
  new Set(lua.replace(/'[^'\n]*'|--.*/g, '').match(/\w+/g));

/** Binds the names that the body uses. */
function bind(list: 'KEYS' | 'ARGV', names: readonly string[], body: string): string[] {
  const words = wordsOf(body);
  const used = names.flatMap((name, i) => (words.has(name) ? [{ name, value: `${list}[${i + 1}]` }] : []));
  if (used.length === 0) return [];
  return [`local ${inLines(used.map(({ name }) => name))} =\n  ${inLines(used.map(({ value }) => value))}`];
}

/**
 * Throws the error for a reply that a script does not document. It becomes the `cause` of a fault which says what to do.
 * It names the shape of the reply and not its content, which may be private.
 */
export function unexpectedReply(script: string, reply: unknown): never {
  const shape = Array.isArray(reply) ? `an array of ${reply.length}` : typeof reply;
  throw new TypeError(`The script ${script} does not document a reply of this shape: ${shape}.`);
}
