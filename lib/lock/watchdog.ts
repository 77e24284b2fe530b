import { AsyncResource } from 'node:async_hooks';
import { monotonicMs } from '../clock.js';

/** A suspended machine's timers stand still: what was lost meanwhile is looked for at least so often. */
const LOOK_EVERY_MS = 1_000;

/** Something that wants to be woken at a moment of `monotonicMs()`, and says anew which after each wake. */
export interface Watched {
  readonly wakeAtMs: number;
  /** May come early. */
  wake(nowMs: number): void;
  /** Makes the next wake renew at once, whatever is due. */
  renewNow(): void;
}

/**
 * Wakes leases when they must be renewed or are lost. One timer for all: what is due together is renewed in
 * one turn, so a thousand locks cost one write to a server.
 */
export class Watchdog {
  readonly #watched = new Set<Watched>();
  // The timer is everybody's: it must not run in the async context of the one who happened to start it.
  readonly #context = new AsyncResource('SyncGuardWatchdog');
  #timer: NodeJS.Timeout | undefined;
  #wakeAtMs = Infinity;

  watch(watched: Watched): void {
    this.#watched.add(watched);
    this.#arm(watched.wakeAtMs);
  }

  /** The moment of the next wake has changed. */
  changed(watched: Watched): void {
    if (this.#watched.has(watched)) this.#arm(watched.wakeAtMs);
  }

  unwatch(watched: Watched): void {
    this.#watched.delete(watched);
  }

  /** Renews all leases in one turn: a lock that the server has lost is found now, not when its renewal is due. */
  renewAll(): void {
    for (const watched of this.#watched) {
      watched.renewNow();
      this.#arm(watched.wakeAtMs);
    }
  }

  #arm(wakeAtMs: number): void {
    if (wakeAtMs === Infinity) return;
    const nowMs = monotonicMs();
    const atMs = Math.min(wakeAtMs, nowMs + LOOK_EVERY_MS);
    if (atMs >= this.#wakeAtMs) return;
    clearTimeout(this.#timer);
    this.#wakeAtMs = atMs;
    const delayMs = Math.max(Math.ceil(atMs - nowMs), 1);
    this.#timer = this.#context.runInAsyncScope(() => setTimeout(this.#tick, delayMs).unref());
  }

  readonly #tick = (): void => {
    this.#wakeAtMs = Infinity;
    const nowMs = monotonicMs();
    let nextMs = Infinity;
    for (const watched of this.#watched) {
      watched.wake(nowMs);
      nextMs = Math.min(nextMs, watched.wakeAtMs);
    }
    this.#arm(nextMs);
  };
}
