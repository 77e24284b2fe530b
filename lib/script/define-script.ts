import { createHash } from 'node:crypto';

/**
 * One atomic decision on the server. The laws that every script keeps, and the tests that check them, are in
 * docs/scripts.md.
 */
export interface Script<Key extends string = string, Arg extends string = string, Result = unknown> {
  readonly name: string;
  /** The command it is registered under: named by content, so that no other library's script can stand in. */
  readonly command: string;
  readonly keys: readonly Key[];
  readonly args: readonly Arg[];
  readonly lua: string;
  /** Replies come as Buffers, for payloads that are not text. */
  readonly binary: boolean;
  /** Turns the raw reply into a typed result; throws on any shape that the script does not promise. */
  decode(reply: unknown): Result;
}

export interface ScriptDefinition<Key extends string, Arg extends string, Result> {
  name: string;
  /**
   * Names of KEYS, in order. One that cannot be a local's name in Lua (`record:2`) is none there: the script counts.
   */
  keys: readonly Key[];
  /** Names of ARGV, in order. */
  args: readonly Arg[];
  /** The body; KEYS and ARGV are there as locals under their names. */
  lua: string;
  decode(reply: unknown): Result;
  binary?: boolean;
}

/**
 * Defines a script whose keys and arguments have names on both sides: `KEYS[1]` is `local lockKey` in Lua
 * and `{ lockKey }` in TypeScript.
 */
export function defineScript<const Key extends string, const Arg extends string, Result>(
  definition: ScriptDefinition<Key, Arg, Result>,
): Script<Key, Arg, Result> {
  const { name, keys, args, decode, binary = false } = definition;
  const lua = [...bind('KEYS', keys), ...bind('ARGV', args), definition.lua.trim(), ''].join('\n');
  const sha8 = createHash('sha1').update(lua).digest('hex').slice(0, 8);
  return { name, command: `syncguard:${name}:${sha8}`, keys, args, lua, binary, decode };
}

function bind(list: 'KEYS' | 'ARGV', names: readonly string[]): string[] {
  const locals = names.flatMap((name, i) =>
    /^\w+$/.test(name) ? [{ name, value: `${list}[${i + 1}]` }] : [],
  );
  if (locals.length === 0) return [];
  return [
    `local ${locals.map(({ name }) => name).join(', ')} = ${locals.map(({ value }) => value).join(', ')}`,
  ];
}

/** For `decode`: the script replied with something that it does not promise. */
export function unexpectedReply(script: string, reply: unknown): never {
  throw new TypeError(
    `script ${script} replied with an unexpected ${Array.isArray(reply) ? 'array' : typeof reply}`,
  );
}
