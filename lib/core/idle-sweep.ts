import { AsyncResource } from 'node:async_hooks';

const EVERY_MS = 30_000;

/** Sweeps a store every 30 s while it holds something, so that ended entries are removed even if no call comes. */
export class IdleSweep {
  // Without a resource of its own the timer would keep the async context of the call that starts it.
  readonly #context = new AsyncResource('SyncGuardIdleSweep');
  readonly #sweep: () => number;
  #timer: NodeJS.Timeout | undefined;

  /** @param sweep - removes what has ended, and returns how many entries are left */
  constructor(sweep: () => number) {
    this.#sweep = sweep;
  }

  /** Call this when something was stored. It does nothing while a sweep is scheduled. */
  start(): void {
    this.#timer ??= this.#context.runInAsyncScope(() => setTimeout(this.#tick, EVERY_MS).unref());
  }

  readonly #tick = (): void => {
    this.#timer = undefined;
    if (this.#sweep() > 0) this.start();
  };
}
