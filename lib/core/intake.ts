/** The most calls that begin in one turn of the event loop. */
const CALLS_A_TURN = 256;

/** How many begin in the first of the later turns, as nobody knows yet how long a call takes to begin. */
const FIRST_CALLS = 32;

/** How long the calls of a later turn take together to begin, in ms: as many begin as did so in the turn before. */
const BEGINNING_MS = 2;

// Kept, so that fake timers of a user's test do not hold up the calls to a real Redis.
const atTurnsEnd = setImmediate;

/**
 * Lets calls begin in the order in which they come, and some of them in later turns of the event loop where thousands come
 * at once: to begin them all in one turn would stop the process. Those turns are short, as a lock takes three of them to go
 * from one caller to the next: it goes on while others come in.
 */
export class Intake {
  #most = FIRST_CALLS;
  #begun = 0;
  #beganMs = 0;
  #waiting: (() => void)[] = [];

  /** Returns undefined if the call may begin at once. */
  enter(): Promise<void> | undefined {
    if (this.#begun === 0) this.#atTurnsEnd();
    if (this.#begun < CALLS_A_TURN) {
      this.#begun++;
      return undefined;
    }
    return new Promise((resolve) => this.#waiting.push(resolve));
  }

  #atTurnsEnd(): void {
    atTurnsEnd(this.#begin);
    if (this.#waiting.length > 0) atTurnsEnd(this.#measure);
  }

  readonly #begin = (): void => {
    const next = this.#waiting.slice(0, this.#most);
    this.#waiting = this.#waiting.slice(next.length);
    // Those that still wait come before those that come now.
    this.#begun = this.#waiting.length > 0 ? CALLS_A_TURN : next.length;
    if (this.#begun > 0) this.#atTurnsEnd();
    this.#beganMs = performance.now();
    for (const begin of next) begin();
  };

  /** Runs when the calls have done what they do at once. */
  readonly #measure = (): void => {
    const tookMs = performance.now() - this.#beganMs;
    this.#most = Math.min(CALLS_A_TURN, Math.max(1, Math.floor((this.#most * BEGINNING_MS) / tookMs)));
  };
}
