import { AsyncResource } from 'node:async_hooks';
import { Logger } from '@nestjs/common';
import { BackgroundRetries } from '../core/background-retries.js';
import { everyMinute } from '../core/every-minute.js';
import { shownHash } from '../core/keys.js';
import { Watchdog } from '../core/watchdog.js';
import { type LockContext, lockFrames } from './current-lock.js';
import { Lease, type LossReason } from './lease.js';
import { LockError } from './lock.errors.js';
import type { BackendHandle } from './lock.handle.js';
import type { ResolvedLockCall } from './lock.options.js';
import type { LockHandle } from './lock.types.js';

export type Body<T> = (lock: LockContext) => T | Promise<T>;

export interface LockShutdown {
  readonly drainMs: number;
  readonly heldLocks: 'expire' | 'release';
}

/** The locks of bodies that run: keeps their leases alive meanwhile, and gives the locks back. */
export class LockRuns {
  readonly #logger = new Logger('SyncGuard');
  /** In an outage every release fails. */
  readonly #notReleasedLine = everyMinute((line) => this.#logger.warn(line));
  /** Has the leases of all calls whose body or release still runs. */
  readonly watchdog = new Watchdog<Lease>();
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

  begin(handle: BackendHandle, call: ResolvedLockCall, method: string | undefined): Lease {
    const lease = new Lease(this.owner, handle, call, this.watchdog, lockFrames.find(), method);
    if (this.onLost) lease.onLost = inContext(this.onLost, lease);
    this.watchdog.watch(lease);
    return lease;
  }

  /**
   * Gives the lock back after its body, or lets it expire at the end of `minHoldMs`. Resolves to the error of a loss before
   * the body's end.
   */
  giveBack(lease: Lease, minHoldMs: number): Promise<LockError | undefined> {
    lease.end();
    const { lost } = lease;
    if (lost) {
      this.#giveBackLater(lease, minHoldMs);
      this.#over(lease);
      return Promise.resolve(lost);
    }
    return releaseAfter(lease, minHoldMs).then(
      ({ ok }) => {
        this.#over(lease);
        if (ok) return undefined;
        this.onLost?.(lease);
        return lease.lockLost('taken', 'when it was released, another owner had it or it was deleted');
      },
      (error: unknown) => {
        this.#over(lease);
        // The work is done, so this is no error of the call. The lock is released when Redis is back, or expires.
        this.#notReleasedLine(
          `LOCK_NOT_RELEASED: The lock ${lease.keys.map(shownHash).join(', ')} could not be released yet. SyncGuard tries again in the background. ${LockError.from(error).message}`,
        );
        this.#giveBackLater(lease, minHoldMs, error);
        return undefined;
      },
    );
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

  #over(lease: Lease): void {
    this.watchdog.unwatch(lease);
    lease.onOver?.();
  }

  #giveBackLater(lease: Lease, minHoldMs: number, fault?: unknown): void {
    const released = (): Promise<boolean> => releaseAfter(lease, minHoldMs).then(() => true);
    this.retries.start(released, Math.max(lease.call.ttlMs, minHoldMs), fault);
  }
}

function releaseAfter({ handle, heldMs }: Lease, minHoldMs: number): Promise<{ ok: boolean }> {
  const keepMs = Math.ceil(minHoldMs - heldMs);
  return keepMs > 0 ? handle.keep(keepMs) : handle.release();
}

/** The watchdog may find the loss, and it runs in no async context. */
function inContext(onLost: (lease: Lease) => void, lease: Lease): () => void {
  // `AsyncResource.bind` would take longer than all the rest of a lock in memory.
  const context = new AsyncResource('SyncGuardLock');
  return () => context.runInAsyncScope(onLost, undefined, lease);
}
