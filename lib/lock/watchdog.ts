import { AsyncResource } from 'node:async_hooks';
import { Bag, type InBag } from '../core/bag.js';

/**
 * The longest pause between two checks. Timers stand still while the machine is suspended. With this pause a loss is
 * found soon after the machine wakes.
 */
const LOOK_EVERY_MS = 1_000;

/** Something that the watchdog wakes. */
export interface Watched extends InBag {
  /** When to wake it next, as `performance.now()` counts. The watchdog reads it again after each wake. */
  readonly wakeAtMs: number;
  /** May be called before `wakeAtMs`. */
  wake(nowMs: number): void;
  /** Makes the next wake renew at once, even if no renewal is due. */
  renewNow(): void;
}

/**
 * Wakes leases when they must be renewed or are lost. All leases share one timer. Leases that are due together are renewed
 * in one turn of the event loop, so a thousand renewals cost one write to the socket.
 */
export class Watchdog {
  readonly #watched = new Bag<Watched>();
  // All leases share the timer, so it must not run in the async context of the call that started it.
  readonly #context = new AsyncResource('SyncGuardWatchdog');
  #timer: NodeJS.Timeout | undefined;
  #wakeAtMs = Infinity;

  watch(watched: Watched): void {
    this.#watched.add(watched);
    this.#arm(watched.wakeAtMs);
  }

  /** Called when `wakeAtMs` of a lease has changed. */
  changed(watched: Watched): void {
    if (watched.place >= 0) this.#arm(watched.wakeAtMs);
  }

  unwatch(watched: Watched): void {
    this.#watched.delete(watched);
  }

  /** Renews all leases in one turn, so that a lock which the server has lost is found now and not at its next renewal. */
  renewAll(): void {
    for (const watched of this.#watched.toArray()) {
      watched.renewNow();
      this.#arm(watched.wakeAtMs);
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
    for (const watched of this.#watched.toArray()) {
      watched.wake(nowMs);
      nextMs = Math.min(nextMs, watched.wakeAtMs);
    }
    this.#arm(nextMs);
  };
}
