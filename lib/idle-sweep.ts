import { AsyncResource } from 'node:async_hooks';

const EVERY_MS = 30_000;

/** Sweeps a store now and then for as long as it holds something: what has ended must go also where no call comes. */
export class IdleSweep {
  // The timer is the store's: it must not keep the async context of the call that happened to start it.
  readonly #context = new AsyncResource('SyncGuardIdleSweep');
  readonly #sweep: () => number;
  #timer: NodeJS.Timeout | undefined;

  /** @param sweep - drops what has ended; returns how much is left */
  constructor(sweep: () => number) {
    this.#sweep = sweep;
  }

  /** Something was stored. Costs nothing while a sweep is on its way. */
  start(): void {
    this.#timer ??= this.#context.runInAsyncScope(() => setTimeout(this.#tick, EVERY_MS).unref());
  }

  readonly #tick = (): void => {
    this.#timer = undefined;
    if (this.#sweep() > 0) this.start();
  };
}
