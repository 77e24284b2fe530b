import { AsyncResource } from 'node:async_hooks';
import type { Lease } from './lease.js';
import { Bag } from './lock.handle.js';

/**
 * The longest pause between two checks. Timers stand still while the machine is suspended. With this pause a loss is
 * found soon after the machine wakes.
 */
const LOOK_EVERY_MS = 1_000;

/**
 * Wakes leases when they must be renewed or are lost. All leases share one timer. Leases that are due together are renewed
 * in one turn of the event loop, so a thousand renewals cost one write to the socket.
 */
export class Watchdog {
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

  /** Renews all leases in one turn, so that a lock which the server has lost is found now and not at its next renewal. */
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
    this.#timer = this.#context.runInAsyncScope(() => setTimeout(this.#tick, delayMs).unref());
  }

  readonly #tick = (): void => {
    this.#wakeAtMs = Infinity;
    const nowMs = performance.now();
    let nextMs = Infinity;
    for (const lease of this.leases()) {
      lease.wake(nowMs);
      nextMs = Math.min(nextMs, lease.wakeAtMs);
    }
    this.#arm(nextMs);
  };
}
