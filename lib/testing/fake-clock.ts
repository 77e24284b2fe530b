import type { Clock } from '../core/clock.js';
import { integer } from '../core/validate.js';

/** The last instant that a `Date` can name. */
const LAST_MS = 8.64e15;

/**
 * The clock of a test. It stands still until the test moves it, so nothing expires while a debugger waits.
 *
 * The backends read it: TTLs, windows, blocks, periods and deadlines follow it. Timers of the process stay in real
 * time: how long a caller waits for a lock (`timeoutMs`), and when the lock of a body is renewed.
 *
 * @example
 * const clock = new FakeClock(new Date('2026-01-31T23:59:00Z'));
 * clock.advance(minutes(1)); // February has begun
 */
export class FakeClock implements Clock {
  #nowMs: number;

  /** @param start - where the clock starts: a Date or ms since 1970. Default: now. */
  constructor(start: Date | number = Date.now()) {
    this.#nowMs = instant('start', start);
  }

  /** Returns the time in ms since 1970. */
  now(): number {
    return this.#nowMs;
  }

  /** Moves the clock forward by an integer of at least 0 ms. */
  advance(ms: number): void {
    this.#nowMs += integer('ms', ms, 0, LAST_MS - this.#nowMs);
  }

  /** Sets the clock to a Date or to ms since 1970. It may go backwards. */
  set(to: Date | number): void {
    this.#nowMs = instant('to', to);
  }
}

const instant = (name: string, value: Date | number): number =>
  integer(name, typeof value === 'number' ? value : value?.getTime?.(), 0, LAST_MS);
