import { setMaxListeners } from 'node:events';
import { earlierMoment, type Moment, momentAfter, momentNow, monotonicMs, msUntil } from '../clock.js';
import { isOwed } from '../owed.js';
import { hashesOf, LockError } from './lock.errors.js';
import { fencesOf } from './lock.handle.js';
import type { LockHandle, ExtendResult } from './lock.types.js';
import { validateTtl } from './lock.validate.js';
import type { Watched } from './watchdog.js';

/** The lock as its body sees it. */
export interface LockContext {
  /** The key; of several the first in their order. */
  readonly key: string;
  /** All keys that are locked together, in NFC, sorted. */
  readonly keys: readonly string[];
  /** Of this grant alone. Anyone who has it can release the lock, so give it to the resource and not to a client. */
  readonly lockId: string;
  /**
   * Rises with every grant of the key: send it along with every write, with the `lockId`, and let the resource refuse
   * a lower one, and the same one with another `lockId`. One grant of several keys has one fence, which is above all
   * that any of them has had.
   */
  readonly fence: string;
  /** The fence of each key. */
  readonly fences: Readonly<Record<string, string>>;
  /** Aborts when the lock is lost. Asks the clock, not only a timer: right also after a blocked event loop. */
  readonly signal: AbortSignal;
  /** By the backend's clock; follows every extension. */
  readonly expiresAtMs: number;
  /**
   * Extends the lock now, whatever the watchdog does. `{ ok: false }`: it is lost.
   *
   * @param ttlMs - from now, in ms; the lock's own TTL
   */
  extend(ttlMs?: number): Promise<ExtendResult>;
  /**
   * Throws when the lock is lost or released. No I/O: to be called before every step that must not be done twice.
   *
   * @throws LockError LockLost
   */
  assertHeld(): void;
}

export interface LeaseOptions {
  readonly keys: readonly string[];
  readonly ttlMs: number;
  readonly autoExtend: boolean;
  readonly maxHoldMs: number | undefined;
  /** Before the acquire was sent. */
  readonly sentAt: Moment;
  /** The moment of the next wake has changed. */
  onChange(lease: Lease): void;
  /** The lock was found to be lost; called once. */
  onLost?: (() => void) | undefined;
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
    return fencesOf(this.#lease.keys, this.fence);
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

// A third of the TTL leaves two more tries; the grid lets locks taken about the same time be renewed together.
const RENEWALS_PER_TTL = 3;
const GRID_PER_TTL = 10;
const RETRIES_PER_TTL = 20;

/**
 * A held lock as this process sees it: it ends at a deadline of the local clocks, counted from before the last good
 * acquire or extend was sent, so never later than on the server. Of the two clocks the one counts that says so first:
 * the monotonic one stands still while the machine is suspended, and a wall clock that was set ends a lock too early.
 */
export class Lease implements Watched {
  /** The body gets this: nothing of it is shown by a logger or JSON. */
  readonly context: LockContext = new LeaseContext(this);
  readonly keys: readonly string[];
  readonly handle: LockHandle;
  readonly #options: LeaseOptions;
  readonly #end: Moment;
  #deadline: Moment;
  #renewAtMs = Infinity;
  #renewing = false;
  /** Of the last renewal that failed. */
  #fault: unknown;
  #ended = false;
  #lost: LockError | undefined;
  #controller: AbortController | undefined;

  constructor(handle: LockHandle, options: LeaseOptions) {
    this.keys = options.keys;
    this.handle = handle;
    this.#options = options;
    this.#end = momentAfter(options.sentAt, options.maxHoldMs ?? Infinity);
    this.#deadline = this.#extendTo(options.sentAt, options.ttlMs);
  }

  get ttlMs(): number {
    return this.#options.ttlMs;
  }

  /** How long the lock is held so far, in ms. */
  get heldMs(): number {
    return monotonicMs() - this.#options.sentAt.monotonicMs;
  }

  /** The error of the loss, if the lock was lost before it ended. Looks at the clocks. */
  get lost(): LockError | undefined {
    if (!this.#lost && !this.#ended && msUntil(this.#deadline) <= 0)
      this.lose(
        this.#isLast(this.#deadline)
          ? 'it was held for `maxHoldMs`'
          : 'its TTL passed before it could be extended',
      );
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
    if (this.lost || this.#renewing || nowMs < this.#renewAtMs) return;
    // A server that has not answered the last renewal is not sent another.
    if (isOwed(this.#fault)) return this.#renewLater();
    this.#renewing = true;
    void this.#renew();
  }

  renewNow(): void {
    this.#renewAtMs = -Infinity;
  }

  assertHeld(): void {
    const lost = this.lost;
    if (lost) throw lost;
    if (this.#ended) throw this.lockLost('it was released');
  }

  async extend(ttlMs: number = this.#options.ttlMs): Promise<ExtendResult> {
    validateTtl(ttlMs);
    if (this.#ended || this.lost) return { ok: false };
    const sentAt = momentNow();
    const allowedMs = Math.max(1, Math.min(ttlMs, Math.floor(msUntil(this.#end))));
    const result = await this.handle.extend(allowedMs);
    if (!result.ok) this.lose('another owner has it, or it was deleted');
    // The answer may come after the deadline: then the loss has been told, and stays.
    else if (!this.lost) this.#deadline = this.#extendTo(sentAt, allowedMs);
    this.#options.onChange(this);
    return this.lost ? { ok: false } : result;
  }

  lose(why: string): void {
    if (this.#ended || this.#lost) return;
    this.#lost = this.lockLost(why);
    this.#options.onLost?.();
    this.#controller?.abort(this.#lost);
  }

  /** The body has ended: nothing is renewed or lost from here on. */
  end(): void {
    void this.lost; // What the clock says now counts; what it says later does not.
    this.#ended = true;
  }

  async #renew(): Promise<void> {
    try {
      await this.extend(this.#renewalMs());
    } catch (error) {
      // One failed renewal is no loss: try again until the deadline.
      this.#fault = error;
      this.#renewLater();
    } finally {
      this.#renewing = false;
      this.#options.onChange(this);
    }
  }

  #renewLater(): void {
    this.#renewAtMs = monotonicMs() + this.#options.ttlMs / RETRIES_PER_TTL;
  }

  /** Never less than the body has asked for; of a lock that is not kept alive, what is left of its life. */
  #renewalMs(): number {
    const { autoExtend, ttlMs } = this.#options;
    const restMs = Math.max(1, Math.floor(msUntil(this.#deadline)));
    return autoExtend ? Math.max(ttlMs, restMs) : restMs;
  }

  /**
   * Notes when to renew a lock that was extended by `ttlMs` at `sentAt`, and returns the new deadline. One that the
   * body extended for longer is left alone until it has no more than its usual life left.
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

  /** Whether no extension can go beyond this deadline: TTLs are whole ms, so the last may be part of one short. */
  #isLast(deadline: Moment): boolean {
    return this.#end.monotonicMs - deadline.monotonicMs < 1 || this.#end.wallMs - deadline.wallMs < 1;
  }

  /** A signal whose `aborted`, `reason` and `throwIfAborted` look at the clock first. */
  #createController(): AbortController {
    const controller = new AbortController();
    const { signal } = controller;
    setMaxListeners(0, signal); // A body may hand it to as many calls as it makes.
    const read = (name: 'aborted' | 'reason'): unknown => {
      void this.lost;
      return Reflect.get(AbortSignal.prototype, name, signal);
    };
    Object.defineProperties(signal, {
      aborted: { get: () => read('aborted') },
      reason: { get: () => read('reason') },
      throwIfAborted: {
        value: () => {
          if (read('aborted')) throw read('reason');
        },
      },
    });
    if (this.#lost) controller.abort(this.#lost);
    return controller;
  }

  /** The error of a loss. */
  lockLost(why: string): LockError {
    return new LockError({
      code: 'LockLost',
      message: `The lock is not held any more: ${why}.`,
      hint: 'Somebody else may be inside. Give `fence` to what you write to, and check `signal` or `assertHeld()` in long bodies.',
      context: { ...hashesOf(this.keys), fence: this.handle.fence },
    });
  }
}
