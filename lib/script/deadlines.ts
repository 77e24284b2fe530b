import { monotonicMs } from '../core/clock.js';

const TICK_MS = 20;

/** Something that ends at a time. It knows its place among the others, which is -1 while it is not among them. */
export interface Deadline {
  readonly atMs: number;
  place: number;
  expire(): void;
}

/**
 * Keeps the deadlines of many calls with one coarse timer. A timer for each call would cost more than its
 * script. A deadline fires at most one tick late, and never early.
 *
 * The list is an array and no `Set`: the tables that a busy `Set` leaves behind refer to each other, so the garbage
 * collector kept all calls for a while. That was a quarter of the CPU of 64 calls in flight.
 */
export class Deadlines {
  readonly #pending: Deadline[] = [];
  #timer: NodeJS.Timeout | undefined;

  add(deadline: Deadline): void {
    deadline.place = this.#pending.push(deadline) - 1;
    this.#timer ??= setTimeout(this.#tick, TICK_MS).unref();
  }

  /** Puts the last one in its place. */
  remove(deadline: Deadline): void {
    const { place } = deadline;
    if (place < 0) return;
    deadline.place = -1;
    const last = this.#pending.pop();
    if (last === undefined || last === deadline) return;
    this.#pending[place] = last;
    last.place = place;
  }

  readonly #tick = (): void => {
    this.#timer = undefined;
    const now = monotonicMs();
    const due = this.#pending.filter(({ atMs }) => atMs <= now).sort((a, b) => a.atMs - b.atMs);
    // After a blocked event loop, replies may wait unread in the socket. `setImmediate` lets Node read them first.
    if (due.length > 0) setImmediate(() => this.#expire(due));
    if (this.#pending.length > due.length) this.#timer = setTimeout(this.#tick, TICK_MS).unref();
  };

  #expire(due: readonly Deadline[]): void {
    for (const deadline of due)
      if (deadline.place >= 0) {
        this.remove(deadline);
        deadline.expire();
      }
  }
}
