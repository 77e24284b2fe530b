import { monotonicMs } from '../clock.js';

const FAILURES_TO_OPEN = 5;
const FIRST_PAUSE_MS = 1_000;
const LONGEST_PAUSE_MS = 5_000;

/**
 * Stops calling a server that does not answer: after five failures in a row for 1 s, then, each time that a
 * single probe fails too, for twice as long, up to 5 s.
 */
export class CircuitBreaker {
  #failures = 0;
  #pauseMs = FIRST_PAUSE_MS;
  #closedAgainAtMs = 0;
  #probing = false;

  constructor(private readonly now: () => number = monotonicMs) {}

  /** Whether a call may be made. While the pause is over and nothing is known yet: one, the probe. */
  tryEnter(): boolean {
    if (this.#failures < FAILURES_TO_OPEN) return true;
    if (this.#probing || this.now() < this.#closedAgainAtMs) return false;
    this.#probing = true;
    return true;
  }

  /** How long until calls are made again, in ms; 0 when they are. */
  get pauseLeftMs(): number {
    return this.#failures < FAILURES_TO_OPEN ? 0 : Math.max(0, this.#closedAgainAtMs - this.now());
  }

  succeeded(): void {
    this.#failures = 0;
    this.#pauseMs = FIRST_PAUSE_MS;
    this.#probing = false;
  }

  /** True: with this failure the calls stop. */
  failed(): boolean {
    const wasOpen = this.#failures >= FAILURES_TO_OPEN;
    // Calls that were under way when it opened say nothing new.
    if (wasOpen && !this.#probing) return false;
    this.#failures++;
    this.#probing = false;
    if (this.#failures < FAILURES_TO_OPEN) return false;
    this.#closedAgainAtMs = this.now() + this.#pauseMs;
    this.#pauseMs = Math.min(2 * this.#pauseMs, LONGEST_PAUSE_MS);
    return !wasOpen;
  }

  /** The call came to nothing that speaks of the server: the caller gave it up. */
  abandoned(): void {
    this.#probing = false;
  }
}
