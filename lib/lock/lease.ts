import { checkedSignal } from '../core/checked-signal.js';
import { isOwed } from '../core/errors.js';
import type { Watched } from '../core/watchdog.js';
import type { LockContext, LockFrame } from './current-lock.js';
import { hashesOf, LockError } from './lock.errors.js';
import { type BackendHandle, earlierMoment, momentAfter, msUntil } from './lock.handle.js';
import type { ResolvedLockCall } from './lock.options.js';
import type { ExtendResult, Moment } from './lock.types.js';
import { validateTtl } from './lock.validate.js';

/**
 * Why a lock was lost: its TTL was over, it was held for `maxHoldMs`, another owner has it or it was deleted, nobody read
 * its stream, an operator has released it, the app has shut down, or its body has ended.
 */
export type LossReason = 'expired' | 'max_hold' | 'taken' | 'revoked' | 'idle' | 'shutdown' | 'released';

/** Whom a lease tells that its `wakeAtMs` has changed. */
export interface LeaseObserver {
  changed(lease: Lease): void;
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

/** Without `maxHoldMs` a lock may be held for ever. */
const NEVER: Moment = { monotonicMs: Infinity, wallMs: Infinity };

/**
 * Keeps a lock alive while its body runs, and notices its loss. The lease ends at a deadline of the local clocks. The
 * deadline counts from before the last successful acquire or extend was sent, so it never comes later than the expiry
 * on the server. A wall clock that is set forward ends the lease early, which is safe.
 */
export class Lease implements Watched, LockFrame {
  /** What the body is called with. All its values are getters, so a logger or JSON shows none of them. */
  readonly context: LockContext = new LeaseContext(this);
  /** False once the body has ended. From then on the lock is neither renewed nor found to be lost. */
  active = true;
  place = -1;
  /** Called once, when the lock is found to be lost. */
  onLost: (() => void) | undefined;
  /** Called when the lock was given back after the body, or that has failed. */
  onOver: (() => void) | undefined;
  readonly #end: Moment;
  #deadline: Moment;
  #renewAtMs = Infinity;
  #renewing = false;
  /** The fault of the last renewal that failed. */
  #fault: unknown;
  #lost: LockError | undefined;
  #controller: AbortController | undefined;

  /**
   * @param owner - the backend that granted the lock
   * @param outer - the lock around the call
   * @param method - the decorated method, for who asks who holds the lock
   */
  constructor(
    readonly owner: object,
    readonly handle: BackendHandle,
    readonly call: ResolvedLockCall,
    private readonly observer: LeaseObserver,
    readonly outer: LockFrame | undefined,
    readonly method: string | undefined,
  ) {
    const { sentAt } = handle.held;
    this.#end = call.maxHoldMs === undefined ? NEVER : momentAfter(sentAt, call.maxHoldMs);
    this.#deadline = this.#extendedBy(call.ttlMs);
  }

  get keys(): readonly string[] {
    return this.handle.held.keys;
  }

  get heldMs(): number {
    return performance.now() - this.handle.held.sinceMs;
  }

  /** The error of the loss, if the lock was lost before the body ended. Reading this property checks the clocks. */
  get lost(): LockError | undefined {
    if (!this.#lost && this.active && msUntil(this.#deadline) <= 0) {
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
    if (this.#lost || !this.active) return Infinity;
    const { monotonicMs: deadlineMs } = this.#deadline;
    return this.#renewing ? deadlineMs : Math.min(this.#renewAtMs, deadlineMs);
  }

  wake(nowMs: number): void {
    if (!this.active || this.lost || this.#renewing || nowMs < this.#renewAtMs) return;
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
    if (!this.active) throw this.lockLost('released', 'it was released');
  }

  async extend(ttlMs: number = this.call.ttlMs): Promise<ExtendResult> {
    validateTtl(ttlMs);
    if (!this.active || this.lost) return { ok: false };
    const allowedMs = Math.max(1, Math.min(ttlMs, Math.floor(msUntil(this.#end))));
    const result = await this.handle.extend(allowedMs);
    if (!result.ok) this.lose('taken', 'another owner has it, or it was deleted');
    // If the answer comes after the deadline, the body has learned of the loss already. Then the lock stays lost.
    else if (!this.lost) this.#deadline = this.#extendedBy(allowedMs);
    this.observer.changed(this);
    return this.lost ? { ok: false } : result;
  }

  lose(reason: LossReason, why: string): void {
    if (!this.active || this.#lost) return;
    this.#lost = this.lockLost(reason, why);
    this.onLost?.();
    this.#controller?.abort(this.#lost);
  }

  isLost(): boolean {
    return this.lost !== undefined;
  }

  /** Called when the body has ended. */
  end(): void {
    void this.lost; // Reading `lost` records a loss that has happened so far. A later one does not count.
    this.active = false;
  }

  async #renew(): Promise<void> {
    const { autoExtend, ttlMs } = this.call;
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
    this.#renewAtMs = performance.now() + this.call.ttlMs / RETRIES_PER_TTL;
  }

  /**
   * Sets when to renew a lock that was extended by `ttlMs`, and returns the new deadline. A lock that the body extended for
   * longer than usual is renewed only when its usual life is left.
   */
  #extendedBy(ttlMs: number): Moment {
    const { sentAt, deadline: ofHandle } = this.handle.held;
    const deadline = earlierMoment(ofHandle, this.#end);
    const usualMs = Math.min(ttlMs, this.call.ttlMs);
    const gridMs = usualMs / GRID_PER_TTL;
    const renewAtMs = sentAt.monotonicMs + ttlMs - usualMs + usualMs / RENEWALS_PER_TTL;
    const renewable = this.call.autoExtend && !this.#isLast(deadline);
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
