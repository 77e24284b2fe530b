import { offAbort, onAbort } from '../core/abort-listeners.js';
import { Bag } from '../core/bag.js';
import { withOwed } from '../core/errors.js';
import type { RedisClient } from '../redis/redis.client.js';
import { abortedBy, forbiddenCommand, RedisFault, toRedisFault, wasNotSent } from '../redis/redis.errors.js';
import type { RedisReadiness } from '../redis/redis.readiness.js';
import { ownerOf } from '../redis/redis.slots.js';
import type { Script, ScriptArg } from './define-script.js';

export interface RunOptions<Result> {
  signal?: AbortSignal | undefined;
  /** How long the call may wait for a connection and for the answer together, in ms. Default: the runner's. */
  timeoutMs?: number | undefined;
  /**
   * Whether time in which the event loop itself was late does not count against Redis. The call still ends after
   * `LOOP_FACTOR` times its timeout. Its fault then has `context.loop`.
   */
  sparesLoop?: boolean | undefined;
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
  /**
   * Lets the call go before those that wait to be sent: that of a waiter whose turn has come at once, and the renewal of
   * a lock at the end of this turn of the event loop.
   */
  priority?: 'claim' | 'renewal' | undefined;
}

const TICK_MS = 20;
/** A call that spares the loop ends after so many times its timeout. */
const LOOP_FACTOR = 4;

export interface Deadline {
  readonly atMs: number;
  /** Its place among the pending ones. -1 while it is not one of them. */
  place: number;
  /** @param loopLateMs - how late the event loop has been so far, in all */
  isDue(nowMs: number, loopLateMs: number): boolean;
  expire(): void;
}

/**
 * Keeps the deadlines of many calls with one coarse timer. A timer for each call would cost more than its
 * script. A deadline fires at most one tick late, and never early.
 */
export class Deadlines {
  readonly #pending = new Bag<Deadline>();
  #timer: NodeJS.Timeout | undefined;
  #tickAtMs = 0;
  #loopLateMs = 0;

  add(deadline: Deadline): void {
    this.#pending.add(deadline);
    if (!this.#timer) this.#tickLater();
  }

  /** Returns how late the event loop has been so far, in all, as far as there were calls to notice it. */
  loopLateMs(nowMs: number): number {
    return this.#loopLateMs + (this.#timer ? Math.max(0, nowMs - this.#tickAtMs) : 0);
  }

  #tickLater(): void {
    this.#tickAtMs = performance.now() + TICK_MS;
    this.#timer = setTimeout(this.#tick, TICK_MS).unref();
  }

  remove(deadline: Deadline): void {
    this.#pending.delete(deadline);
  }

  readonly #tick = (): void => {
    const now = performance.now();
    this.#loopLateMs = this.loopLateMs(now);
    this.#timer = undefined;
    const due = this.#pending.items
      .filter((each) => each.isDue(now, this.#loopLateMs))
      .sort((a, b) => a.atMs - b.atMs);
    // After a blocked event loop, replies may wait unread in the socket. `setImmediate` lets Node read them first.
    if (due.length > 0) setImmediate(() => this.#expire(due));
    if (this.#pending.items.length > due.length) this.#tickLater();
  };

  #expire(due: readonly Deadline[]): void {
    for (const deadline of due) if (deadline.place >= 0) deadline.expire();
  }
}

/** What a call needs of its runner. */
export interface CallRunner {
  readonly client: RedisClient;
  readonly readiness: RedisReadiness;
  readonly commandTimeoutMs: number;
  readonly deadlines: Deadlines;
  /** Sends the call at the end of this turn or later, by `departs()`. */
  enqueue(call: Call<unknown>): void;
  /** When the server that the call waits for has last answered, as `performance.now()` counts. */
  answeredMs(call: Call<unknown>): number;
  /** Called when no answer came in time. */
  unanswered(): void;
  /** Called when the ACL has refused the script. Returns which of its commands are known to be forbidden. */
  forbiddenIn(script: Script): readonly string[];
  /** The call has rejected, and Redis may still answer it. */
  owes(call: object): void;
  answered(call: object): void;
}

/**
 * One call from its start to its end: by a reply, a refusal, a deadline or an abort, whichever comes first. It is its own
 * deadline and its own listener of the signal, so that a call makes no closures.
 */
export class Call<Result> implements Deadline {
  atMs: number;
  place = -1;
  isSettled = false;
  #sent = false;
  /** When it began to wait for those before it, to be sent. 0 while it does not. */
  #queuedMs = 0;
  #isOwed = false;
  #epoch = 0;
  readonly #startedAtMs: number;
  /** That of the loop when the call began. */
  readonly #loopLateMs: number;
  #endsByLoop = false;
  #stopWaiting: (() => void) | undefined;

  constructor(
    private readonly runner: CallRunner,
    readonly script: Script<string, string, Result>,
    readonly keysAndArgs: readonly ScriptArg[],
    readonly options: RunOptions<Result>,
    private readonly resolve: (result: Result) => void,
    private readonly reject: (fault: RedisFault) => void,
  ) {
    this.#startedAtMs = performance.now();
    this.atMs = this.#startedAtMs + this.#timeoutMs;
    this.#loopLateMs = runner.deadlines.loopLateMs(this.#startedAtMs);
  }

  isDue(nowMs: number, loopLateMs: number): boolean {
    if (nowMs < this.atMs || !this.options.sparesLoop) return nowMs >= this.atMs;
    const isSpared = nowMs - (loopLateMs - this.#loopLateMs) < this.atMs;
    this.#endsByLoop = isSpared && nowMs >= this.#startedAtMs + LOOP_FACTOR * this.#timeoutMs;
    return !isSpared || this.#endsByLoop;
  }

  get #timeoutMs(): number {
    return this.options.timeoutMs ?? this.runner.commandTimeoutMs;
  }

  start(): void {
    const { signal } = this.options;
    if (signal) {
      if (typeof signal.addEventListener !== 'function') return this.reject(noSignal());
      if (signal.aborted) return this.handleEvent();
      onAbort(signal, this);
    }
    if (this.runner.readiness.ready) this.#enqueue();
    else this.#wait();
    this.runner.deadlines.add(this); // After the command was sent, since it may have to start a timer.
  }

  /** Returns whether the call is sent now. A call that was aborted meanwhile is not, and one without a connection waits. */
  departs(): boolean {
    if (this.isSettled) return false;
    const { readiness } = this.runner;
    if (!readiness.ready) {
      this.#wait();
      return false;
    }
    this.#sent = true;
    this.#epoch = readiness.epoch;
    // The server is given its time from now on, whatever was before this call.
    this.atMs += performance.now() - this.#queuedMs;
    return true;
  }

  answer(reply: unknown): void {
    let result: Result;
    try {
      result = this.script.decode(reply);
    } catch (error) {
      return this.#fail(error instanceof RedisFault ? error : unreadableReply(this.script.name, error));
    }
    if (this.isSettled) return this.#onLate(result);
    if (this.#epoch !== this.runner.readiness.epoch) this.options.onReplay?.();
    this.#settle();
    this.resolve(result);
  }

  /** Ends the call by an error of its command, or lets it wait if it was not sent. */
  refuse(error: unknown): void {
    // The connection is closing, and its end has not been noticed yet. So the call waits for the next connection. On a
    // Cluster it fails, because a Cluster client sends again by itself, so its last error does not describe the first
    // attempt.
    if (!this.isSettled && !this.runner.client.isCluster && wasNotSent(error)) this.#wait();
    else this.#fail(error);
  }

  expire(): void {
    if (this.#endsByLoop) return this.#giveUp(loopIsLate(this.#sent));
    // A call that waits for others goes on to wait while these are answered.
    const laterMs = this.#isQueued ? this.runner.answeredMs(this as Call<unknown>) + this.#timeoutMs : 0;
    if (laterMs > performance.now()) {
      this.atMs = laterMs;
      return;
    }
    this.runner.unanswered();
    this.#giveUp(this.#sent || this.#isQueued ? noAnswer(this.#sent) : this.runner.readiness.fault());
  }

  handleEvent(): void {
    this.#giveUp(abortedBy(this.options.signal, this.#sent));
  }

  get #isQueued(): boolean {
    return !this.#sent && this.#queuedMs > 0 && this.runner.readiness.ready;
  }

  #enqueue(): void {
    this.#queuedMs = performance.now();
    this.runner.enqueue(this as Call<unknown>);
  }

  #wait(): void {
    this.#sent = false;
    const waiting = this.runner.readiness.wait();
    this.#stopWaiting = waiting.cancel;
    waiting.ready.then(
      () => this.#enqueue(),
      (error: unknown) => this.#fail(error),
    );
  }

  #fail(error: unknown): void {
    const isLate = this.isSettled;
    const forbidden = forbiddenCommand(error) === undefined ? [] : this.runner.forbiddenIn(this.script);
    const fault = toRedisFault(error, isLate || this.#sent, forbidden);
    if (isLate) this.#answered();
    else this.#settle();
    if (fault.mayHaveRun) this.options.undo?.();
    this.reject(fault); // Does nothing if the call is late.
  }

  #onLate(result: Result): void {
    this.#answered();
    this.options.onLate?.(result);
    this.options.undo?.(result);
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

  #settle(): void {
    this.isSettled = true;
    this.#stopWaiting?.();
    this.runner.deadlines.remove(this);
    if (this.options.signal) offAbort(this.options.signal, this);
  }
}

const noAnswer = (mayHaveRun: boolean): RedisFault =>
  new RedisFault('NetworkTimeout', 'Redis did not answer in time.', {
    hint: mayHaveRun
      ? 'The command may or may not have run. If the server is only slow, raise `commandTimeoutMs`.'
      : 'It was not sent, as earlier commands were not answered. If the server is only slow, raise `commandTimeoutMs`.',
    mayHaveRun,
  });

const loopIsLate = (mayHaveRun: boolean): RedisFault =>
  new RedisFault('NetworkTimeout', 'This process was too busy to read the answer of Redis in time.', {
    hint: 'Its event loop was late, and Redis may be well. Look for what keeps the loop busy, or spread the load.',
    mayHaveRun,
    context: { loop: true },
  });

const unreadableReply = (script: string, cause: unknown): RedisFault =>
  new RedisFault('Internal', `The reply of script ${script} cannot be read.`, {
    hint: 'A MULTI of the app or a plugin may have changed the reply. Pass SyncGuard a client of its own.',
    cause,
    mayHaveRun: true,
  });

const noSignal = (): RedisFault => new RedisFault('InvalidArgument', 'signal must be an AbortSignal.');
