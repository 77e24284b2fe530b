import { setMaxListeners } from 'node:events';
import { type RedisClient, socketsOf } from '../redis/redis.client.js';
import { RedisFault, toRedisFault, wasNotSent } from '../redis/redis.errors.js';
import type { HangWatch } from '../redis/redis.hang-watch.js';
import { RedisReadiness } from '../redis/redis.readiness.js';
import { type Deadline, Deadlines } from './deadlines.js';
import type { Script } from './define-script.js';

export type ScriptArg = string | number | Buffer;
type Invoke = (keysAndArgs: ScriptArg[]) => Promise<unknown>;

export interface RunOptions<Result> {
  signal?: AbortSignal | undefined;
  /** For waiting and answering together, in ms; the runner's `commandTimeoutMs`. */
  timeoutMs?: number | undefined;
  /** The reply came after the caller had been told that it timed out or was aborted. */
  onLate?: ((result: Result) => void) | undefined;
  /** An error came instead of it. */
  onLateFault?: (() => void) | undefined;
  /**
   * The reply came over another connection than its command: ioredis sends again what a lost connection left
   * unanswered, so this may be the reply to a second run.
   */
  onReplay?: (() => void) | undefined;
}

/**
 * Runs scripts on a client: registers them once, sends only on a ready connection, holds every call to a
 * deadline, turns what goes wrong into a {@link RedisFault}.
 */
export class ScriptRunner {
  readonly readiness: RedisReadiness;
  readonly #deadlines = new Deadlines();
  readonly #invokes = new Map<string, Invoke>();
  #corked = false;

  constructor(
    readonly client: RedisClient,
    readonly commandTimeoutMs: number,
    private readonly hangs?: HangWatch,
  ) {
    this.readiness = new RedisReadiness(client);
  }

  /** One run of one script. Rejects with a RedisFault only. */
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

  /** No answer came in time. */
  unanswered(): void {
    this.hangs?.suspect();
  }

  /** @internal for {@link Call} */
  send(script: Script, keysAndArgs: ScriptArg[]): Promise<unknown> {
    this.#cork();
    return (this.#invokes.get(script.command) ?? this.register(script))(keysAndArgs);
  }

  /** Makes a script known to the client. A client without `defineCommand` is served by `eval`. */
  register(script: Script): Invoke {
    const { client } = this;
    const invoke = client.defineCommand ? definedCommand(client, script) : evalCommand(client, script);
    this.#invokes.set(script.command, invoke);
    return invoke;
  }

  close(): void {
    this.readiness.close();
  }

  /** What is sent in one turn leaves in one write: a thousand renewals cost one system call. */
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

/** A call from its start to its one outcome: reply, refusal, deadline or abort, whichever is first. */
class Call<Result> {
  #deadline: Deadline | undefined;
  #settled = false;
  #sent = false;
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
      setMaxListeners(0, signal); // One signal of a request may stand for many calls.
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
    if (this.#settled) return this.options.onLate?.(result);
    if (this.#epoch !== this.runner.readiness.epoch) this.options.onReplay?.();
    this.#settle();
    this.resolve(result);
  };

  readonly #onRejected = (error: unknown): void => {
    // The connection is being left, by ioredis or by us: its end has not been noticed yet.
    if (!this.#settled && wasNotSent(error)) this.#wait();
    else this.#fail(error);
  };

  readonly #fail = (error: unknown): void => {
    if (this.#settled) return this.options.onLateFault?.();
    this.#settle();
    this.reject(toRedisFault(error, this.#sent));
  };

  readonly #onDeadline = (): void => {
    this.runner.unanswered();
    this.#fail(
      this.#sent
        ? new RedisFault('NetworkTimeout', 'Redis did not answer in time.', {
            hint: 'Whether the command ran is not known. If the server is merely slow, raise `commandTimeoutMs`.',
            mayHaveRun: true,
          })
        : this.runner.readiness.fault(),
    );
  };

  readonly #onAbort = (): void => {
    const cause: unknown = this.options.signal?.reason;
    this.#fail(
      new RedisFault('Aborted', 'The operation was aborted by its signal.', {
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
  new RedisFault('Internal', `Script ${script} gave a reply that cannot be read.`, {
    hint: 'Is the client in a MULTI of yours, or changed by a plugin? Give SyncGuard one of its own.',
    cause,
    mayHaveRun: true,
  });

const noSignal = (): RedisFault => new RedisFault('InvalidArgument', 'signal must be an AbortSignal.');

function definedCommand(client: RedisClient, script: Script): Invoke {
  const { command, lua, keys, binary } = script;
  const commands = client as unknown as Record<string, (...keysAndArgs: ScriptArg[]) => Promise<unknown>>;
  // The name says the content: what is there already is this very script.
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
