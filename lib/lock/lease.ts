import { checkedSignal } from '../core/checked-signal.js';
import { isOwed } from '../core/errors.js';
import type { Watched } from '../core/watchdog.js';
import { hashesOf, LockError } from './lock.errors.js';
import { type BackendHandle, earlierMoment, momentAfter, msUntil } from './lock.handle.js';
import type { ResolvedLockCall } from './lock.options.js';
import type { ExtendResult, LockHandle, Moment } from './lock.types.js';
import { validateTtl } from './lock.validate.js';

/** What a body can see of its lock, and do with it. */
export interface LockContext extends Pick<LockHandle, 'fences' | 'expiresAtMs'> {
  /** The key. Of several keys it is the first one in sorted order. */
  readonly key: string;
  /** All keys that are locked together, in NFC, sorted. */
  readonly keys: readonly string[];
  /** The id of this grant. Anyone who has it can release the lock, so pass it to the resource and not to a client. */
  readonly lockId: string;
  /**
   * The fence rises with every grant of the key. Send it and the `lockId` along with every write. Let the resource refuse
   * a lower fence, and the same fence with another `lockId`. All keys of a grant have the same fence, which is above
   * every fence that any of them has had.
   */
  readonly fence: string;
  /** Aborts when the lock is lost. `aborted` also reads the clock, so it is right even after a blocked event loop. */
  readonly signal: AbortSignal;
  /**
   * Extends the lock now, in addition to the automatic extensions. Returns `{ ok: false }` if the lock is lost.
   *
   * @param ttlMs - the new life from now, in ms. Default: the `ttlMs` of the lock.
   */
  extend(ttlMs?: number): Promise<ExtendResult>;
  /**
   * Throws if the lock is lost or released. It reads the clock only and does no I/O. Call it before every step that must
   * not be done twice.
   *
   * @throws LockError LockLost
   */
  assertHeld(): void;
}

/**
 * Why a lock was lost: its TTL was over, it was held for `maxHoldMs`, another owner has it or it was deleted, nobody read
 * its stream, an operator has released it, the app has shut down, or its body has ended.
 */
export type LossReason = 'expired' | 'max_hold' | 'taken' | 'revoked' | 'idle' | 'shutdown' | 'released';

export type LeaseOptions = Pick<ResolvedLockCall, 'ttlMs' | 'autoExtend' | 'maxHoldMs'>;

/** Whom a lease tells what has become of it. */
export interface LeaseObserver {
  /** Called when `wakeAtMs` has changed. */
  changed(lease: Lease): void;
  /** Called once, when the lock is found to be lost. */
  onLost?: ((lease: Lease) => void) | undefined;
}

class LeaseContext implements LockContext {
  readonly #lease: Lease;

  constructor(lease: Lease) {
    this.#lease = lease;
  }

  get key(): string {
    return this.#lease.keys[0] as string;
  }

  get keys(): readonly string[] {
    return this.#lease.keys;
  }

  get lockId(): string {
    return this.#lease.handle.lockId;
  }

  get fence(): string {
    return this.#lease.handle.fence;
  }

  get fences(): Readonly<Record<string, string>> {
    return this.#lease.handle.fences;
  }

  get signal(): AbortSignal {
    return this.#lease.signal;
  }

  get expiresAtMs(): number {
    return this.#lease.handle.expiresAtMs;
  }

  extend(ttlMs?: number): Promise<ExtendResult> {
    return this.#lease.extend(ttlMs);
  }

  assertHeld(): void {
    this.#lease.assertHeld();
  }
}

// A lock is renewed after a third of its TTL, which leaves time for more tries. The moment is rounded down to a grid, so
// that locks taken at about the same time are renewed together.
const RENEWALS_PER_TTL = 3;
const GRID_PER_TTL = 10;
const RETRIES_PER_TTL = 20;

/**
 * Keeps a lock alive while its body runs, and notices its loss. The lease ends at a deadline of the local clocks. The
 * deadline counts from before the last successful acquire or extend was sent, so it never comes later than the expiry
 * on the server. A wall clock that is set forward ends the lease early, which is safe.
 */
export class Lease implements Watched {
  /** What the body is called with. All its values are getters, so a logger or JSON shows none of them. */
  readonly context: LockContext = new LeaseContext(this);
  readonly keys: readonly string[];
  readonly handle: BackendHandle;
  place = -1;
  /** The decorated method, for who asks who holds the lock. */
  method: string | undefined;
  /** The call of the body, with the release that follows it. */
  run!: Promise<unknown>;
  readonly #options: LeaseOptions;
  readonly #sinceMs: number;
  readonly #end: Moment;
  #deadline: Moment;
  #renewAtMs = Infinity;
  #renewing = false;
  /** The fault of the last renewal that failed. */
  #fault: unknown;
  #ended = false;
  #lost: LockError | undefined;
  #controller: AbortController | undefined;

  constructor(
    handle: BackendHandle,
    options: LeaseOptions,
    private readonly observer: LeaseObserver,
  ) {
    const { keys, sentAt } = handle.held;
    this.keys = keys;
    this.handle = handle;
    this.#options = options;
    this.#sinceMs = sentAt.monotonicMs;
    this.#end = momentAfter(sentAt, options.maxHoldMs ?? Infinity);
    this.#deadline = this.#extendTo(sentAt, options.ttlMs);
  }

  get heldMs(): number {
    return performance.now() - this.#sinceMs;
  }

  /** The error of the loss, if the lock was lost before the body ended. Reading this property checks the clocks. */
  get lost(): LockError | undefined {
    if (!this.#lost && !this.#ended && msUntil(this.#deadline) <= 0) {
      if (this.#isLast(this.#deadline)) this.lose('max_hold', 'it was held for `maxHoldMs`');
      else this.lose('expired', 'its TTL passed before it could be extended');
    }
    return this.#lost;
  }

  get signal(): AbortSignal {
    this.#controller ??= this.#createController();
    return this.#controller.signal;
  }

  get wakeAtMs(): number {
    if (this.#lost || this.#ended) return Infinity;
    const { monotonicMs: deadlineMs } = this.#deadline;
    return this.#renewing ? deadlineMs : Math.min(this.#renewAtMs, deadlineMs);
  }

  wake(nowMs: number): void {
    if (this.#ended || this.lost || this.#renewing || nowMs < this.#renewAtMs) return;
    // While the server owes the answer to the last renewal, no further one is sent.
    if (isOwed(this.#fault)) return this.#renewLater();
    this.#renewing = true;
    void this.#renew();
  }

  /** Renews it at once, even if no renewal is due. */
  renewNow(): void {
    this.#renewAtMs = -Infinity;
    this.observer.changed(this);
  }

  assertHeld(): void {
    const lost = this.lost;
    if (lost) throw lost;
    if (this.#ended) throw this.lockLost('released', 'it was released');
  }

  async extend(ttlMs: number = this.#options.ttlMs): Promise<ExtendResult> {
    validateTtl(ttlMs);
    if (this.#ended || this.lost) return { ok: false };
    const allowedMs = Math.max(1, Math.min(ttlMs, Math.floor(msUntil(this.#end))));
    const result = await this.handle.extend(allowedMs);
    if (!result.ok) this.lose('taken', 'another owner has it, or it was deleted');
    // If the answer comes after the deadline, the body has learned of the loss already. Then the lock stays lost.
    else if (!this.lost) this.#deadline = this.#extendTo(this.handle.held.sentAt, allowedMs);
    this.observer.changed(this);
    return this.lost ? { ok: false } : result;
  }

  lose(reason: LossReason, why: string): void {
    if (this.#ended || this.#lost) return;
    this.#lost = this.lockLost(reason, why);
    this.observer.onLost?.(this);
    this.#controller?.abort(this.#lost);
  }

  /** Called when the body has ended. From now on the lock is neither renewed nor found to be lost. */
  end(): void {
    void this.lost; // Reading `lost` records a loss that has happened so far. A later one does not count.
    this.#ended = true;
  }

  async #renew(): Promise<void> {
    const { autoExtend, ttlMs } = this.#options;
    const restMs = Math.max(1, Math.floor(msUntil(this.#deadline)));
    try {
      // It never shortens a life that the body has asked for. Without `autoExtend` it only shows whether the lock is there.
      await this.extend(autoExtend ? Math.max(ttlMs, restMs) : restMs);
    } catch (error) {
      // A failed renewal is not a loss. It is repeated until the deadline.
      this.#fault = error;
      this.#renewLater();
    } finally {
      this.#renewing = false;
      this.observer.changed(this);
    }
  }

  #renewLater(): void {
    this.#renewAtMs = performance.now() + this.#options.ttlMs / RETRIES_PER_TTL;
  }

  /**
   * Sets when to renew a lock that was extended by `ttlMs` at `sentAt`, and returns the new deadline. A lock that the
   * body extended for longer than usual is renewed only when its usual life is left.
   */
  #extendTo(sentAt: Moment, ttlMs: number): Moment {
    const deadline = earlierMoment(momentAfter(sentAt, ttlMs), this.#end);
    const usualMs = Math.min(ttlMs, this.#options.ttlMs);
    const gridMs = usualMs / GRID_PER_TTL;
    const renewAtMs = sentAt.monotonicMs + ttlMs - usualMs + usualMs / RENEWALS_PER_TTL;
    const renewable = this.#options.autoExtend && !this.#isLast(deadline);
    this.#renewAtMs = renewable ? Math.floor(renewAtMs / gridMs) * gridMs : Infinity;
    return deadline;
  }

  /** Returns whether `maxHoldMs` allows no later deadline. A TTL is in whole ms, so less than 1 ms is no difference. */
  #isLast(deadline: Moment): boolean {
    return this.#end.monotonicMs - deadline.monotonicMs < 1 || this.#end.wallMs - deadline.wallMs < 1;
  }

  #createController(): AbortController {
    const controller = checkedSignal(() => void this.lost);
    if (this.#lost) controller.abort(this.#lost);
    return controller;
  }

  lockLost(reason: LossReason, why: string): LockError {
    return new LockError({
      code: 'LockLost',
      message: `The lock is not held any more: ${why}.`,
      hint: 'Another owner may run the same work now. Pass `fence` to the resource that you write to, and check `signal` or `assertHeld()` in long bodies.',
      context: { ...hashesOf(this.keys), fence: this.handle.fence, reason },
    });
  }
}
