import { setMaxListeners } from 'node:events';
import { setImmediate as nextTurn } from 'node:timers/promises';
import { type RedisClient, socketsOf } from '../redis/redis.client.js';
import { RedisFault, toRedisFault, wasNotSent } from '../redis/redis.errors.js';
import type { HangWatch } from '../redis/redis.hang-watch.js';
import { RedisReadiness } from '../redis/redis.readiness.js';
import { ownerOf } from '../redis/redis.slots.js';
import { type Deadline, Deadlines } from './deadlines.js';
import type { Script } from './define-script.js';
import { settleWithin } from '../core/settle-within.js';
import { withOwed } from '../core/owed.js';

export type ScriptArg = string | number | Buffer;
type Invoke = (keysAndArgs: ScriptArg[]) => Promise<unknown>;

export interface RunOptions<Result> {
  signal?: AbortSignal | undefined;
  /**
   * How long the call may wait for a connection and for the answer together, in ms. Default: `commandTimeoutMs` of the
   * runner.
   */
  timeoutMs?: number | undefined;
  /** Called when the reply arrives after the call has rejected with a timeout or an abort. */
  onLate?: ((result: Result) => void) | undefined;
  /**
   * Undoes a command whose call has rejected although the command ran or may have run. It is called once:
   * with the reply when that comes late, or without one when the connection was lost. It is not called
   * earlier, because a hanging server would then get as many undo commands as calls.
   */
  undo?: ((result?: Result) => void) | undefined;
  /**
   * Called when the reply came over another connection than its command. ioredis re-sends commands after a
   * lost connection, so this may be the reply to a second run.
   */
  onReplay?: (() => void) | undefined;
}

/**
 * Runs scripts on a client. It registers each script once, sends only on a ready connection, limits every
 * call by a deadline, and turns failures into a {@link RedisFault}.
 */
export class ScriptRunner {
  readonly readiness: RedisReadiness;
  readonly #deadlines = new Deadlines();
  readonly #invokes = new Map<string, Invoke>();
  /** Calls that have rejected and that Redis may still answer. */
  readonly #owed = new Set<object>();
  #onAllAnswered: (() => void)[] = [];
  #corked = false;

  constructor(
    readonly client: RedisClient,
    readonly commandTimeoutMs: number,
    private readonly hangs?: HangWatch,
  ) {
    this.readiness = new RedisReadiness(client);
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

  /** @internal for {@link Call} */
  deadline(timeoutMs: number | undefined, expire: () => void): Deadline {
    return this.#deadlines.add(timeoutMs ?? this.commandTimeoutMs, expire);
  }

  /** @internal for {@link Call} */
  settled(deadline: Deadline): void {
    this.#deadlines.remove(deadline);
  }

  /** Called when no answer came in time. */
  unanswered(): void {
    this.hangs?.suspect();
  }

  /** @internal for {@link Call} */
  send(script: Script, keysAndArgs: ScriptArg[]): Promise<unknown> {
    this.#cork();
    const invoke = this.#invokes.get(script.command);
    return invoke ? invoke(keysAndArgs) : this.#registerLate(script, keysAndArgs);
  }

  /**
   * Registers a script and runs it. A pipeline that ioredis has begun by itself does not know commands that were
   * defined later: all its commands would fail. So this waits until such pipelines are sent, which may be after the
   * replies of the pipeline before them.
   */
  async #registerLate(script: Script, keysAndArgs: ScriptArg[]): Promise<unknown> {
    const begun = autoPipelines(this.client);
    const invoke = this.#invokeOf(script);
    while (begun.length > 0 && autoPipelines(this.client).some((each) => begun.includes(each)))
      await nextTurn();
    this.#invokes.set(script.command, invoke);
    return invoke(keysAndArgs);
  }

  /** Registers a script on the client. A client without `defineCommand` uses `eval`. */
  register(script: Script): void {
    this.#invokes.set(script.command, this.#invokeOf(script));
  }

  #invokeOf(script: Script): Invoke {
    const { client } = this;
    return client.defineCommand ? definedCommand(client, script) : evalCommand(client, script);
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

  /** @internal for {@link Call} */
  owes(call: object): void {
    this.#owed.add(call);
  }

  /** @internal for {@link Call} */
  answered(call: object): void {
    this.#owed.delete(call);
    if (this.#owed.size === 0) for (const resolve of this.#onAllAnswered.splice(0)) resolve();
  }

  close(): void {
    this.readiness.close();
  }

  /**
   * Sends all commands of one turn of the event loop in one write, so that a thousand renewals cost one system call.
   */
  #cork(): void {
    if (this.#corked) return;
    this.#corked = true;
    const sockets = socketsOf(this.client);
    for (const socket of sockets) socket.cork();
    process.nextTick(() => {
      this.#corked = false;
      for (const socket of sockets) socket.uncork();
    });
  }
}

/**
 * One call from its start to its end: by a reply, a refusal, a deadline or an abort, whichever comes first.
 */
class Call<Result> {
  #deadline: Deadline | undefined;
  #settled = false;
  #sent = false;
  #isOwed = false;
  #epoch = 0;
  #stopWaiting: (() => void) | undefined;

  constructor(
    private readonly runner: ScriptRunner,
    private readonly script: Script<string, string, Result>,
    private readonly keysAndArgs: ScriptArg[],
    private readonly options: RunOptions<Result>,
    private readonly resolve: (result: Result) => void,
    private readonly reject: (fault: RedisFault) => void,
  ) {}

  start(): void {
    const { signal, timeoutMs } = this.options;
    if (signal) {
      if (typeof signal.addEventListener !== 'function') return this.#fail(noSignal());
      if (signal.aborted) return this.#onAbort();
      setMaxListeners(0, signal); // Many calls may share the signal of one request.
      signal.addEventListener('abort', this.#onAbort, { once: true });
    }
    this.#deadline = this.runner.deadline(timeoutMs, this.#onDeadline);
    if (this.runner.readiness.ready) this.#send();
    else this.#wait();
  }

  #wait(): void {
    this.#sent = false;
    const waiting = this.runner.readiness.wait();
    this.#stopWaiting = waiting.cancel;
    waiting.ready.then(this.#send, this.#fail);
  }

  readonly #send = (): void => {
    if (this.#settled) return;
    this.#sent = true;
    this.#epoch = this.runner.readiness.epoch;
    try {
      this.runner.send(this.script as Script, this.keysAndArgs).then(this.#onReply, this.#onRejected);
    } catch (error) {
      this.#fail(error);
    }
  };

  readonly #onReply = (reply: unknown): void => {
    let result: Result;
    try {
      result = this.script.decode(reply);
    } catch (error) {
      return this.#fail(error instanceof RedisFault ? error : unreadableReply(this.script.name, error));
    }
    if (this.#settled) return this.#onLate(result);
    if (this.#epoch !== this.runner.readiness.epoch) this.options.onReplay?.();
    this.#settle();
    this.resolve(result);
  };

  readonly #onRejected = (error: unknown): void => {
    // The connection is closing, and its end has not been noticed yet. So the call waits for the next connection. On a
    // Cluster it fails, because a Cluster client sends again by itself, so its last error does not describe the first
    // attempt.
    if (!this.#settled && !this.runner.client.isCluster && wasNotSent(error)) this.#wait();
    else this.#fail(error);
  };

  readonly #fail = (error: unknown): void => {
    if (this.#settled) return this.#onLateFault(error);
    const fault = toRedisFault(error, this.#sent);
    this.#settle();
    if (fault.mayHaveRun) this.options.undo?.();
    this.reject(fault);
  };

  #onLate(result: Result): void {
    this.#answered();
    this.options.onLate?.(result);
    this.options.undo?.(result);
  }

  #onLateFault(error: unknown): void {
    this.#answered();
    if (toRedisFault(error, true).mayHaveRun) this.options.undo?.();
  }

  #answered(): void {
    this.#isOwed = false;
    this.runner.answered(this);
  }

  /** Rejects the call while its reply may still come. */
  #giveUp(fault: RedisFault): void {
    if (!this.#sent) return this.#fail(fault);
    this.#isOwed = true;
    this.runner.owes(this);
    this.#settle();
    // On a Cluster the key may have another master by now, which owes no reply.
    const ownerNow = (): string | undefined => ownerOf(this.runner.client, String(this.keysAndArgs[0]));
    const owner = ownerNow();
    this.reject(withOwed(fault, () => this.#isOwed && ownerNow() === owner));
  }

  readonly #onDeadline = (): void => {
    this.runner.unanswered();
    this.#giveUp(
      this.#sent
        ? new RedisFault('NetworkTimeout', 'Redis did not answer in time.', {
            hint: 'The command may or may not have run. If the server is only slow, raise `commandTimeoutMs`.',
            mayHaveRun: true,
          })
        : this.runner.readiness.fault(),
    );
  };

  readonly #onAbort = (): void => {
    const cause: unknown = this.options.signal?.reason;
    this.#giveUp(
      new RedisFault('Aborted', 'The call was aborted by its signal.', {
        cause,
        mayHaveRun: this.#sent,
      }),
    );
  };

  #settle(): void {
    this.#settled = true;
    this.#stopWaiting?.();
    if (this.#deadline) this.runner.settled(this.#deadline);
    this.options.signal?.removeEventListener('abort', this.#onAbort);
  }
}

const unreadableReply = (script: string, cause: unknown): RedisFault =>
  new RedisFault('Internal', `The reply of script ${script} cannot be read.`, {
    hint: 'A MULTI of the app or a plugin may have changed the reply. Pass SyncGuard a client of its own.',
    cause,
    mayHaveRun: true,
  });

const noSignal = (): RedisFault => new RedisFault('InvalidArgument', 'signal must be an AbortSignal.');

/** The pipelines that ioredis has begun by itself and not sent yet, of a client with `enableAutoPipelining`. */
function autoPipelines(client: RedisClient): unknown[] {
  const { _autoPipelines: begun } = client as { _autoPipelines?: Map<string, unknown> };
  return begun ? [...begun.values()] : [];
}

function definedCommand(client: RedisClient, script: Script): Invoke {
  const { command, lua, keys, binary } = script;
  const commands = client as unknown as Record<string, (...keysAndArgs: ScriptArg[]) => Promise<unknown>>;
  // The name has a hash of the content, so an existing command is the same script.
  if (typeof commands[command] !== 'function')
    client.defineCommand?.(command, { lua, numberOfKeys: keys.length });
  const method = binary ? `${command}Buffer` : command;
  return (keysAndArgs) => (commands[method] as NonNullable<(typeof commands)[string]>)(...keysAndArgs);
}

function evalCommand(client: RedisClient, script: Script): Invoke {
  const { lua, keys, binary } = script;
  const method = binary ? 'evalBuffer' : 'eval';
  return (keysAndArgs) => {
    const run = client[method];
    if (!run)
      return Promise.reject(new TypeError(`the Redis client has neither defineCommand nor ${method}`));
    return run.call(client, lua, keys.length, ...keysAndArgs);
  };
}
