import { BackgroundRetries } from '../core/background-retries.js';
import { Bag } from '../core/bag.js';
import { IdleSweep } from '../core/idle-sweep.js';
import { settleWithin } from '../core/settle-within.js';
import { MAX_DURATION_MS, refuseAborted } from '../core/validate.js';
import { type LockBackend, withDetail } from './lock.backend.js';
import { LockError } from './lock.errors.js';
import type { ExtendResult, HeldLock, LockHandle, Moment, ReleaseResult } from './lock.types.js';

/** @internal */
export const momentNow = (): Moment => ({ monotonicMs: performance.now(), wallMs: Date.now() });

/** @internal */
export const momentAfter = (moment: Moment, ms: number): Moment => ({
  monotonicMs: moment.monotonicMs + ms,
  wallMs: moment.wallMs + ms,
});

/** @internal */
export const earlierMoment = (a: Moment, b: Moment): Moment => ({
  monotonicMs: Math.min(a.monotonicMs, b.monotonicMs),
  wallMs: Math.min(a.wallMs, b.wallMs),
});

/** @internal Returns the ms until a moment, by the clock that reaches it first. It has come if the result is 0 or less. */
export const msUntil = ({ monotonicMs: byMonotonic, wallMs }: Moment): number =>
  Math.min(byMonotonic - performance.now(), wallMs - Date.now());

/** @internal What a backend says of a grant. */
export type Grant = Omit<HeldLock, 'deadline' | 'sinceMs'> &
  Pick<LockHandle, 'lockId' | 'fence' | 'expiresAtMs'> & { readonly ttlMs: number };

/**
 * The handle of a granted lock. It knows the keys, so each operation is one round trip. After the release, or once the
 * lock was found to be lost, its operations send no commands and return `{ ok: false }`.
 */
export class BackendHandle implements LockHandle {
  readonly ok = true;
  readonly lockId: string;
  readonly fence: string;
  expiresAtMs: number;
  #backend: Pick<LockBackend, 'release' | 'extend'>;
  #held: HeldLock;
  #releasing: Promise<ReleaseResult> | undefined;
  #isOver = false;
  #keptUntilMs = 0;
  #open: OpenHandles | undefined;
  #place = -1;

  /** @internal A backend creates the handle of each grant. */
  constructor(backend: Pick<LockBackend, 'release' | 'extend'>, grant: Grant) {
    const { keys, lockId, fence, expiresAtMs, sentAt, ttlMs, ref } = grant;
    this.#backend = backend;
    this.lockId = lockId;
    this.fence = fence;
    this.expiresAtMs = expiresAtMs;
    this.#held = { keys, sinceMs: sentAt.monotonicMs, sentAt, deadline: momentAfter(sentAt, ttlMs), ref };
  }

  get fences(): Readonly<Record<string, string>> {
    return Object.fromEntries(this.#held.keys.map((key) => [key, this.fence]));
  }

  /** @internal */
  get held(): HeldLock {
    return this.#held;
  }

  /** @internal Its place among the open handles. An accessor, so that logs do not show it. */
  get place(): number {
    return this.#place;
  }

  set place(place: number) {
    this.#place = place;
  }

  /** @internal The lock was given back, or found to be lost. */
  get isOver(): boolean {
    return this.#isOver;
  }

  /** @internal Until when a lock that was given back stays nevertheless, as `performance.now()` counts. */
  get keptUntilMs(): number {
    return this.#keptUntilMs;
  }

  release(signal?: AbortSignal): Promise<ReleaseResult> {
    if (this.#releasing) return this.#releaseAfterIt(signal);
    if (this.#isOver) return isGone(signal);
    const releasing = this.#backend.release({ lockId: this.lockId, held: this.#held, signal });
    this.#releasing = releasing;
    return releasing.then(
      (result) => {
        this.#releasing = undefined;
        this.#end();
        return result;
      },
      (error: unknown) => {
        this.#releasing = undefined;
        throw error;
      },
    );
  }

  /** A second release waits for the first one. It tries by itself only if the first has failed. */
  async #releaseAfterIt(signal: AbortSignal | undefined): Promise<ReleaseResult> {
    while (this.#releasing) {
      refuseAborted(signal, LockError);
      await settleWithin(MAX_DURATION_MS, [this.#releasing], signal);
    }
    return this.release(signal);
  }

  async extend(ttlMs: number, signal?: AbortSignal): Promise<ExtendResult> {
    if (this.#isOver) return isGone(signal);
    const sentAt = momentNow();
    const result = await this.#backend.extend({ lockId: this.lockId, held: this.#held, ttlMs, signal });
    if (result.ok) this.extended(sentAt, ttlMs, result.expiresAtMs);
    else this.#end();
    return result;
  }

  /** @internal Gives the lock back, and lets it stay for `ms` all the same. */
  async keep(ms: number): Promise<ExtendResult> {
    const sentMs = performance.now();
    this.#held = { ...this.#held, isGivenBack: true };
    const result = await this.extend(ms);
    if (result.ok) this.#keptUntilMs = sentMs + ms;
    this.#end();
    return result;
  }

  /** Never throws, so that it does not hide an error of the block. A release that fails is repeated in the background. */
  async [Symbol.asyncDispose](): Promise<void> {
    const released = (): Promise<boolean> => this.release().then(() => true);
    await released().catch(() => new BackgroundRetries().start(released, msUntil(this.#held.deadline)));
    this.#open?.delete(this);
  }

  /** @internal The lock was extended by a call that was sent at `sentAt`. */
  extended(sentAt: Moment, ttlMs: number, expiresAtMs: number): void {
    this.expiresAtMs = expiresAtMs;
    this.#held = { ...this.#held, sentAt, deadline: momentAfter(sentAt, ttlMs) };
  }

  /** @internal Its operations go through this backend from now on. It stands in front of the one that granted the lock. */
  through(backend: LockBackend): this {
    this.#backend = backend;
    return this;
  }

  /** @internal Tells these when the lock is over. */
  openIn(handles: OpenHandles): void {
    this.#open = handles;
  }

  #end(): void {
    this.#isOver = true;
    this.#open?.delete(this);
  }
}

/**
 * The handles that `acquire()` has returned and that are not released yet. A shutdown waits for them, and may release
 * those that are left.
 */
export class OpenHandles extends Bag<BackendHandle> {
  readonly #idleSweep = new IdleSweep(() => this.#sweep());
  #onEmpty: (() => void) | undefined;

  override add(handle: BackendHandle): void {
    this.#idleSweep.grow(this.items.length);
    super.add(handle);
    handle.openIn(this);
  }

  override delete(handle: BackendHandle): void {
    super.delete(handle);
    if (this.items.length === 0) this.#onEmpty?.();
  }

  /** Returns the handle of a lock that is used by its id. It looks through all, since few calls have only the id. */
  find(lockId: string): BackendHandle | undefined {
    return this.items.find((handle) => handle.lockId === lockId);
  }

  /** Resolves when no handle is open any more. */
  async emptied(): Promise<void> {
    this.#sweep();
    if (this.items.length > 0) await new Promise<void>((resolve) => (this.#onEmpty = resolve));
  }

  /** Forgets handles that were never released and whose TTL is over. */
  #sweep(): number {
    const nowMs = performance.now();
    for (const handle of this.items.filter(({ held }) => held.deadline.monotonicMs <= nowMs))
      this.delete(handle);
    return this.items.length;
  }
}

async function isGone(signal: AbortSignal | undefined): Promise<{ ok: false }> {
  refuseAborted(signal, LockError);
  return withDetail({ ok: false }, { reason: 'not_found' });
}
