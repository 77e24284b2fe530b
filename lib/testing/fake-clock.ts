import type { Clock } from '../clock.js';
import { integer } from '../validate.js';

/** The last instant that a `Date` can name. */
const LAST_MS = 8.64e15;

/**
 * The time of a test. It stands still until it is told to move: nothing expires while a debugger waits, and
 * everything does when the test says so.
 *
 * It is the clock of the backends: TTLs, windows, blocks, periods and deadlines go by it. What a process times by
 * itself goes on in real time: how long a caller waits for a lock (`timeoutMs`), when a body's lock is renewed.
 *
 * @example
 * const clock = new FakeClock(new Date('2026-01-31T23:59:00Z'));
 * clock.advance(minutes(1)); // February has begun
 */
export class FakeClock implements Clock {
  #nowMs: number;

  /** @param start - a Date or ms since 1970; the real time */
  constructor(start: Date | number = Date.now()) {
    this.#nowMs = instant('start', start);
  }

  /** In ms since 1970. */
  now(): number {
    return this.#nowMs;
  }

  /** Moves on by so many ms: an integer of at least 0. */
  advance(ms: number): void {
    this.#nowMs += integer('ms', ms, 0, LAST_MS - this.#nowMs);
  }

  /** Jumps to an instant, a Date or ms since 1970; also backwards. */
  set(to: Date | number): void {
    this.#nowMs = instant('to', to);
  }
}

const instant = (name: string, value: Date | number): number =>
  integer(name, typeof value === 'number' ? value : value?.getTime?.(), 0, LAST_MS);
