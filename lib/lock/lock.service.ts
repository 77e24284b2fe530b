import { setImmediate as nextTurn } from 'node:timers/promises';
import { Injectable, Logger, type OnModuleDestroy } from '@nestjs/common';
import { settleWithin } from '../core/settle-within.js';
import type { Emit } from '../telemetry/telemetry.types.js';
import { type CallOptions, invalidOption } from '../core/validate.js';
import { findFrame, type LockFrame } from './current-lock.js';
import type { Lease, LockContext } from './lease.js';
import { detailOf, type LockBackend } from './lock.backend.js';
import {
  acquisitionTimeout,
  alreadyHeld,
  grantedTooLate,
  LockError,
  type LockErrorCode,
  shuttingDown,
} from './lock.errors.js';
import { type BackendHandle, momentNow, msUntil, OpenHandles } from './lock.handle.js';
import {
  type LockCallOptions,
  MAX_RETRIES_UNUSED,
  type ResolvedLockCall,
  type ResolvedLockDefaults,
  resolveLockCall,
} from './lock.options.js';
import type {
  LockHandle,
  AcquireFailure,
  AcquireOptions,
  AcquireResult,
  BackendCapabilities,
  ExtendOptions,
  ExtendResult,
  IsLockedOptions,
  LockInfo,
  LockKeyOption,
  LookupOptions,
  RawLockInfo,
  ReleaseOptions,
  ReleaseResult,
} from './lock.types.js';
import { LockRuns } from './lock.runs.js';
import { validateKeys } from './lock.validate.js';
import { type Wait, type Waited, waitForLock } from './waiting.js';

export interface LockServiceOptions {
  readonly lock: ResolvedLockDefaults;
  readonly shutdown: { readonly drainMs: number; readonly heldLocks: 'expire' | 'release' };
  /**
   * Reports what no single operation of the backend shows: a wait that timed out or was aborted, a nested call that was
   * refused, and a lock that was lost.
   */
  readonly emit?: Emit | undefined;
}

/** Options of `lock()`. */
export type LockOptions = LockCallOptions & LockKeyOption;

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
  readonly #logger = new Logger('SyncGuard');
  readonly #handles = new OpenHandles();
  readonly #runs: LockRuns;
  #attempts = 0;
  #onNoAttempt: (() => void) | undefined;
  readonly #shutdown = new AbortController();

  readonly #backend: LockBackend;
  readonly #options: LockServiceOptions;
  #hasWarnedOfMaxRetries = false;

  /** @internal The module creates the service. */
  constructor(backend: LockBackend, options: LockServiceOptions) {
    this.#backend = backend;
    this.#options = options;
    this.#runs = new LockRuns(backend, options.emit && ((lease) => this.#tellLost(lease)));
  }

  /** @internal The TTL, in ms, of a call without `ttlMs`. */
  get defaultTtlMs(): number {
    return this.#options.lock.ttlMs;
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
  async acquire(options: AcquireOptions): Promise<AcquireResult> {
    const result = await this.#attempt(options);
    return result.ok ? this.#handles.add(result) : result;
  }

  /** Releases a lock by its id. Returns `{ ok: false }` if the lock is gone or another owner has it. */
  async release(options: ReleaseOptions): Promise<ReleaseResult> {
    const result = await this.#backend.release(options);
    const handle = this.#handles.find(options.lockId);
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
   * Waits for the lock, runs `fn` under it, keeps it alive meanwhile, and releases it. Returns what `fn` returns.
   *
   * @param fn - is called with a LockContext. Pass its `fence` to the resource that you write to. In a long function
   *   watch its `signal`, which aborts when the lock is lost.
   * @throws whatever `fn` throws, unchanged
   * @throws LockError AcquisitionTimeout: the call did not get the lock within `timeoutMs`, or with `fair: false` within
   *   `maxRetries`.
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
    options: LockOptions & { onContention: (key: string, keys: readonly string[]) => U | Promise<U> },
  ): Promise<T | U>;
  lock<T>(
    fn: (lock: LockContext) => T | Promise<T>,
    options: LockOptions & { onContention?: 'throw' },
  ): Promise<T>;
  lock<T>(fn: (lock: LockContext) => T | Promise<T>, options: LockOptions): Promise<unknown>;
  async lock<T>(fn: (lock: LockContext) => T | Promise<T>, options: LockOptions): Promise<unknown> {
    const { keys, call } = this.#check(fn, options);
    // While the app shuts down, a job with `onContention: 'skip'` is skipped and does not fail.
    if (call.onContention === 'skip' && this.#shutdown.signal.aborted) return undefined;
    const outer = this.#outerOf(keys);
    if (outer)
      return call.reentrant ? this.#reenter(outer.context, keys, fn) : this.#rejectNested(outer.context);
    const waited = await this.#waitFor(keys, call);
    if (!waited.result.ok) return this.#contended(keys, call, waited);
    return this.#runs.run(waited.result, call, fn);
  }

  /**
   * @internal Called when a lost connection is back. The server may have lost its data. Renewing all locks at once shows
   * which of them are gone, and aborts the signals of their bodies.
   */
  renewAll(): void {
    this.#runs.renewAll();
  }

  /** @internal For tests: marks a lock as lost at once, as its next renewal would do. */
  lose(lockId: string): void {
    for (const lease of this.#runs.leases())
      if (lease.handle.lockId === lockId) lease.lose('another owner has it, or it was deleted');
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
    const held = this.#runs.leases().filter(({ lost }) => !lost);
    await settleWithin(drainMs, [this.#handles.emptied(), ...held.map(({ run }) => run)]);

    const leases = held.filter(({ place }) => place >= 0);
    await this.#endHeld(leases, [...leases.map(({ handle }) => handle), ...this.#handles.toArray()]);
    await Promise.all([this.#runs.flush(), this.#backend.flush?.()]);
  }

  /**
   * Handles the locks that are still in use when the drain is over. By default a lock stays until its TTL, so that no
   * other process runs beside a body that has not stopped.
   */
  async #endHeld(leases: readonly Lease[], locks: readonly LockHandle[]): Promise<void> {
    const { drainMs, heldLocks } = this.#options.shutdown;
    for (const lease of leases) lease.lose('the app has shut down');
    if (locks.length === 0) return;
    const count = `${locks.length} lock${locks.length === 1 ? ' is' : 's are'}`;
    const fate = heldLocks === 'release' ? 'They are released now' : 'They expire by their TTLs';
    this.#logger.warn(
      `SHUTDOWN_LOCKS_IN_USE: After ${drainMs} ms of shutdown ${count} still in use. ${fate}. To wait longer, raise \`shutdown.drainMs\`.`,
    );
    if (heldLocks === 'release') await Promise.allSettled(locks.map((lock) => lock.release()));
  }

  /** Makes one attempt. A grant that arrives after the shutdown began, or after its TTL, is released again. */
  async #attempt(options: AcquireOptions): Promise<BackendHandle | AcquireFailure> {
    this.#refuseWhenShutDown();
    this.#attempts++;
    try {
      const result = (await this.#backend.acquire(options)) as BackendHandle | AcquireFailure;
      if (result.ok && this.#isTooLate(result)) await this.#takeBack(result, options);
      return result;
    } finally {
      if (--this.#attempts === 0) this.#onNoAttempt?.();
    }
  }

  #isTooLate({ held }: BackendHandle): boolean {
    return this.#shutdown.signal.aborted || msUntil(held.deadline) <= 0;
  }

  async #takeBack(lock: LockHandle, options: AcquireOptions): Promise<never> {
    await lock[Symbol.asyncDispose]();
    this.#refuseWhenShutDown();
    throw grantedTooLate(validateKeys(options), options.ttlMs);
  }

  /** Returns the innermost lock around the running code that has one of these keys. */
  #outerOf(keys: readonly string[]): LockFrame | undefined {
    return findFrame(
      ({ owner, context }) => owner === this.#backend && context.keys.some((key) => keys.includes(key)),
    );
  }

  /** Waits for the lock: in the queue with `fair`, else by repeated attempts. */
  #waitFor(keys: readonly string[], call: ResolvedLockCall): Promise<Waited> {
    // A call that is aborted already takes no place in the queue. Giving the place up would cost a command.
    const waits = call.fair && call.onContention === 'throw' && call.timeoutMs > 0 && !call.signal?.aborted;
    const turn = waits ? this.#backend.takeTurn?.({ pollMs: call.pollMs }) : undefined;
    return waitForLock({
      keys,
      call,
      turn,
      shutdown: this.#shutdown.signal,
      attempt: (options) => this.#attempt(options),
      onAborted: (wait) => this.#tell('aborted', 'Aborted', keys, wait),
    });
  }

  /** Runs `fn` under a lock that the caller holds already. This call neither extends nor releases the lock. */
  async #reenter<T>(
    outer: LockContext,
    keys: readonly string[],
    fn: (lock: LockContext) => T | Promise<T>,
  ): Promise<T> {
    if (!keys.every((key) => outer.keys.includes(key))) this.#rejectNested(outer);
    outer.assertHeld();
    const result = await fn(outer);
    outer.assertHeld();
    return result;
  }

  #check(fn: unknown, options: LockOptions): { keys: readonly string[]; call: ResolvedLockCall } {
    try {
      if (typeof fn !== 'function') throw invalidOption('lock(fn, options): fn', 'a function', fn);
      // Unknown options are checked first. Otherwise a misspelt `keys` would be reported as a missing key.
      const call = resolveLockCall(options, this.#options.lock, { withKeys: true });
      if (options?.maxRetries !== undefined && call.fair) this.#warnOfMaxRetries();
      return { keys: validateKeys(options ?? {}), call };
    } catch (error) {
      throw LockError.from(error);
    }
  }

  #warnOfMaxRetries(): void {
    if (this.#hasWarnedOfMaxRetries) return;
    this.#hasWarnedOfMaxRetries = true;
    this.#logger.warn(MAX_RETRIES_UNUSED);
  }

  #contended(keys: readonly string[], call: ResolvedLockCall, { result, fault, ...wait }: Waited): unknown {
    if (call.onContention === 'skip') return undefined;
    if (call.onContention !== 'throw') return call.onContention(keys[0] as string, keys);
    this.#tell('timeout', 'AcquisitionTimeout', keys, wait);
    throw acquisitionTimeout(keys, {
      waitedMs: wait.waitedMs,
      timeoutMs: call.timeoutMs,
      remainingMs: detailOf(result)?.remainingMs,
      heldKeys: this.#heldHere(),
      cause: fault,
    });
  }

  /** Returns the keys of all locks around the running code. */
  #heldHere(): string[] {
    const held: string[] = [];
    findFrame(({ owner, context }) => {
      if (owner === this.#backend) held.push(...context.keys);
      return false;
    });
    return held;
  }

  #rejectNested(outer: LockContext): never {
    outer.assertHeld();
    this.#tell('already_held', 'AlreadyHeld', outer.keys, { waitedMs: 0 });
    throw alreadyHeld(outer.keys);
  }

  #tellLost({ keys, heldMs }: Lease): void {
    this.#tell('lost', 'LockLost', keys, { waitedMs: heldMs });
  }

  #tell(
    reason: 'timeout' | 'aborted' | 'already_held' | 'lost',
    code: LockErrorCode,
    keys: readonly string[],
    { waitedMs: durationMs, place }: Wait,
  ): void {
    const facts = { reason, code, keys, durationMs, ...(place === undefined ? {} : { place }) };
    this.#options.emit?.({ feature: 'lock', type: 'lock', result: 'fail', ...facts });
  }

  #refuseWhenShutDown(): void {
    if (this.#shutdown.signal.aborted) throw shuttingDown();
  }
}
