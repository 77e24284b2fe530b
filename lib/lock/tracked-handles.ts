import { monotonicMs } from '../core/clock.js';
import { IdleSweep } from '../core/idle-sweep.js';
import type { LockHandle, ExtendResult, ReleaseResult } from './lock.types.js';

const SWEEP_AT_LEAST = 1_024;

/**
 * The handles that `acquire()` has returned and that are not released yet. A shutdown waits for them, and may release
 * those that are left.
 */
export class TrackedHandles {
  readonly #live = new Map<string, { lock: LockHandle; deadlineMs: number }>();
  #sweepAt = SWEEP_AT_LEAST;
  readonly #idleSweep = new IdleSweep(() => this.#sweep());
  #onEmpty: (() => void) | undefined;

  /**
   * Returns a handle that is no longer tracked once it is released. Return it to the caller in place of `lock`.
   * `deadlineMs` is when the lock expires, as `monotonicMs()` counts.
   */
  track(lock: LockHandle, deadlineMs: number): LockHandle {
    if (this.#live.size >= this.#sweepAt) this.#sweep();
    this.#live.set(lock.lockId, { lock, deadlineMs });
    this.#idleSweep.start();
    return new TrackedHandle(lock, this);
  }

  extended(lockId: string, deadlineMs: number): void {
    const tracked = this.#live.get(lockId);
    if (tracked) tracked.deadlineMs = deadlineMs;
  }

  ended(lockId: string): void {
    if (this.#live.delete(lockId) && this.#live.size === 0) this.#onEmpty?.();
  }

  /** Resolves when no handle is live any more. */
  async emptied(): Promise<void> {
    this.#sweep();
    if (this.#live.size > 0) await new Promise<void>((resolve) => (this.#onEmpty = resolve));
  }

  *[Symbol.iterator](): Iterator<LockHandle> {
    for (const { lock } of this.#live.values()) yield lock;
  }

  /** Forgets handles that were never released and whose TTL is over. Runs when the map has doubled, and when idle. */
  #sweep(): number {
    const nowMs = monotonicMs();
    for (const [lockId, { deadlineMs }] of this.#live) if (deadlineMs <= nowMs) this.ended(lockId);
    this.#sweepAt = Math.max(SWEEP_AT_LEAST, 2 * this.#live.size);
    return this.#live.size;
  }
}

class TrackedHandle implements LockHandle {
  readonly ok = true;
  readonly lockId: string;
  readonly fence: string;
  readonly #lock: LockHandle;
  readonly #locks: TrackedHandles;

  constructor(lock: LockHandle, locks: TrackedHandles) {
    this.lockId = lock.lockId;
    this.fence = lock.fence;
    this.#lock = lock;
    this.#locks = locks;
  }

  get fences(): Readonly<Record<string, string>> {
    return this.#lock.fences;
  }

  get expiresAtMs(): number {
    return this.#lock.expiresAtMs;
  }

  async release(signal?: AbortSignal): Promise<ReleaseResult> {
    const result = await this.#lock.release(signal);
    this.#locks.ended(this.lockId);
    return result;
  }

  async extend(ttlMs: number, signal?: AbortSignal): Promise<ExtendResult> {
    const sentAtMs = monotonicMs();
    const result = await this.#lock.extend(ttlMs, signal);
    if (result.ok) this.#locks.extended(this.lockId, sentAtMs + ttlMs);
    else this.#locks.ended(this.lockId);
    return result;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#lock[Symbol.asyncDispose]();
    this.#locks.ended(this.lockId);
  }
}
