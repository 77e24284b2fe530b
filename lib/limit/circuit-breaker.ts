import { monotonicMs } from '../core/clock.js';

const FAILURES_TO_OPEN = 5;
const FIRST_PAUSE_MS = 1_000;
const LONGEST_PAUSE_MS = 5_000;

/**
 * Stops calls to a server that does not answer. After five failures in a row it pauses for 1 s. Then it lets one call
 * through as a probe. Each probe that fails doubles the pause, up to 5 s.
 */
export class CircuitBreaker {
  #failures = 0;
  #pauseMs = FIRST_PAUSE_MS;
  #pauseEndsAtMs = 0;
  #probing = false;

  constructor(private readonly now: () => number = monotonicMs) {}

  /** Returns whether a call may be made. After a pause only one call may, the probe, until its result is known. */
  tryEnter(): boolean {
    if (this.#failures < FAILURES_TO_OPEN) return true;
    if (this.#probing || this.now() < this.#pauseEndsAtMs) return false;
    this.#probing = true;
    return true;
  }

  /** The rest of the pause, in ms. 0 outside of a pause. */
  get pauseLeftMs(): number {
    return this.#failures < FAILURES_TO_OPEN ? 0 : Math.max(0, this.#pauseEndsAtMs - this.now());
  }

  /** Called when the server has answered. */
  succeeded(): void {
    this.#failures = 0;
    this.#pauseMs = FIRST_PAUSE_MS;
    this.#probing = false;
  }

  /** Called when the server has not answered. Returns true if this failure starts the first pause. */
  failed(): boolean {
    const wasOpen = this.#failures >= FAILURES_TO_OPEN;
    // This call was sent before the pause began, so its failure shows nothing new.
    if (wasOpen && !this.#probing) return false;
    this.#failures++;
    this.#probing = false;
    if (this.#failures < FAILURES_TO_OPEN) return false;
    this.#pauseEndsAtMs = this.now() + this.#pauseMs;
    this.#pauseMs = Math.min(2 * this.#pauseMs, LONGEST_PAUSE_MS);
    return !wasOpen;
  }

  /** Called when the caller has given up the call, which shows nothing about the server. */
  abandoned(): void {
    this.#probing = false;
  }
}
