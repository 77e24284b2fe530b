import { setImmediate as nextTurn } from 'node:timers/promises';
import { isNativeError } from 'node:util/types';
import { settleWithin } from '../core/settle-within.js';
import { type ClientStream, connectionsOf, type RedisClient } from '../redis/redis.client.js';
import type { HangWatch } from '../redis/redis.hang-watch.js';
import { RedisReadiness } from '../redis/redis.readiness.js';
import { batchArgs, batchOf, inBatches } from './batch.js';
import { Call, type CallRunner, Deadlines, type RunOptions } from './call.js';
import type { LuaCommand, Script, ScriptArg } from './define-script.js';

export type { RunOptions } from './call.js';
export type { ScriptArg } from './define-script.js';

type AnyCall = Call<unknown>;
type Invoke = (...args: ScriptArg[]) => Promise<unknown>;

// Kept, so that fake timers of a user's test do not hold up the calls to a real Redis.
const atTurnsEnd = setImmediate;

/**
 * Runs scripts on a client. It registers each script once, sends only on a ready connection, limits every
 * call by a deadline, and turns failures into a {@link RedisFault}. Calls of one script that are made in one turn of the
 * event loop are sent together.
 */
export class ScriptRunner implements CallRunner {
  readonly readiness: RedisReadiness;
  readonly deadlines = new Deadlines();
  /** The scripts that are commands of the client. */
  readonly #commands = new Map<string, Invoke>();
  /** The calls of this turn. */
  #queued: AnyCall[] = [];
  /** Commands that were sent and not answered. */
  #inFlight = 0;
  /** The last turn had one call at most. */
  #isQuiet = true;
  #batches: boolean;
  /** Calls that have rejected and that Redis may still answer. */
  readonly #owed = new Set<object>();
  #onAllAnswered: (() => void)[] = [];

  constructor(
    readonly client: RedisClient,
    readonly commandTimeoutMs: number,
    private readonly hangs?: HangWatch,
  ) {
    this.readiness = new RedisReadiness(client);
    this.#batches = !client.isCluster; // The keys of two calls are seldom in one slot.
  }

  /** Runs a script once. Rejects with a RedisFault only. */
  run<Key extends string, Arg extends string, Result>(
    script: Script<Key, Arg, Result>,
    keys: Readonly<Record<Key, string>>,
    args: Readonly<Record<Arg, ScriptArg>>,
    options: RunOptions<Result> = {},
  ): Promise<Result> {
    const keysAndArgs: ScriptArg[] = [];
    for (const key of script.keys) keysAndArgs.push(keys[key]);
    for (const arg of script.args) keysAndArgs.push(args[arg]);
    return new Promise((resolve, reject) => {
      new Call(this, script, keysAndArgs, options, resolve, reject).start();
    });
  }

  register(script: LuaCommand): void {
    this.#commands.set(script.command, defineOn(this.client, script));
  }

  unanswered(): void {
    this.hangs?.suspect();
  }

  /** Resolves as soon as a command can be sent. Rejects once the client is closed for good. */
  ready(): Promise<void> {
    return this.readiness.ready ? Promise.resolve() : this.readiness.wait().ready;
  }

  /** Waits up to `ms` until Redis owes no reply to a rejected call. */
  async untilAnswered(ms: number): Promise<void> {
    if (this.#owed.size === 0) return;
    await settleWithin(ms, [new Promise<void>((resolve) => this.#onAllAnswered.push(resolve))]);
  }

  owes(call: object): void {
    this.#owed.add(call);
  }

  answered(call: object): void {
    this.#owed.delete(call);
    if (this.#owed.size === 0) for (const resolve of this.#onAllAnswered.splice(0)) resolve();
  }

  /** Calls that come one after the other are sent at once: each would only wait for the end of its turn. */
  enqueue(call: AnyCall): void {
    if (this.#isQuiet && this.#inFlight === 0 && this.#queued.length === 0) {
      if (call.departs()) this.#send(call);
    } else if (this.#queued.push(call) === 1) atTurnsEnd(this.#flush);
  }

  close(): void {
    this.#flush();
    this.readiness.close();
  }

  /** Sends the calls of one turn in one write, so that a thousand renewals cost one system call. */
  readonly #flush = (): void => {
    const queued = this.#queued;
    this.#queued = [];
    const calls = queued.filter((call) => call.departs());
    this.#isQuiet = calls.length <= 1;
    const sockets = calls.length > 1 ? socketsOf(this.client) : [];
    for (const socket of sockets) socket.cork();
    if (this.#batches) for (const batch of inBatches(calls)) this.#sendBatch(batch);
    else for (const call of calls) this.#send(call);
    for (const socket of sockets) socket.uncork();
  };

  #send(call: AnyCall): void {
    this.#inFlight++;
    this.command(call.script, call.keysAndArgs).then(
      (reply) => {
        this.#inFlight--;
        call.answer(reply);
      },
      (error: unknown) => {
        this.#inFlight--;
        call.refuse(error);
      },
    );
  }

  #sendBatch(calls: readonly AnyCall[]): void {
    const [call] = calls as [AnyCall];
    if (calls.length === 1) return this.#send(call);
    this.#inFlight++;
    this.command(batchOf(call.script), batchArgs(calls)).then(
      (replies) => {
        this.#inFlight--;
        answerEach(calls, replies);
      },
      (error: unknown) => {
        this.#inFlight--;
        this.#refuseBatch(calls, error);
      },
    );
  }

  /** Sends one command, of one call or of a batch. */
  command(lua: LuaCommand, args: readonly ScriptArg[]): Promise<unknown> {
    const invoke = this.#commands.get(lua.command);
    try {
      if (invoke) return invoke(...args);
      return this.#defineAndSend(lua, args);
    } catch (error) {
      return Promise.reject(error); // A client that is no ioredis may throw.
    }
  }

  /**
   * A pipeline that ioredis has begun by itself does not know commands that were defined later: all its commands would
   * fail. So this waits until such pipelines are sent, which may be after the replies of the pipeline before them.
   */
  async #defineAndSend(lua: LuaCommand, args: readonly ScriptArg[]): Promise<unknown> {
    const begun = autoPipelines(this.client);
    const invoke = defineOn(this.client, lua);
    while (begun.length > 0 && autoPipelines(this.client).some((each) => begun.includes(each)))
      await nextTurn();
    this.#commands.set(lua.command, invoke);
    return invoke(...args);
  }

  /**
   * The server has refused a batch before it ran: its keys are in several slots behind a proxy, or the ACL forbids one of
   * them. So each call is sent alone. Every other error ends all calls.
   */
  #refuseBatch(calls: readonly AnyCall[], error: unknown): void {
    const refusal = String((error as Error | null)?.message).match(/\b(CROSSSLOT|NOPERM)\b/)?.[1];
    if (refusal === 'CROSSSLOT') this.#batches = false;
    for (const call of calls)
      if (refusal === undefined || call.isSettled) call.refuse(error);
      else if (call.departs()) this.#send(call);
  }
}

/** A reply that is no array was changed on its way, which each call says of itself. */
function answerEach(calls: readonly AnyCall[], replies: unknown): void {
  for (const [i, call] of calls.entries()) {
    const reply: unknown = Array.isArray(replies) ? replies[i] : replies;
    if (isNativeError(reply)) call.refuse(reply);
    else call.answer(reply);
  }
}

/** Returns the sockets that a command may use: one for a server, or one for each master of a Cluster. */
const socketsOf = (client: RedisClient): ClientStream[] =>
  connectionsOf(client, 'master').flatMap(({ stream }) =>
    typeof stream?.cork === 'function' ? [stream] : [],
  );

/** The pipelines that ioredis has begun by itself and not sent yet, of a client with `enableAutoPipelining`. */
function autoPipelines(client: RedisClient): unknown[] {
  const { _autoPipelines: begun } = client as { _autoPipelines?: Map<string, unknown> };
  return begun ? [...begun.values()] : [];
}

/** Makes a Lua text a command of the client. A client without `defineCommand` uses `eval`. */
function defineOn(client: RedisClient, lua: LuaCommand): Invoke {
  if (!client.defineCommand) return evalCommand(client, lua);
  const { command, lua: text, binary, numberOfKeys } = lua;
  const commands = client as unknown as Record<string, Invoke | undefined>;
  // The name has a hash of the content, so an existing command is the same script.
  if (typeof commands[command] !== 'function')
    client.defineCommand(command, numberOfKeys === undefined ? { lua: text } : { lua: text, numberOfKeys });
  return (commands[binary ? `${command}Buffer` : command] as Invoke).bind(client);
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
