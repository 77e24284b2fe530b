import { AsyncResource } from 'node:async_hooks';
import { setImmediate as nextTurn } from 'node:timers/promises';
import { Bag } from './bag.js';

/** A lease that is to be renewed in time. */
export interface Watched {
  /** Its place among those that the watchdog watches. -1 while it is not one of them. */
  place: number;
  /** When to wake it next, as `performance.now()` counts. It is read again after each wake. */
  readonly wakeAtMs: number;
  wake(nowMs: number): void;
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
export class Watchdog<Lease extends Watched> {
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
