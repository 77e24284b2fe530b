import type { Redis } from 'ioredis';
import { isNativeError } from 'node:util/types';
import { batchArgs, batchOf } from '../../lib/script/batch.js';
import type { ScriptArg } from '../../lib/script/script-runner.js';
import type { ScriptExample } from './examples/example.js';

/** The values of a script's keys or arguments, in its order. */
function inOrder<T>(
  { script }: ScriptExample,
  names: readonly string[],
  values: Readonly<Record<string, T>>,
): T[] {
  return names.map((name) => values[name] ?? fail(`The example of ${script.name} has no ${name}.`));
}
function fail(message: string): never {
  throw new Error(message);
}
export const keysOf = (example: ScriptExample): string[] =>
  inOrder(example, example.script.keys, example.keys);
export const argsOf = (example: ScriptExample): ScriptArg[] =>
  inOrder(example, example.script.args, example.args);

/** Runs an example, and returns the reply of each of its calls. */
export type Evaluate = (example: ScriptExample, on: Redis) => Promise<unknown[]>;

export const alone: Evaluate = async (example, on) => {
  const keys = keysOf(example);
  return [await on.eval(example.script.lua, keys.length, ...keys, ...argsOf(example))];
};

/** Two calls in one batch. Fails if one of them does, and says whether that is the second one. */
const inBatch: Evaluate = async (example, on) => {
  const { script } = example;
  const call = { script, keysAndArgs: [...keysOf(example), ...argsOf(example)] };
  const [keys, ...rest] = batchArgs([call, call]) as [number, ...ScriptArg[]];
  const replies = (await on.eval(batchOf(script).lua, keys, ...rest)) as unknown[];
  expect(replies).toHaveLength(2);
  const fault = replies.find(isNativeError);
  if (fault) throw Object.assign(fault, { isRepeat: fault !== replies[0] });
  return replies;
};

export const forms: [string, Evaluate][] = [
  ['alone', alone],
  ['in a batch', inBatch],
];

/** The commands that scripts ran, as MONITOR shows them. */
export async function commandsWithin(client: Redis, run: () => Promise<unknown>): Promise<string[][]> {
  // ioredis fails on a line of MONITOR that arrives together with its OK, so nothing else may be on its way to
  // the server.
  await client.ping();
  const monitor = await client.monitor();
  const commands: string[][] = [];
  monitor.on('monitor', (_time: string, args: string[], source: string) => {
    if (source === 'lua') commands.push(args);
  });
  await run();
  // MONITOR shows commands in the order in which they ran. After this command all those of the script are
  // there.
  const seen = new Promise<void>((resolve) =>
    monitor.on('monitor', (_time: string, args: string[]) => args[1] === 'the end of the laws' && resolve()),
  );
  await client.echo('the end of the laws');
  await seen;
  monitor.disconnect();
  return commands;
}

/** The value of a key. The fields of a hash have no order. */
async function valueOf(client: Redis, key: string): Promise<unknown> {
  switch (await client.type(key)) {
    case 'string':
      return client.get(key);
    case 'hash':
      return client.hgetall(key);
    case 'zset':
      return client.zrange(key, '0', '-1', 'WITHSCORES');
    case 'stream':
      return client.xrange(key, '-', '+');
    default:
      throw new Error(`The laws know no value of the type of ${key}.`);
  }
}

/** Each key with its TTL and its value. */
export type State = [key: string, ttlMs: number, value: unknown][];

/** Everything on the server. It is exact while the server's clock stands still. */
export async function stateOf(client: Redis): Promise<State> {
  const keys = (await client.keys('*')).sort();
  return Promise.all(
    keys.map(async (key): Promise<State[number]> => [
      key,
      await client.pttl(key),
      await valueOf(client, key),
    ]),
  );
}

/** What a run has answered and left, but for the numbers that a second run raises once more. */
export const asRepeatable = (
  { recounts }: ScriptExample,
  replies: readonly unknown[],
  state: State,
): unknown =>
  recounts
    ? [
        replies.map((reply) => String(reply).replace(/\d+/g, 'n')),
        state.map(([key, ...rest]) => (recounts.test(key) ? [key, rest[0]] : [key, ...rest])),
      ]
    : [replies, state];
