import { AsyncResource } from 'node:async_hooks';

const EVERY_MS = 30_000;
const AT_LEAST = 1_024;

/**
 * Sweeps what has ended out of a store: when the store has doubled since the last sweep, so that the cost of a call is
 * constant on average, and every 30 s while it holds something, so that memory is freed even if no call comes.
 */
export class IdleSweep {
  // Without a resource of its own the timer would keep the async context of the call that starts it.
  readonly #context = new AsyncResource('SyncGuardIdleSweep');
  #sweepAt = AT_LEAST;
  #timer: NodeJS.Timeout | undefined;

  /** @param sweep - removes what has ended, and returns how many entries are left */
  constructor(private readonly sweep: () => number) {}

  /** Call this before something is stored, with the number of entries. */
  grow(size: number): void {
    if (size >= this.#sweepAt) this.#run();
    this.start();
  }

  /** Call this when something was stored. */
  start(): void {
    this.#timer ??= this.#context.runInAsyncScope(() => setTimeout(this.#tick, EVERY_MS).unref());
  }

  readonly #tick = (): void => {
    this.#timer = undefined;
    if (this.#run() > 0) this.start();
  };

  #run(): number {
    const left = this.sweep();
    this.#sweepAt = Math.max(AT_LEAST, 2 * left);
    return left;
  }
}
