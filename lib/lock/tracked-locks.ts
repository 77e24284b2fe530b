import { monotonicMs } from '../clock.js';
import type { AcquiredLock, ExtendResult, ReleaseResult } from './lock.types.js';

const SWEEP_AT_LEAST = 1_024;

/** The handles given out and not released yet, so that a shutdown can release them. */
export class TrackedLocks {
  readonly #deadlines = new Map<AcquiredLock, number>();
  #sweepAt = SWEEP_AT_LEAST;

  /** Gives the handle to hand out instead. `deadlineMs` is by `monotonicMs()`. */
  track(lock: AcquiredLock, deadlineMs: number): AcquiredLock {
    if (this.#deadlines.size >= this.#sweepAt) this.#sweep();
    this.#deadlines.set(lock, deadlineMs);
    return new TrackedLock(lock, {
      extended: (newDeadlineMs) => this.#deadlines.set(lock, newDeadlineMs),
      released: () => this.#deadlines.delete(lock),
    });
  }

  [Symbol.iterator](): Iterator<AcquiredLock> {
    return this.#deadlines.keys();
  }

  /** A handle that was never released ends by its TTL: forgotten when the map has doubled. */
  #sweep(): void {
    const nowMs = monotonicMs();
    for (const [lock, deadlineMs] of this.#deadlines) if (deadlineMs <= nowMs) this.#deadlines.delete(lock);
    this.#sweepAt = Math.max(SWEEP_AT_LEAST, 2 * this.#deadlines.size);
  }
}

interface Events {
  extended(deadlineMs: number): void;
  released(): void;
}

class TrackedLock implements AcquiredLock {
  readonly ok = true;
  readonly lockId: string;
  readonly fence: string;
  readonly #lock: AcquiredLock;
  readonly #events: Events;

  constructor(lock: AcquiredLock, events: Events) {
    this.lockId = lock.lockId;
    this.fence = lock.fence;
    this.#lock = lock;
    this.#events = events;
  }

  get expiresAtMs(): number {
    return this.#lock.expiresAtMs;
  }

  async release(signal?: AbortSignal): Promise<ReleaseResult> {
    const result = await this.#lock.release(signal);
    this.#events.released();
    return result;
  }

  async extend(ttlMs: number, signal?: AbortSignal): Promise<ExtendResult> {
    const sentAtMs = monotonicMs();
    const result = await this.#lock.extend(ttlMs, signal);
    if (result.ok) this.#events.extended(sentAtMs + ttlMs);
    else this.#events.released();
    return result;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#lock[Symbol.asyncDispose]();
    this.#events.released();
  }
}
