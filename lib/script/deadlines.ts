import { Bag, type InBag } from '../core/bag.js';
import { monotonicMs } from '../core/clock.js';

const TICK_MS = 20;

export interface Deadline extends InBag {
  readonly atMs: number;
  expire(): void;
}

/**
 * Keeps the deadlines of many calls with one coarse timer. A timer for each call would cost more than its
 * script. A deadline fires at most one tick late, and never early.
 */
export class Deadlines {
  readonly #pending = new Bag<Deadline>();
  #timer: NodeJS.Timeout | undefined;

  add(deadline: Deadline): void {
    this.#pending.add(deadline);
    this.#timer ??= setTimeout(this.#tick, TICK_MS).unref();
  }

  remove(deadline: Deadline): void {
    this.#pending.delete(deadline);
  }

  readonly #tick = (): void => {
    this.#timer = undefined;
    const now = monotonicMs();
    const due = this.#pending.filter(({ atMs }) => atMs <= now).sort((a, b) => a.atMs - b.atMs);
    // After a blocked event loop, replies may wait unread in the socket. `setImmediate` lets Node read them first.
    if (due.length > 0) setImmediate(() => this.#expire(due));
    if (this.#pending.size > due.length) this.#timer = setTimeout(this.#tick, TICK_MS).unref();
  };

  #expire(due: readonly Deadline[]): void {
    for (const deadline of due) if (this.#pending.delete(deadline)) deadline.expire();
  }
}
