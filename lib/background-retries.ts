import { setMaxListeners } from 'node:events';
import { setTimeout as sleep } from 'node:timers/promises';
import { monotonicMs } from './clock.js';
import { isOwed } from './owed.js';

const FIRST_PAUSE_MS = 250;
const LONGEST_PAUSE_MS = 4_000;

/** One try; true: there is nothing left to do. A rejection is a try that failed. */
export type Attempt = () => Promise<boolean>;

/**
 * Does in the background what Redis did not answer in the foreground: gives back a lock that nobody uses, settles a
 * budget whose work is done. Each ends when its attempt says so, or when its time is over.
 */
export class BackgroundRetries {
  readonly #pending = new Set<Promise<void>>();
  readonly #closing = new AbortController();

  constructor() {
    setMaxListeners(0, this.#closing.signal); // After an outage many wait at once.
  }

  /** @param fault - of the try in the foreground: as long as its reply is owed, nothing is sent again */
  start(attempt: Attempt, forMs: number, fault?: unknown): void {
    const retries = this.#retry(attempt, monotonicMs() + forMs, fault).finally(() =>
      this.#pending.delete(retries),
    );
    this.#pending.add(retries);
  }

  /** Waits for all that is pending, and for one last attempt of each: the connection is about to close. */
  async flush(): Promise<void> {
    this.#closing.abort();
    await Promise.all(this.#pending);
  }

  async #retry(attempt: Attempt, endMs: number, lastFault: unknown): Promise<void> {
    const { signal } = this.#closing;
    let fault = lastFault;
    const note = (error: unknown): false => ((fault = error), false);
    for (let pauseMs = FIRST_PAUSE_MS; ; pauseMs = Math.min(2 * pauseMs, LONGEST_PAUSE_MS)) {
      const isLast = signal.aborted;
      if (!isOwed(fault) && (await attempt().catch(note))) return;
      if (isLast || monotonicMs() + pauseMs >= endMs) return;
      await sleep(pauseMs, undefined, { ref: false, signal }).catch(() => {}); // Woken for its last attempt.
    }
  }
}
