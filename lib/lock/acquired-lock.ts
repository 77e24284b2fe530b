import { monotonicMs } from '../clock.js';
import type { LockBackend } from './lock.backend.js';
import type { AcquiredLock, ExtendResult, HeldLock, ReleaseResult } from './lock.types.js';
import { BackgroundRetries } from '../background-retries.js';

export interface Grant {
  readonly key: string;
  readonly lockId: string;
  readonly fence: string;
  readonly expiresAtMs: number;
  readonly ttlMs: number;
  /** Before the request was sent, by `monotonicMs()`. */
  readonly sentAtMs: number;
}

/** A grant's handle. It knows its key, so each of its operations is one round trip. */
export class LockHandle implements AcquiredLock {
  readonly ok = true;
  readonly lockId: string;
  readonly fence: string;
  expiresAtMs: number;
  readonly #backend: Pick<LockBackend, 'release' | 'extend'>;
  #held: HeldLock;

  constructor(backend: Pick<LockBackend, 'release' | 'extend'>, grant: Grant) {
    this.#backend = backend;
    this.lockId = grant.lockId;
    this.fence = grant.fence;
    this.expiresAtMs = grant.expiresAtMs;
    this.#held = { key: grant.key, deadlineMs: grant.sentAtMs + grant.ttlMs };
  }

  release(signal?: AbortSignal): Promise<ReleaseResult> {
    return this.#backend.release({ lockId: this.lockId, held: this.#held, signal });
  }

  async extend(ttlMs: number, signal?: AbortSignal): Promise<ExtendResult> {
    const sentAtMs = monotonicMs();
    const result = await this.#backend.extend({ lockId: this.lockId, held: this.#held, ttlMs, signal });
    if (result.ok) {
      this.expiresAtMs = result.expiresAtMs;
      this.#held = { key: this.#held.key, deadlineMs: sentAtMs + ttlMs };
    }
    return result;
  }

  /** Never throws, so as not to mask the block's own error: a release that fails is tried again in the background. */
  async [Symbol.asyncDispose](): Promise<void> {
    const released = (): Promise<boolean> => this.release().then(() => true);
    await released().catch(() =>
      new BackgroundRetries().start(released, this.#held.deadlineMs - monotonicMs()),
    );
  }
}
