import { refuseAborted } from '../core/abort.js';
import { BackgroundRetries } from '../core/background-retries.js';
import { type Moment, momentAfter, momentNow, msUntil } from '../core/clock.js';
import { settleWithin } from '../core/settle-within.js';
import { MAX_DURATION_MS } from '../core/validate.js';
import { type LockBackend, withDetail } from './lock.backend.js';
import { LockError } from './lock.errors.js';
import type { LockHandle, ExtendResult, HeldLock, ReleaseResult } from './lock.types.js';

export interface Grant {
  readonly keys: readonly string[];
  readonly lockId: string;
  readonly fence: string;
  readonly expiresAtMs: number;
  readonly ttlMs: number;
  /** When the request was sent. */
  readonly sentAt: Moment;
}

/**
 * The handle of a granted lock. It knows the keys, so each operation is one round trip. After the release, or once the
 * lock was found to be lost, its operations send no commands and return `{ ok: false }`.
 */
export class BackendHandle implements LockHandle {
  readonly ok = true;
  readonly lockId: string;
  readonly fence: string;
  expiresAtMs: number;
  readonly #backend: Pick<LockBackend, 'release' | 'extend'>;
  #held: HeldLock;
  #releasing: Promise<ReleaseResult> | undefined;
  #isOver = false;

  constructor(backend: Pick<LockBackend, 'release' | 'extend'>, grant: Grant) {
    this.#backend = backend;
    this.lockId = grant.lockId;
    this.fence = grant.fence;
    this.expiresAtMs = grant.expiresAtMs;
    this.#held = { keys: grant.keys, deadline: momentAfter(grant.sentAt, grant.ttlMs) };
  }

  get fences(): Readonly<Record<string, string>> {
    return fencesOf(this.#held.keys, this.fence);
  }

  async release(signal?: AbortSignal): Promise<ReleaseResult> {
    // A second release waits for the first one. It tries by itself only if the first has failed.
    while (this.#releasing) {
      refuseAborted(signal, LockError);
      await settleWithin(MAX_DURATION_MS, [this.#releasing], signal);
    }
    if (this.#isOver) return isGone(signal);
    this.#releasing = this.#backend.release({ lockId: this.lockId, held: this.#held, signal });
    try {
      const result = await this.#releasing;
      this.#isOver = true;
      return result;
    } finally {
      this.#releasing = undefined;
    }
  }

  async extend(ttlMs: number, signal?: AbortSignal): Promise<ExtendResult> {
    if (this.#isOver) return isGone(signal);
    const sentAt = momentNow();
    const result = await this.#backend.extend({ lockId: this.lockId, held: this.#held, ttlMs, signal });
    if (result.ok) {
      this.expiresAtMs = result.expiresAtMs;
      this.#held = { keys: this.#held.keys, deadline: momentAfter(sentAt, ttlMs) };
    } else this.#isOver = true;
    return result;
  }

  /** Never throws, so that it does not hide an error of the block. A release that fails is repeated in the background. */
  async [Symbol.asyncDispose](): Promise<void> {
    const released = (): Promise<boolean> => this.release().then(() => true);
    await released().catch(() => new BackgroundRetries().start(released, msUntil(this.#held.deadline)));
  }
}

/** Returns the fence of each key. All keys of a grant have the same fence. */
export const fencesOf = (keys: readonly string[], fence: string): Readonly<Record<string, string>> =>
  Object.fromEntries(keys.map((key) => [key, fence]));

function isGone(signal: AbortSignal | undefined): { ok: false } {
  refuseAborted(signal, LockError);
  return withDetail({ ok: false }, { reason: 'not_found' });
}
