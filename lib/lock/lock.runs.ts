import { AsyncResource } from 'node:async_hooks';
import { setImmediate as nextTurn } from 'node:timers/promises';
import { Logger } from '@nestjs/common';
import { BackgroundRetries } from '../core/background-retries.js';
import { Bag } from '../core/bag.js';
import { everyMinute } from '../core/every-minute.js';
import { shownHash } from '../core/keys.js';
import { type LockFrame, lockFrames } from './current-lock.js';
import { Lease, type LeaseObserver, type LockContext, type LossReason } from './lease.js';
import { LockError } from './lock.errors.js';
import type { BackendHandle } from './lock.handle.js';
import type { ResolvedLockCall } from './lock.options.js';
import type { LockHandle } from './lock.types.js';

export type Body<T> = (lock: LockContext) => T | Promise<T>;

export interface LockShutdown {
  readonly drainMs: number;
  readonly heldLocks: 'expire' | 'release';
}

/** Runs bodies under their locks: keeps the leases alive meanwhile, and gives the locks back. */
export class LockRuns {
  readonly #logger = new Logger('SyncGuard');
  /** In an outage every release fails. */
  readonly #notReleasedLine = everyMinute((line) => this.#logger.warn(line));
  /** Has the leases of all calls whose body or release still runs. */
  readonly watchdog = new Watchdog();
  /** The releases that are repeated in the background. */
  readonly retries = new BackgroundRetries();

  /**
   * @param owner - the backend that granted the locks
   * @param onLost - called in the context of the call whose lock was found to be lost
   */
  constructor(
    private readonly owner: object,
    private readonly onLost: ((lease: Lease) => void) | undefined,
  ) {}

  /** Runs a body, then gives the lock back. If the body throws, its error is thrown and not the loss. */
  run<T>(handle: BackendHandle, call: ResolvedLockCall, fn: Body<T>, method?: string): Promise<T> {
    const lease = new Lease(handle, call, this.onLost ? this.#observer(this.onLost) : this.watchdog);
    lease.method = method;
    const run = this.#under(lease, call, fn);
    lease.run = run;
    this.watchdog.watch(lease); // After the body has begun, since it may have to start a timer.
    return run;
  }

  /**
   * Ends what is in use after the drain of a shutdown: the leases that were `held` before it, and handles without a body.
   * By default a lock stays until its TTL, so that no other process runs beside a body that has not stopped.
   */
  async end(held: readonly Lease[], handles: readonly LockHandle[], shutdown: LockShutdown): Promise<void> {
    const { drainMs, heldLocks } = shutdown;
    const leases = held.filter(({ place }) => place >= 0);
    for (const lease of leases) lease.lose('shutdown', 'the app has shut down');
    const locks = [...leases.map(({ handle }) => handle), ...handles];
    if (locks.length === 0) return;
    const count = `${locks.length} lock${locks.length === 1 ? ' is' : 's are'}`;
    const fate = heldLocks === 'release' ? 'They are released now' : 'They expire by their TTLs';
    this.#logger.warn(
      `SHUTDOWN_LOCKS_IN_USE: After ${drainMs} ms of shutdown ${count} still in use. ${fate}. To wait longer, raise \`shutdown.drainMs\`.`,
    );
    if (heldLocks === 'release') await Promise.allSettled(locks.map((lock) => lock.release()));
  }

  /** Ends a lease. Returns the loss. */
  lose(lockId: string, reason: LossReason, why: string): LockError | undefined {
    const lease = this.watchdog.leases().find(({ handle }) => handle.lockId === lockId);
    lease?.lose(reason, why);
    return lease?.lost;
  }

  async #under<T>(lease: Lease, call: ResolvedLockCall, fn: Body<T>): Promise<T> {
    const frame: LockFrame = {
      owner: this.owner,
      context: lease.context,
      isLost: () => lease.lost !== undefined,
      outer: lockFrames.find(),
      active: true,
    };
    const { ttlMs, minHoldMs, minHoldOnFailureMs = minHoldMs } = call;
    const end = (keepMs: number): Promise<LockError | undefined> => {
      frame.active = false;
      lease.end();
      return this.#giveBack(lease, ttlMs, keepMs);
    };
    try {
      let value: T;
      try {
        value = await lockFrames.run(frame, () => fn(lease.context));
      } catch (error) {
        await end(minHoldOnFailureMs);
        throw error;
      }
      const lost = await end(minHoldMs);
      if (lost) throw lost;
      return value;
    } finally {
      this.watchdog.unwatch(lease);
    }
  }

  /** The watchdog may find the loss, and it runs in no async context. */
  #observer(onLost: (lease: Lease) => void): LeaseObserver {
    return { changed: (lease) => this.watchdog.changed(lease), onLost: AsyncResource.bind(onLost) };
  }

  /** Releases the lock, or lets it expire at the end of `minHoldMs`. Returns the error of a loss before the body's end. */
  async #giveBack(lease: Lease, ttlMs: number, minHoldMs: number): Promise<LockError | undefined> {
    const { lost } = lease;
    if (lost) {
      this.#giveBackLater(lease, ttlMs, minHoldMs);
      return lost;
    }
    try {
      const { ok } = await releaseAfter(lease, minHoldMs);
      if (ok) return undefined;
      this.onLost?.(lease);
      return lease.lockLost('taken', 'when it was released, another owner had it or it was deleted');
    } catch (error) {
      // The work is done, so this is no error of the call. The lock is released when Redis is back, or expires.
      this.#notReleasedLine(
        `LOCK_NOT_RELEASED: The lock ${lease.keys.map(shownHash).join(', ')} could not be released yet. SyncGuard tries again in the background. ${LockError.from(error).message}`,
      );
      this.#giveBackLater(lease, ttlMs, minHoldMs, error);
      return undefined;
    }
  }

  #giveBackLater(lease: Lease, ttlMs: number, minHoldMs: number, fault?: unknown): void {
    const released = (): Promise<boolean> => releaseAfter(lease, minHoldMs).then(() => true);
    this.retries.start(released, Math.max(ttlMs, minHoldMs), fault);
  }
}

function releaseAfter({ handle, heldMs }: Lease, minHoldMs: number): Promise<{ ok: boolean }> {
  const keepMs = Math.ceil(minHoldMs - heldMs);
  return keepMs > 0 ? handle.keep(keepMs) : handle.release();
}

/** The longest pause between two checks. Timers stand still while the machine is suspended: after it, a loss is found soon. */
const LOOK_EVERY_MS = 1_000;

/** How many leases are renewed in one turn of the event loop. */
const RENEWED_A_TURN = 1_000;

/**
 * Wakes leases when they must be renewed or are lost. All leases share one timer. Leases that are due together are renewed
 * in one turn of the event loop, so a thousand renewals cost one write to the socket. Where more are due, the others
 * are renewed in the next turns, so that the process goes on meanwhile.
 */
class Watchdog implements LeaseObserver {
  readonly #leases = new Bag<Lease>();
  // All leases share the timer, so it must not run in the async context of the call that started it.
  readonly #context = new AsyncResource('SyncGuardWatchdog');
  #timer: NodeJS.Timeout | undefined;
  #wakeAtMs = Infinity;

  watch(lease: Lease): void {
    this.#leases.add(lease);
    this.#arm(lease.wakeAtMs);
  }

  /** Called when `wakeAtMs` of a lease has changed. */
  changed(lease: Lease): void {
    if (lease.place >= 0) this.#arm(lease.wakeAtMs);
  }

  unwatch(lease: Lease): void {
    this.#leases.delete(lease);
  }

  /** Returns a copy, since leases may end while the others are looked at. */
  leases(): Lease[] {
    return [...this.#leases.items];
  }

  /** Renews all leases now, so that a lock which the server has lost is found now and not at its next renewal. */
  renewAll(): void {
    for (const lease of this.#leases.items) {
      lease.renewNow();
      this.#arm(lease.wakeAtMs);
    }
  }

  #arm(wakeAtMs: number): void {
    if (wakeAtMs === Infinity) return;
    const nowMs = performance.now();
    const atMs = Math.min(wakeAtMs, nowMs + LOOK_EVERY_MS);
    if (atMs >= this.#wakeAtMs) return;
    clearTimeout(this.#timer);
    this.#wakeAtMs = atMs;
    const delayMs = Math.max(Math.ceil(atMs - nowMs), 1);
    this.#timer = this.#context.runInAsyncScope(() => setTimeout(() => void this.#tick(), delayMs).unref());
  }

  /** Until it has ended, `#wakeAtMs` is in the past, so no other one begins. */
  readonly #tick = async (): Promise<void> => {
    const nowMs = performance.now();
    let due = 0;
    for (const lease of this.leases()) {
      if (lease.wakeAtMs <= nowMs && ++due > RENEWED_A_TURN) {
        await nextTurn();
        due = 1;
      }
      lease.wake(nowMs);
    }
    this.#wakeAtMs = Infinity;
    let nextMs = Infinity;
    for (const { wakeAtMs } of this.#leases.items) nextMs = Math.min(nextMs, wakeAtMs);
    this.#arm(nextMs);
  };
}
