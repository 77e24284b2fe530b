import { setImmediate as nextTurn } from 'node:timers/promises';
import { Injectable, type OnModuleDestroy } from '@nestjs/common';
import { onAbort } from '../core/abort-listeners.js';
import { Intake } from '../core/intake.js';
import type { Page } from '../core/page.js';
import { settleWithin } from '../core/settle-within.js';
import type { Emit } from '../telemetry/telemetry.types.js';
import type { CallOptions } from '../core/validate.js';
import { lockAround, type LockContext, lockFrames } from './current-lock.js';
import { detailOf, type LockBackend } from './lock.backend.js';
import { acquisitionTimeout, alreadyHeld, grantedTooLate, LockError, shuttingDown } from './lock.errors.js';
import { type BackendHandle, momentNow, msUntil, OpenHandles } from './lock.handle.js';
import {
  type ContentionHandler,
  type LockOptions,
  type ResolvedLockCall,
  type ResolvedLockDefaults,
  usualCall,
} from './lock.options.js';
import type {
  AcquireFailure,
  AcquireOptions,
  AcquireResult,
  BackendCapabilities,
  ExtendOptions,
  ExtendResult,
  ForceReleaseOptions,
  ForceReleaseResult,
  IsLockedOptions,
  ListedLock,
  LockHolder,
  LockInfo,
  LockListOptions,
  LookupOptions,
  RawLockInfo,
  ReleaseOptions,
  ReleaseResult,
  WaitingCall,
} from './lock.types.js';
import { cannot, LockOperators } from './lock.operators.js';
import { LockReports } from './lock.reports.js';
import { NestedWait } from './nested-waits.js';
import { type Body, LockRuns, type LockShutdown } from './lock.runs.js';
import { validateKeys, validateLock } from './lock.validate.js';
import { WaitingRoom } from '../core/waiting-room.js';
import { type Waited, waitForLock, type WaitingHost, type WantedLock } from './waiting.js';

export interface LockServiceOptions {
  readonly lock: ResolvedLockDefaults;
  readonly shutdown: LockShutdown;
  readonly emit?: Emit | undefined;
}

/**
 * Runs code under locks. `lock()` waits for a lock, runs a function under it, keeps the lock alive meanwhile and releases
 * it. `acquire()` makes one attempt and returns a handle.
 *
 * A TTL alone does not exclude others for certain: a process that was paused may write after it has lost the lock. The
 * `fence` closes this gap, when the resource refuses a fence that is lower than the highest one it has seen.
 *
 * @example
 * await this.locks.lock(async (lock) => this.charge(order, lock.fence), { key: `order:${order.id}` });
 */
@Injectable()
export class LockService implements OnModuleDestroy {
  readonly #handles = new OpenHandles();
  readonly #runs: LockRuns;
  #attempts = 0;
  #onNoAttempt: (() => void) | undefined;
  readonly #shutdown = new AbortController();
  readonly #host: WaitingHost;
  readonly #intake = new Intake();
  readonly #backend: LockBackend;
  readonly #options: LockServiceOptions;
  readonly #usual: ResolvedLockCall;
  readonly #reports: LockReports;
  readonly #operators: LockOperators;

  /** @internal The module creates the service. */
  constructor(backend: LockBackend, options: LockServiceOptions) {
    this.#backend = backend;
    this.#options = options;
    this.#reports = new LockReports(options.emit);
    this.#usual = usualCall(options.lock);
    this.#host = {
      backend,
      shutdown: this.#shutdown.signal,
      room: new WaitingRoom(options.lock.maxWaiting),
      attempt: (each) => this.#attempt(each),
      onFailed: (wanted, wait, error) => this.#reports.failed(error, wanted, wait),
    };
    // It stays, so that the first of those that wait adds no listener, and the last one removes none: Node is slow at both.
    onAbort(this.#shutdown.signal, { handleEvent: () => {} });
    this.#runs = new LockRuns(
      backend,
      options.emit &&
        (({ keys, heldMs }) => this.#reports.tell(keys, { waitedMs: heldMs }, 'LockLost', 'lost')),
    );
    this.#operators = new LockOperators(backend, this.#runs, this.#handles, options.emit);
  }

  /** @internal The TTL, in ms, of a call without `ttlMs`. */
  get defaultTtlMs(): number {
    return this.#options.lock.ttlMs;
  }

  /** @internal How long the client of a stream may stay away, in ms, in a call without `idleMs`. */
  get defaultIdleMs(): number {
    return this.#options.lock.idleMs;
  }

  /** What the backend can do, and whose clock decides when a lock expires. */
  get capabilities(): BackendCapabilities {
    return this.#backend.capabilities;
  }

  /**
   * Makes one attempt. Returns a handle, or `{ ok: false, reason: 'locked' }` if somebody else holds the lock. Nothing
   * extends the lock of a handle: call `extend()` in time, or use `lock()`.
   *
   * @throws LockError InvalidArgument, ServiceUnavailable, NetworkTimeout, AuthFailed, Aborted, Internal
   * @example
   * const lock = await locks.acquire({ key: 'report', ttlMs: minutes(1) });
   * if (lock.ok) {
   *   await using held = lock; // released at the end of the block
   * }
   */
  acquire(options: AcquireOptions): Promise<AcquireResult> {
    return this.#attempt(options, this.#handles);
  }

  /** Releases a lock by its id. Returns `{ ok: false }` if the lock is gone or another owner has it. */
  async release(options: ReleaseOptions): Promise<ReleaseResult> {
    const handle = this.#handles.find(options?.lockId);
    const result = await this.#backend.release(handle ? { ...options, held: handle.held } : options);
    if (handle) this.#handles.delete(handle);
    return result;
  }

  /**
   * Replaces the rest of a lock's life by `ttlMs`. Returns `{ ok: false }` if the lock is gone or another owner has it.
   * A lock that has expired never comes back.
   */
  async extend(options: ExtendOptions): Promise<ExtendResult> {
    const sentAt = momentNow();
    const result = await this.#backend.extend(options);
    if (result.ok) this.#handles.find(options.lockId)?.extended(sentAt, options.ttlMs, result.expiresAtMs);
    return result;
  }

  /** Returns whether anybody holds the key now. The answer may be outdated when you read it: to act on it, acquire instead. */
  isLocked(options: IsLockedOptions): Promise<boolean> {
    return this.#backend.isLocked(options);
  }

  /** Describes a live lock, found by key or by id. The key and the id are hashed. Returns null when there is none. */
  lookup(options: LookupOptions): Promise<LockInfo | null> {
    return this.#backend.lookup(options);
  }

  /** Like `lookup`, with the key and the id. Anyone who reads the id can release the lock. */
  getByKeyRaw(key: string, options?: CallOptions): Promise<RawLockInfo | null> {
    return this.#backend.getByKeyRaw(key, options);
  }

  /** Like `lookup`, with the key and the id. Anyone who reads the id can release the lock. */
  getByIdRaw(lockId: string, options?: CallOptions): Promise<RawLockInfo | null> {
    return this.#backend.getByIdRaw(lockId, options);
  }

  /**
   * Lists the locks that are held, page by page. On Redis it walks over all keys of the server, those of other programs too, at
   * most 5,000 a second in each process.
   *
   * @throws LockError InvalidArgument for a backend that cannot, or for a cursor of another list
   */
  async list(options?: LockListOptions): Promise<Page<ListedLock>> {
    return this.#backend.list?.(options) ?? cannot();
  }

  /** Returns the calls that wait for a lock, in the order in which they get it: the first 1,000. */
  async waiters(key: string, options?: CallOptions): Promise<WaitingCall[]> {
    return this.#backend.waiters?.(key, options) ?? cannot();
  }

  /**
   * Ends a lock by hand, with all keys that were locked together, and lets the next waiter in. `fence` is that of the lock which
   * you have seen: if another has it meanwhile, nothing happens, and its fence is returned.
   *
   * The holder learns of it by a `LockLost`: at its next renewal, or at once (`reason: 'revoked'`) with the option
   * `operations`. Its body may go on until then, and longer if it hangs: only a resource that checks fences is safe.
   */
  forceRelease(key: string, options: ForceReleaseOptions): Promise<ForceReleaseResult> {
    return this.#operators.forceRelease(key, options);
  }

  /**
   * Asks all processes of the app who holds a lock, and returns what they answer within 300 ms: a process that hangs does not.
   *
   * @throws LockError InvalidArgument on Redis without the option `operations`
   */
  holder(key: string, options: CallOptions = {}): Promise<LockHolder[]> {
    return this.#operators.holder(key, options);
  }

  /**
   * Waits for the lock, runs `fn` under it, keeps it alive meanwhile, and releases it. Returns what `fn` returns.
   *
   * @param fn - is called with a LockContext. Pass its `fence` to the resource that you write to. In a long function
   *   watch its `signal`, which aborts when the lock is lost.
   * @throws whatever `fn` throws, unchanged
   * @throws LockError AcquisitionTimeout: the call did not get the lock within `timeoutMs`.
   *   Deadlock: the call holds a lock, for which the holder of this one waits, itself or through others.
   *   TooManyWaiting: as many calls of this process wait for the lock as `maxWaiting` allows.
   *   LockLost: `fn` has returned, but the lock was lost before.
   *   AlreadyHeld: the call is made inside a `lock()` for one of its keys, and has no `reentrant`, or has a key that the
   *   outer call does not hold.
   *   Besides the faults of `acquire`.
   */
  lock<T>(
    fn: (lock: LockContext) => T | Promise<T>,
    options: LockOptions & { onContention: 'skip' },
  ): Promise<T | undefined>;
  lock<T, U>(
    fn: (lock: LockContext) => T | Promise<T>,
    options: LockOptions & { onContention: (...busy: Parameters<ContentionHandler>) => U | Promise<U> },
  ): Promise<T | U>;
  lock<T>(
    fn: (lock: LockContext) => T | Promise<T>,
    options: LockOptions & { onContention?: 'throw' },
  ): Promise<T>;
  /** @internal `place` is the decorated method, for the log. */
  lock<T>(fn: (lock: LockContext) => T | Promise<T>, options: LockOptions, place?: string): Promise<unknown>;
  lock<T>(fn: (lock: LockContext) => T | Promise<T>, options: LockOptions, place?: string): Promise<unknown> {
    const turn = this.#intake.enter();
    // An async function that waits keeps all of its variables, and thousands may wait here.
    return turn ? turn.then(() => this.#lock(fn, options, place)) : this.#lock(fn, options, place);
  }

  async #lock<T>(fn: Body<T>, options: LockOptions, place: string | undefined): Promise<unknown> {
    const { keys, call } = validateLock(fn, options, this.#usual);
    // While the app shuts down, a job with `onContention: 'skip'` is skipped and does not fail.
    if (call.onContention === 'skip' && this.#shutdown.signal.aborted) return undefined;
    const outer = lockAround(this.#backend, keys);
    if (outer) return this.#reenter(outer, keys, call.reentrant, fn);
    const around = lockFrames.find();
    const nested = around && new NestedWait(this.#backend, keys, around);
    const wanted = { keys, call, nested, place };
    const waited = await waitForLock(this.#host, wanted);
    if (!waited.result.ok) return this.#contended(wanted, waited);
    this.#reports.tell(keys, waited);
    // In this function, since each async function makes promises.
    const lease = this.#runs.begin(waited.result, call, place);
    let value: T;
    try {
      const running = lockFrames.run(lease, () => fn(lease.context));
      value = Object(running) === running ? await running : (running as T); // What is no object is no promise.
    } catch (error) {
      await this.#runs.giveBack(lease, call.minHoldOnFailureMs ?? call.minHoldMs);
      throw error; // And not the loss.
    }
    const lost = await this.#runs.giveBack(lease, call.minHoldMs);
    if (lost) throw lost;
    return value;
  }

  /**
   * @internal Called when a lost connection is back. The server may have lost its data. Renewing all locks at once shows
   * which of them are gone, and aborts the signals of their bodies.
   */
  renewAll(): void {
    for (const lease of this.#runs.watchdog.leases()) lease.renewNow();
  }

  /** @internal For tests: marks a lock as lost at once, as its next renewal would do. */
  lose(lockId: string): void {
    this.#runs.lose(lockId, 'taken', 'another owner has it, or it was deleted');
  }

  /** @internal Ends a lock whose stream nobody reads. Returns the loss. */
  abandon(lockId: string, idleMs: number): LockError | undefined {
    return this.#runs.lose(lockId, 'idle', `nobody has read its stream for ${idleMs} ms`);
  }

  /**
   * Shuts down in this order: refuses new locks, aborts the calls that wait, and gives running bodies `drainMs` to
   * finish. Locks that are still held after that expire by their TTL, or are released if `shutdown.heldLocks` is
   * 'release'. The connections close in a later phase of Nest's shutdown, `onApplicationShutdown`.
   */
  async onModuleDestroy(): Promise<void> {
    const { drainMs } = this.#options.shutdown;
    this.#shutdown.abort();
    if (this.#attempts > 0) await new Promise<void>((resolve) => (this.#onNoAttempt = resolve));
    await nextTurn(); // A lock that was granted just now reaches its body within this turn of the event loop.
    // A body whose lock is lost is not waited for: it must stop anyway.
    const held = this.#runs.watchdog.leases().filter(({ lost }) => !lost);
    const over = held.map((lease) => new Promise<void>((resolve) => (lease.onOver = resolve)));
    await settleWithin(drainMs, [this.#handles.emptied(), ...over]);

    await this.#runs.end(held, [...this.#handles.items], this.#options.shutdown);
    await Promise.all([this.#runs.retries.flush(), this.#backend.flush?.()]);
  }

  /** Makes one attempt. A grant that arrives after the shutdown began, or after its TTL, is released again. */
  #attempt(options: AcquireOptions, handles?: OpenHandles): Promise<BackendHandle | AcquireFailure> {
    if (this.#shutdown.signal.aborted) return Promise.reject(shuttingDown());
    const asked = this.#backend.acquire(options) as Promise<BackendHandle | AcquireFailure>;
    this.#attempts++;
    return asked.then(
      (result) => {
        const isLate = result.ok && (this.#shutdown.signal.aborted || msUntil(result.held.deadline) <= 0);
        if (isLate) return this.#giveBackLate(result, options);
        this.#attempted();
        if (result.ok) handles?.add(result);
        return result;
      },
      (error: unknown) => {
        this.#attempted();
        throw error;
      },
    );
  }

  async #giveBackLate(handle: BackendHandle, options: AcquireOptions): Promise<never> {
    await handle[Symbol.asyncDispose]();
    this.#attempted();
    if (this.#shutdown.signal.aborted) throw shuttingDown();
    throw grantedTooLate(validateKeys(options), options.ttlMs);
  }

  #attempted(): void {
    if (--this.#attempts === 0) this.#onNoAttempt?.();
  }

  /** Runs `fn` under a lock that the caller holds already. This call neither extends nor releases the lock. */
  async #reenter<T>(outer: LockContext, keys: readonly string[], allowed: boolean, fn: Body<T>): Promise<T> {
    outer.assertHeld();
    if (!allowed || !keys.every((key) => outer.keys.includes(key))) {
      this.#reports.tell(outer.keys, { waitedMs: 0 }, 'AlreadyHeld', 'already_held');
      throw alreadyHeld(outer.keys);
    }
    const result = await fn(outer);
    outer.assertHeld();
    return result;
  }

  #contended({ keys, call, nested }: WantedLock, waited: Waited): unknown {
    const { result, fault: cause, waitedMs } = waited;
    const { onContention, timeoutMs } = call;
    const heldKeys = nested?.heldKeys ?? [];
    if (onContention === 'skip') return undefined;
    const remainingMs = detailOf(result)?.remainingMs;
    if (onContention !== 'throw')
      return onContention(keys[0] as string, keys, { remainingMs: remainingMs ?? 0 });
    this.#reports.tell(keys, waited, 'AcquisitionTimeout', 'timeout');
    throw acquisitionTimeout(keys, { waitedMs, timeoutMs, remainingMs, heldKeys, cause });
  }
}
