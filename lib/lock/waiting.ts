import { isOwed } from '../core/errors.js';
import { pause } from '../core/pause.js';
import { MAX_DURATION_MS } from '../core/validate.js';
import { detailOf, type LockBackend } from './lock.backend.js';
import { deadlock, LockError, type LockErrorCode, tooManyWaiting } from './lock.errors.js';
import type { ResolvedLockCall } from './lock.options.js';
import type { BackendHandle } from './lock.handle.js';
import type { AcquireFailure, AcquireOptions, LockTurn } from './lock.types.js';
import type { NestedWait } from './nested-waits.js';
import type { WaitingRoom } from '../core/waiting-room.js';

const LONGEST_PAUSE_MS = 1_000;

/** Faults of Redis that do not end the wait of a call: it tries again, unless the client was closed for good. */
const MAY_PASS: ReadonlySet<LockErrorCode> = new Set<LockErrorCode>(['ServiceUnavailable', 'NetworkTimeout']);

export interface Wait {
  readonly waitedMs: number;
  /** The place in the queue when waiting began, counted from 1. */
  readonly place?: number | undefined;
}

/** The outcome of waiting. `fault` is the last fault of Redis that happened meanwhile. */
export interface Waited extends Wait {
  readonly result: BackendHandle | AcquireFailure;
  readonly fault?: LockError | undefined;
}

type Tried = BackendHandle | AcquireFailure | LockError;

/** What calls that wait need of their service. */
export interface WaitingHost {
  readonly backend: LockBackend;
  /** Aborts when the app shuts down. */
  readonly shutdown: AbortSignal;
  readonly room: WaitingRoom;
  attempt(options: AcquireOptions): Promise<BackendHandle | AcquireFailure>;
  /** Called when the wait has ended by an error: it was refused or aborted, or Redis did not answer. */
  onFailed(wanted: WantedLock, wait: Wait, error: LockError): void;
}

export interface WantedLock {
  readonly keys: readonly string[];
  readonly call: ResolvedLockCall;
  /**
   * Set for a call that holds locks. It is not refused for those that wait, and goes before those that hold none: they may
   * wait for its lock.
   */
  readonly nested: NestedWait | undefined;
  /** The decorated method, for the log. */
  readonly place: string | undefined;
}

/**
 * Tries until the lock is granted or the time is over: in the queue with `fair`, else by repeated attempts. A fault of Redis
 * counts as a failed try.
 */
export const waitForLock = (host: WaitingHost, wanted: WantedLock): Promise<Waited> =>
  new LockWait(host, wanted).run();

class LockWait {
  readonly #host: WaitingHost;
  readonly #wanted: WantedLock;
  readonly #startedMs = performance.now();
  readonly #endMs: number;
  /** It tries again, and does so in the queue. */
  readonly #waits: boolean;
  readonly #queues: boolean;
  readonly #isLimited: boolean;
  /** False where the process is full. Its key may be free, so such a call makes one attempt, without a place in the queue. */
  readonly #mayWait: boolean;
  #turn: LockTurn | undefined;
  #fault: LockError | undefined;
  #isCounted = false;
  #isWaiting = false;

  constructor(host: WaitingHost, wanted: WantedLock) {
    const { call, nested } = wanted;
    this.#host = host;
    this.#wanted = wanted;
    // A call that is aborted already takes no place in the queue. Giving the place up would cost a command.
    this.#waits = call.onContention === 'throw' && call.timeoutMs > 0 && !call.signal?.aborted;
    this.#queues = this.#waits && call.fair;
    this.#isLimited = this.#queues && !nested;
    this.#mayWait = !this.#isLimited || !host.room.isFull;
    this.#endMs = this.#startedMs + (call.onContention === 'throw' ? patienceMs(call, nested) : 0);
  }

  /** Most locks are free, so the first try is chained: an async function makes more promises. */
  run(): Promise<Waited> {
    const first = this.#begin();
    const goOn = (): Promise<Waited> => this.#goOn(first);
    return first.then((tried) => (tried.ok ? this.#granted(tried) : goOn()), goOn);
  }

  /** Tries again and again. */
  async #goOn(first: Promise<BackendHandle | AcquireFailure>): Promise<Waited> {
    try {
      let trying = first;
      for (let tries = 1; ; tries++) {
        const tried = await this.#faultOr(trying);
        if (tried instanceof LockError) this.#fault = tried;
        else if (tried.ok) return this.#granted(tried);
        else if (this.#waits && !this.#isWaiting) this.#beginToWait();
        if (!(await this.#mayTryAgain(tried, tries))) return this.#inVain(tried, tries);
        trying = this.#try();
      }
    } catch (error) {
      if (error instanceof LockError) this.#host.onFailed(this.#wanted, this.#wait, error);
      throw error;
    } finally {
      this.#end();
    }
  }

  #granted(result: BackendHandle): Waited {
    const { waitedMs, place } = this.#wait;
    this.#turn = undefined;
    this.#end();
    return { result, waitedMs, place };
  }

  /** Leaves what the call has entered. */
  #end(): void {
    if (this.#isCounted) this.#host.room.leave(this.#wanted.keys);
    if (this.#isWaiting) this.#wanted.nested?.leave();
    this.#isCounted = this.#isWaiting = false;
    this.#turn?.leave();
  }

  get #wait(): Wait {
    return { waitedMs: performance.now() - this.#startedMs, place: this.#turn?.place };
  }

  get #isOver(): boolean {
    return performance.now() >= this.#endMs;
  }

  #begin(): Promise<BackendHandle | AcquireFailure> {
    const { backend, room } = this.#host;
    const { keys, call, nested } = this.#wanted;
    if (this.#isLimited && room.isFullFor(keys)) return Promise.reject(tooManyWaiting(keys));
    if (this.#queues && this.#mayWait) {
      this.#turn = backend.takeTurn?.({ pollMs: call.pollMs, isNested: !!nested });
      // Where others wait it will wait too. So it counts from now on: thousands may come before the first of them is answered.
      if (room.isAwaited(keys)) this.#count();
    }
    return this.#try();
  }

  #try(): Promise<BackendHandle | AcquireFailure> {
    const { keys, call } = this.#wanted;
    const ttlMs = Math.min(call.ttlMs, call.maxHoldMs ?? Infinity);
    return this.#host.attempt({ keys, ttlMs, signal: call.signal, turn: this.#turn });
  }

  /** Resolves to the fault of an attempt if the call may try again. */
  #faultOr(trying: Promise<BackendHandle | AcquireFailure>): Promise<Tried> {
    return trying.catch((error: unknown) => {
      const mayPass = error instanceof LockError && MAY_PASS.has(error.code) && !error.context.closed;
      if (mayPass && !this.#host.shutdown.aborted) return error;
      throw error;
    });
  }

  #beginToWait(): void {
    const { room } = this.#host;
    const { keys, nested } = this.#wanted;
    const isFull = this.#isLimited && !this.#isCounted && (room.isFull || room.isFullFor(keys));
    if (!this.#mayWait || isFull) throw tooManyWaiting(keys, this.#fault);
    if (nested?.closesCycle()) throw deadlock(keys, nested.heldKeys);
    if (this.#queues && !this.#isCounted) this.#count();
    nested?.enter();
    this.#isWaiting = true;
  }

  #count(): void {
    this.#host.room.enter(this.#wanted.keys);
    this.#isCounted = true;
  }

  /**
   * While the server owes the reply to the last try, no further one is sent: it would only wait behind the first. No wake
   * ends the pause then: a turn stays woken until its next try, so the loop would never let go of the process.
   */
  async #mayTryAgain(tried: AcquireFailure | LockError, tries: number): Promise<boolean> {
    while (!this.#isOver) {
      const ms = pauseMs(tried, this.#wanted.call, tries);
      await this.#pause(Math.min(ms, this.#endMs - performance.now(), MAX_DURATION_MS), isOwed(tried));
      if (!isOwed(tried)) return true;
    }
    return false;
  }

  /** Waits for `ms`, or until the turn may have come. Rejects once a signal has aborted, or a lock around the call is lost. */
  async #pause(ms: number, isOwed: boolean): Promise<void> {
    const { shutdown } = this.#host;
    const { call, nested } = this.#wanted;
    const turn = isOwed ? undefined : this.#turn;
    const signals = [...(call.signal ? [call.signal] : []), shutdown, ...(nested?.lossSignals ?? [])];
    await pause(ms, { signals, onBegin: (end) => turn?.onWake(end) });
    turn?.onWake(undefined);
    const by = signals.find(({ aborted }) => aborted);
    if (!by) return;
    if (by === call.signal || by === shutdown) throw waitAborted(by, by === shutdown);
    throw by.reason as LockError;
  }

  #inVain(tried: AcquireFailure | LockError, tries: number): Waited {
    if (tried instanceof LockError) throw triedInVain(tried, tries, this.#wait);
    return { result: tried, fault: this.#fault, ...this.#wait };
  }
}

/**
 * Returns how long the call waits. Calls of several processes that nest their locks in opposite order wait for each other,
 * and nobody sees it. So one of them has less time, gives up first, and lets the other go on.
 */
const patienceMs = ({ timeoutMs }: ResolvedLockCall, nested: NestedWait | undefined): number =>
  nested ? timeoutMs * (1 - Math.random() / 2) : timeoutMs;

const waitAborted = ({ reason: cause }: AbortSignal, isShutdown: boolean): LockError => {
  const by = isShutdown ? 'because the app is shutting down' : 'by its signal';
  return new LockError({ code: 'Aborted', message: `Waiting for the lock was aborted ${by}.`, cause });
};

/** Returns the pause until the next try. Without a queue it ends no later than the other owner's lock. */
function pauseMs(tried: Tried, call: ResolvedLockCall, tries: number): number {
  const { lookAgainMs, remainingMs = Infinity } = detailOf(tried) ?? {};
  return lookAgainMs ?? Math.min(backoffMs(call, tries - 1), remainingMs + 1);
}

/**
 * Returns the pause after a failed try. It doubles each time up to a second, and half of it is random, so that callers do
 * not try all at once.
 */
function backoffMs({ retryDelayMs }: ResolvedLockCall, retries: number): number {
  const grown = retryDelayMs * 2 ** Math.min(retries, 31);
  const full = Math.min(grown, Math.max(LONGEST_PAUSE_MS, retryDelayMs));
  return Math.max(1, Math.round(full * (1 - Math.random() / 2)));
}

/** Returns an error that adds how long the call tried. Its cause is the fault of the last try. */
function triedInVain(fault: LockError, tries: number, { waitedMs }: Wait): LockError {
  if (tries === 1) return fault;
  const { code, summary, hint, context } = fault;
  return new LockError({
    code,
    message: `${summary} The call has tried for ${Math.round(waitedMs)} ms.`,
    hint,
    cause: fault,
    context,
  });
}
