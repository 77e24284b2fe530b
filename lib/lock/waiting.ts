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

/** What a pause rejects with. */
const ENDS_A_WAIT: ReadonlySet<LockErrorCode> = new Set<LockErrorCode>(['Aborted', 'LockLost']);

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

export interface WaitingOptions {
  readonly keys: readonly string[];
  readonly call: ResolvedLockCall;
  readonly backend: LockBackend;
  /** Aborts when the app shuts down. */
  readonly shutdown: AbortSignal;
  readonly room: WaitingRoom;
  /**
   * Set for a call that holds locks. It is not refused for those that wait, and goes before those that hold none: they may
   * wait for its lock.
   */
  readonly nested: NestedWait | undefined;
  attempt(options: AcquireOptions): Promise<BackendHandle | AcquireFailure>;
  /** Called when a signal, or the loss of a lock around the call, has ended the wait. */
  onAborted(wait: Wait, error: LockError): void;
  /** Called when the wait is refused: too many calls wait already, or it would never end. */
  onRefused(wait: Wait, error: LockError): void;
}

/**
 * Tries until the lock is granted or the time is over: in the queue with `fair`, else by repeated attempts. A fault of Redis
 * counts as a failed try.
 */
export async function waitForLock(options: WaitingOptions): Promise<Waited> {
  const { keys, call, room, nested } = options;
  // A call that is aborted already takes no place in the queue. Giving the place up would cost a command.
  const waits = call.onContention === 'throw' && call.timeoutMs > 0 && !call.signal?.aborted;
  const queues = waits && call.fair;
  const startedMs = performance.now();
  let turn: LockTurn | undefined;
  const wait = (): Wait => ({ waitedMs: performance.now() - startedMs, place: turn?.place });
  const refuse = (error: LockError): never => {
    options.onRefused(wait(), error);
    throw error;
  };
  const isLimited = queues && !nested;
  if (isLimited && room.isFullFor(keys)) refuse(tooManyWaiting(keys));
  // Its key may be free, so a call in a full process makes one attempt, without a place in the queue.
  const mayWait = !(isLimited && room.isFull);
  if (queues && mayWait) turn = options.backend.takeTurn?.({ pollMs: call.pollMs, isNested: !!nested });
  const ttlMs = Math.min(call.ttlMs, call.maxHoldMs ?? Infinity);
  const endMs = startedMs + (call.onContention === 'throw' ? patienceMs(call, nested) : 0);
  const isOver = (): boolean => performance.now() >= endMs;
  let fault: LockError | undefined;
  let isGranted = false;
  let isWaiting = false;
  // Where others wait it will wait too. So it counts from now on: thousands may come before the first of them is answered.
  let isCounted = queues && mayWait && room.isAwaited(keys);
  if (isCounted) room.enter(keys);
  try {
    for (let tries = 1; ; tries++) {
      const tried = await tryOnce(options, { keys, ttlMs, signal: call.signal, turn });
      if (tried instanceof LockError) fault = tried;
      else if (tried.ok) {
        isGranted = true;
        return { result: tried, ...wait() };
      }
      if (waits && !isWaiting && !(tried instanceof LockError)) {
        if (!mayWait || (isLimited && !isCounted && (room.isFull || room.isFullFor(keys))))
          refuse(tooManyWaiting(keys, fault));
        if (nested?.closesCycle()) refuse(deadlock(keys, nested.heldKeys));
        if (queues && !isCounted) room.enter(keys);
        isCounted = queues;
        nested?.enter();
        isWaiting = true;
      }
      if (!isOver()) {
        // While the server owes the reply to the last try, no further one is sent: it would only wait behind the first.
        // No wake ends the pause then: a turn stays woken until its next try, so the loop would never let go of the process.
        do {
          const ms = Math.min(pauseMs(tried, call, tries), endMs - performance.now(), MAX_DURATION_MS);
          await pauseInTurn(options, isOwed(tried) ? undefined : turn, ms);
        } while (isOwed(tried) && !isOver());
        if (!isOwed(tried)) continue;
      }
      if (tried instanceof LockError) throw triedInVain(tried, tries, wait());
      return { result: tried, fault, ...wait() };
    }
  } catch (error) {
    if (error instanceof LockError && ENDS_A_WAIT.has(error.code)) options.onAborted(wait(), error);
    throw error;
  } finally {
    if (isCounted) room.leave(keys);
    if (isWaiting) nested?.leave();
    if (!isGranted) turn?.leave();
  }
}

/**
 * Returns how long the call waits. Calls of several processes that nest their locks in opposite order wait for each other,
 * and nobody sees it. So one of them has less time, gives up first, and lets the other go on.
 */
const patienceMs = ({ timeoutMs }: ResolvedLockCall, nested: NestedWait | undefined): number =>
  nested ? timeoutMs * (1 - Math.random() / 2) : timeoutMs;

async function tryOnce({ attempt, shutdown }: WaitingOptions, options: AcquireOptions): Promise<Tried> {
  try {
    return await attempt(options);
  } catch (error) {
    const mayPass = error instanceof LockError && MAY_PASS.has(error.code) && !error.context.closed;
    if (mayPass && !shutdown.aborted) return error;
    throw error;
  }
}

/** Waits for `ms`, or until the turn may have come. Rejects once a signal has aborted, or a lock around the call is lost. */
async function pauseInTurn(
  { call, shutdown, nested }: WaitingOptions,
  turn: LockTurn | undefined,
  ms: number,
): Promise<void> {
  const signals = [...(call.signal ? [call.signal] : []), shutdown, ...(nested?.lossSignals ?? [])];
  await pause(ms, { signals, onBegin: (end) => turn?.onWake(end) });
  turn?.onWake(undefined);
  const by = signals.find(({ aborted }) => aborted);
  if (!by) return;
  if (by === call.signal || by === shutdown) throw waitAborted(by, by === shutdown);
  throw by.reason as LockError;
}

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
