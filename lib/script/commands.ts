import { setImmediate as nextTurn } from 'node:timers/promises';
import type { RedisClient } from '../redis/redis.client.js';
import type { ScriptArg } from './define-script.js';

/** A Lua text as a command of a client. */
export interface LuaCommand {
  readonly command: string;
  readonly lua: string;
  readonly binary: boolean;
  /** Undefined if the first argument of each call is the number of its keys. */
  readonly numberOfKeys: number | undefined;
}

type Invoke = (args: readonly ScriptArg[]) => Promise<unknown>;

/** The scripts that are commands of one client. A client without `defineCommand` uses `eval`. */
export class ScriptCommands {
  readonly #invokes = new Map<string, Invoke>();

  constructor(private readonly client: RedisClient) {}

  register(lua: LuaCommand): void {
    this.#invokes.set(lua.command, this.#invokeOf(lua));
  }

  run(lua: LuaCommand, args: readonly ScriptArg[]): Promise<unknown> {
    const invoke = this.#invokes.get(lua.command);
    return invoke ? invoke(args) : this.#registerLate(lua, args);
  }

  /**
   * Registers a script and runs it. A pipeline that ioredis has begun by itself does not know commands that were
   * defined later: all its commands would fail. So this waits until such pipelines are sent, which may be after the
   * replies of the pipeline before them.
   */
  async #registerLate(lua: LuaCommand, args: readonly ScriptArg[]): Promise<unknown> {
    const begun = autoPipelines(this.client);
    const invoke = this.#invokeOf(lua);
    while (begun.length > 0 && autoPipelines(this.client).some((each) => begun.includes(each)))
      await nextTurn();
    this.#invokes.set(lua.command, invoke);
    return invoke(args);
  }

  #invokeOf(lua: LuaCommand): Invoke {
    return this.client.defineCommand ? definedCommand(this.client, lua) : evalCommand(this.client, lua);
  }
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
  return (args) => (commands[method] as NonNullable<(typeof commands)[string]>)(...args);
}

function evalCommand(client: RedisClient, { lua, binary, numberOfKeys }: LuaCommand): Invoke {
  const method = binary ? 'evalBuffer' : 'eval';
  return (args) => {
    const run = client[method];
    if (!run)
      return Promise.reject(new TypeError(`the Redis client has neither defineCommand nor ${method}`));
    const counted = numberOfKeys === undefined ? args : [numberOfKeys, ...args];
    return run.call(client, lua, ...(counted as [number, ...ScriptArg[]]));
  };
}
