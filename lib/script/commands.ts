import { setImmediate as nextTurn } from 'node:timers/promises';
import type { RedisClient } from '../redis/redis.client.js';
import type { LuaCommand, ScriptArg } from './define-script.js';

export type Invoke = (...args: ScriptArg[]) => Promise<unknown>;

/** Makes a Lua text a command of the client. A client without `defineCommand` uses `eval`. */
export function defineOn(client: RedisClient, lua: LuaCommand): Invoke {
  return client.defineCommand ? definedCommand(client, lua) : evalCommand(client, lua);
}

/**
 * Makes a Lua text a command, and runs it. A pipeline that ioredis has begun by itself does not know commands that were
 * defined later: all its commands would fail. So this waits until such pipelines are sent, which may be after the
 * replies of the pipeline before them.
 */
export async function runNew(
  client: RedisClient,
  lua: LuaCommand,
  args: readonly ScriptArg[],
  onDefined: (invoke: Invoke) => void,
): Promise<unknown> {
  const begun = autoPipelines(client);
  const invoke = defineOn(client, lua);
  while (begun.length > 0 && autoPipelines(client).some((each) => begun.includes(each))) await nextTurn();
  onDefined(invoke);
  return invoke(...args);
}

/** The pipelines that ioredis has begun by itself and not sent yet, of a client with `enableAutoPipelining`. */
function autoPipelines(client: RedisClient): unknown[] {
  const { _autoPipelines: begun } = client as { _autoPipelines?: Map<string, unknown> };
  return begun ? [...begun.values()] : [];
}

function definedCommand(client: RedisClient, { command, lua, binary, numberOfKeys }: LuaCommand): Invoke {
  const commands = client as unknown as Record<string, (...args: ScriptArg[]) => Promise<unknown>>;
  // The name has a hash of the content, so an existing command is the same script.
  if (typeof commands[command] !== 'function')
    client.defineCommand?.(command, numberOfKeys === undefined ? { lua } : { lua, numberOfKeys });
  const method = binary ? `${command}Buffer` : command;
  return (commands[method] as Invoke).bind(client);
}

function evalCommand(client: RedisClient, { lua, binary, numberOfKeys }: LuaCommand): Invoke {
  const method = binary ? 'evalBuffer' : 'eval';
  return (...args) => {
    const run = client[method];
    if (!run)
      return Promise.reject(new TypeError(`the Redis client has neither defineCommand nor ${method}`));
    const counted = numberOfKeys === undefined ? args : [numberOfKeys, ...args];
    return run.call(client, lua, ...(counted as [number, ...ScriptArg[]]));
  };
}
