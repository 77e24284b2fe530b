import { Bag, type InBag } from '../core/bag.js';
import { monotonicMs } from '../core/clock.js';
import { IdleSweep } from '../core/idle-sweep.js';
import type { LockHandle, ExtendResult, ReleaseResult } from './lock.types.js';

const SWEEP_AT_LEAST = 1_024;

interface Tracked extends InBag {
  readonly lock: LockHandle;
  /** By `monotonicMs()`. */
  deadlineMs: number;
}

/**
 * The handles that `acquire()` has returned and that are not released yet. A shutdown waits for them, and may release
 * those that are left.
 */
export class TrackedHandles {
  readonly #live = new Bag<Tracked>();
  #sweepAt = SWEEP_AT_LEAST;
  readonly #idleSweep = new IdleSweep(() => this.#sweep());
  #onEmpty: (() => void) | undefined;

  /**
   * Returns a handle that is no longer tracked once it is released. Return it to the caller in place of `lock`.
   * `deadlineMs` is when the lock expires, as `monotonicMs()` counts.
   */
  track(lock: LockHandle, deadlineMs: number): LockHandle {
    if (this.#live.size >= this.#sweepAt) this.#sweep();
    const tracked = { lock, deadlineMs, place: -1 };
    this.#live.add(tracked);
    this.#idleSweep.start();
    return new TrackedHandle(tracked, this);
  }

  /** Returns what is tracked of a lock that is used by its id. It looks through all, since few calls have only the id. */
  find(lockId: string): Tracked | undefined {
    return this.#live.find(({ lock }) => lock.lockId === lockId);
  }

  ended(tracked: Tracked): void {
    if (this.#live.delete(tracked) && this.#live.size === 0) this.#onEmpty?.();
  }

  /** Resolves when no handle is live any more. */
  async emptied(): Promise<void> {
    this.#sweep();
    if (this.#live.size > 0) await new Promise<void>((resolve) => (this.#onEmpty = resolve));
  }

  /** Returns all that are live. */
  all(): LockHandle[] {
    return this.#live.toArray().map(({ lock }) => lock);
  }

  /** Forgets handles that were never released and whose TTL is over. Runs when the list has doubled, and when idle. */
  #sweep(): number {
    const nowMs = monotonicMs();
    for (const tracked of this.#live.filter(({ deadlineMs }) => deadlineMs <= nowMs)) this.ended(tracked);
    this.#sweepAt = Math.max(SWEEP_AT_LEAST, 2 * this.#live.size);
    return this.#live.size;
  }
}

class TrackedHandle implements LockHandle {
  readonly ok = true;
  readonly lockId: string;
  readonly fence: string;
  readonly #tracked: Tracked;
  readonly #locks: TrackedHandles;

  constructor(tracked: Tracked, locks: TrackedHandles) {
    this.lockId = tracked.lock.lockId;
    this.fence = tracked.lock.fence;
    this.#tracked = tracked;
    this.#locks = locks;
  }

  get fences(): Readonly<Record<string, string>> {
    return this.#tracked.lock.fences;
  }

  get expiresAtMs(): number {
    return this.#tracked.lock.expiresAtMs;
  }

  async release(signal?: AbortSignal): Promise<ReleaseResult> {
    const result = await this.#tracked.lock.release(signal);
    this.#locks.ended(this.#tracked);
    return result;
  }

  async extend(ttlMs: number, signal?: AbortSignal): Promise<ExtendResult> {
    const sentAtMs = monotonicMs();
    const result = await this.#tracked.lock.extend(ttlMs, signal);
    if (result.ok) this.#tracked.deadlineMs = sentAtMs + ttlMs;
    else this.#locks.ended(this.#tracked);
    return result;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#tracked.lock[Symbol.asyncDispose]();
    this.#locks.ended(this.#tracked);
  }
}
