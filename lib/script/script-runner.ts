import { setImmediate as nextTurn } from 'node:timers/promises';
import { isNativeError } from 'node:util/types';
import { settleWithin } from '../core/settle-within.js';
import { type ClientStream, connectionsOf, type RedisClient } from '../redis/redis.client.js';
import { RedisReadiness } from '../redis/redis.readiness.js';
import { ownerOf } from '../redis/redis.slots.js';
import { batchArgs, batchOf, inBatches } from './batch.js';
import { Call, type CallRunner, Deadlines, type RunOptions } from './call.js';
import { commandsOf, type LuaCommand, type Script, type ScriptArg } from './define-script.js';

export type { RunOptions } from './call.js';
export type { ScriptArg } from './define-script.js';

type AnyCall = Call<unknown>;

/** The most calls that one server is asked at a time. More wait here, so that none waits long for its answer. */
const MOST_IN_FLIGHT = 256;

/** How many calls wait before those among them that have ended are swept out. */
const SWEEP_EVERY = 1_024;

/** The calls to one server: to the one there is, or to one master of a Cluster. */
interface Lane {
  /** The renewals of this turn. */
  renewals: AnyCall[];
  /** The other calls of this turn, and those that wait for answers to others. */
  queued: AnyCall[];
  /** Calls that were sent and not answered. */
  inFlight: number;
  /** When the server has last answered, as `performance.now()` counts. */
  answeredMs: number;
}
type Invoke = (...args: ScriptArg[]) => Promise<unknown>;

// Kept, so that fake timers of a user's test do not hold up the calls to a real Redis.
const atTurnsEnd = setImmediate;

/**
 * Runs scripts on a client. It registers each script once, sends only on a ready connection, limits every
 * call by a deadline, and turns failures into a {@link RedisFault}. Calls of one script that are made in one turn of the
 * event loop are sent together.
 */
export class ScriptRunner implements CallRunner {
  // A client has a password. What is private is not shown by `util.inspect`.
  readonly #client: RedisClient;
  readonly #suspect: (() => void) | undefined;
  readonly readiness: RedisReadiness;
  readonly deadlines = new Deadlines();
  /** The commands that the ACL is known to forbid. */
  forbidden: readonly string[] = [];
  /** Called when the ACL has refused a command. */
  onForbidden: (() => void) | undefined;
  /** The scripts that are commands of the client. */
  readonly #commands = new Map<string, Invoke>();
  readonly #lanes = new Map<string | undefined, Lane>();
  #willFlush = false;
  /** The last turn had one call at most. */
  #isQuiet = true;
  #batches: boolean;
  /** Calls that have rejected and that Redis may still answer. */
  readonly #owed = new Set<object>();
  #onAllAnswered: (() => void)[] = [];

  constructor(
    client: RedisClient,
    readonly commandTimeoutMs: number,
    suspect?: () => void,
  ) {
    this.#client = client;
    this.#suspect = suspect;
    this.readiness = new RedisReadiness(client);
    this.#batches = !client.isCluster; // The keys of two calls are seldom in one slot.
  }

  get client(): RedisClient {
    return this.#client;
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
    this.#commands.set(script.command, defineOn(this.#client, script));
  }

  unanswered(): void {
    this.#suspect?.();
  }

  forbiddenIn({ lua }: Script): readonly string[] {
    this.onForbidden?.();
    const commands = commandsOf(lua);
    return this.forbidden.filter((each) => commands.includes(each));
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
    const lane = this.#laneOf(call);
    const { priority } = call.options;
    if (priority === 'claim' || (this.#isQuiet && lane.inFlight === 0 && isEmpty(lane))) {
      if (call.departs()) this.#send(call, lane);
      return;
    }
    if (priority === 'renewal') lane.renewals.push(call);
    else if (lane.queued.push(call) % SWEEP_EVERY === 0)
      lane.queued = lane.queued.filter(({ isSettled }) => !isSettled);
    this.#flushAtTurnsEnd();
  }

  /** When the server that a call waits for has last answered, as `performance.now()` counts. */
  answeredMs(call: AnyCall): number {
    return this.#laneOf(call).answeredMs;
  }

  close(): void {
    this.#flush();
    this.readiness.close();
  }

  #laneOf(call: AnyCall): Lane {
    const server = this.#client.isCluster ? ownerOf(this.#client, String(call.keysAndArgs[0])) : undefined;
    let lane = this.#lanes.get(server);
    if (!lane)
      this.#lanes.set(server, (lane = { renewals: [], queued: [], inFlight: 0, answeredMs: -Infinity }));
    return lane;
  }

  #flushAtTurnsEnd(): void {
    if (this.#willFlush) return;
    this.#willFlush = true;
    atTurnsEnd(this.#flush);
  }

  /** Sends the calls of one turn in one write, so that a thousand renewals cost one system call. */
  readonly #flush = (): void => {
    this.#willFlush = false;
    const sockets: ClientStream[] = [];
    let sent = 0;
    for (const lane of this.#lanes.values()) {
      const calls = takeFrom(lane);
      sent += calls.length;
      if (sent > 1 && sockets.length === 0) sockets.push(...corked(this.#client));
      if (this.#batches) for (const batch of inBatches(calls)) this.#sendBatch(batch, lane);
      else for (const call of calls) this.#send(call, lane);
    }
    this.#isQuiet = sent <= 1;
    for (const socket of sockets) socket.uncork();
  };

  #send(call: AnyCall, lane: Lane): void {
    lane.inFlight++;
    this.command(call.script, call.keysAndArgs).then(
      (reply) => {
        this.#answered(lane, 1);
        call.answer(reply);
      },
      (error: unknown) => {
        this.#answered(lane, 1);
        call.refuse(error);
      },
    );
  }

  #sendBatch(calls: readonly AnyCall[], lane: Lane): void {
    const [call] = calls as [AnyCall];
    if (calls.length === 1) return this.#send(call, lane);
    lane.inFlight += calls.length;
    this.command(batchOf(call.script), batchArgs(calls)).then(
      (replies) => {
        this.#answered(lane, calls.length);
        answerEach(calls, replies);
      },
      (error: unknown) => {
        this.#answered(lane, calls.length);
        this.#refuseBatch(calls, error, lane);
      },
    );
  }

  #answered(lane: Lane, calls: number): void {
    lane.inFlight -= calls;
    lane.answeredMs = performance.now();
    if (lane.queued.length > 0) this.#flushAtTurnsEnd();
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
    const begun = autoPipelines(this.#client);
    const invoke = defineOn(this.#client, lua);
    while (begun.length > 0 && autoPipelines(this.#client).some((each) => begun.includes(each)))
      await nextTurn();
    this.#commands.set(lua.command, invoke);
    return invoke(...args);
  }

  /**
   * The server has refused a batch before it ran: its keys are in several slots behind a proxy, or the ACL forbids one of
   * them. So each call is sent alone. Every other error ends all calls.
   */
  #refuseBatch(calls: readonly AnyCall[], error: unknown, lane: Lane): void {
    const refusal = String((error as Error | null)?.message).match(/\b(CROSSSLOT|NOPERM)\b/)?.[1];
    if (refusal === 'CROSSSLOT') this.#batches = false;
    for (const call of calls)
      if (refusal === undefined || call.isSettled) call.refuse(error);
      else if (call.departs()) this.#send(call, lane);
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

const isEmpty = ({ renewals, queued }: Lane): boolean => renewals.length === 0 && queued.length === 0;

/** Takes the calls that can be sent now. The others wait for answers. */
function takeFrom(lane: Lane): AnyCall[] {
  const calls = lane.renewals.filter((call) => call.departs());
  lane.renewals = [];
  const room = MOST_IN_FLIGHT - lane.inFlight;
  let taken = 0;
  for (; taken < lane.queued.length && calls.length < room; taken++) {
    const call = lane.queued[taken] as AnyCall;
    if (call.departs()) calls.push(call);
  }
  lane.queued = lane.queued.slice(taken);
  return calls;
}

/** Corks the sockets that a command may use: one for a server, or one for each master of a Cluster. */
function corked(client: RedisClient): ClientStream[] {
  const sockets = connectionsOf(client, 'master').flatMap(({ stream }) =>
    typeof stream?.cork === 'function' ? [stream] : [],
  );
  for (const socket of sockets) socket.cork();
  return sockets;
}

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
