/** The most calls that begin in one turn of the event loop. */
const CALLS_A_TURN = 256;

// Kept, so that fake timers of a user's test do not hold up the calls to a real Redis.
const atTurnsEnd = setImmediate;

/**
 * Lets calls begin in the order in which they come, and some of them in later turns of the event loop where thousands come
 * at once: to begin them all in one turn would stop the process.
 */
export class Intake {
  #begun = 0;
  #waiting: (() => void)[] = [];

  /** Returns undefined if the call may begin at once. */
  enter(): Promise<void> | undefined {
    if (this.#begun === 0) atTurnsEnd(this.#nextTurn);
    if (this.#begun < CALLS_A_TURN) {
      this.#begun++;
      return undefined;
    }
    return new Promise((resolve) => this.#waiting.push(resolve));
  }

  readonly #nextTurn = (): void => {
    const next = this.#waiting.slice(0, CALLS_A_TURN);
    this.#waiting = this.#waiting.slice(CALLS_A_TURN);
    // Those that still wait come before those that come now.
    this.#begun = this.#waiting.length > 0 ? CALLS_A_TURN : next.length;
    if (this.#begun > 0) atTurnsEnd(this.#nextTurn);
    for (const begin of next) begin();
  };
}
