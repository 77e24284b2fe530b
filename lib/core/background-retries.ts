import { setTimeout as sleep } from 'node:timers/promises';
import { isOwed, SyncGuardError } from './errors.js';
import { pause } from './pause.js';

/** Pauses between the attempts of a call that waits. The waiting for each answer comes on top. */
const SHORT_PAUSES_MS = [50, 250];
const FIRST_PAUSE_MS = 250;
const LONGEST_PAUSE_MS = 4_000;
const PASSING: readonly unknown[] = ['ServiceUnavailable', 'NetworkTimeout'];

/** Tries once. Resolves to true when nothing is left to do. A rejection counts as a failed try. */
export type Attempt = () => Promise<boolean>;

/**
 * Repeats commands that Redis did not answer, such as the release of a lock that nobody uses, or the settling of a
 * budget hold whose work is done.
 */
export class BackgroundRetries {
  readonly #pending = new Set<Promise<void>>();
  readonly #closing = new AbortController();

  /**
   * Starts the retries of one call.
   *
   * @param forMs - how long to go on, in ms
   * @param fault - the error of the call. While its reply may still come, nothing is sent again.
   */
  start(attempt: Attempt, forMs: number, fault?: unknown): void {
    const retries = this.#retry(attempt, performance.now() + forMs, fault).finally(() =>
      this.#pending.delete(retries),
    );
    this.#pending.add(retries);
  }

  /** Wakes all pending retries for one last attempt, and waits for them. Called before the connection closes. */
  async flush(): Promise<void> {
    this.#closing.abort();
    await Promise.all(this.#pending);
  }

  async #retry(attempt: Attempt, endMs: number, fault: unknown): Promise<void> {
    const { signal } = this.#closing;
    const note = (error: unknown): false => ((fault = error), false);
    for (let pauseMs = FIRST_PAUSE_MS; ; pauseMs = Math.min(2 * pauseMs, LONGEST_PAUSE_MS)) {
      const isLast = signal.aborted;
      if (!isOwed(fault) && (await attempt().catch(note))) return;
      if (isLast || performance.now() + pauseMs >= endMs) return;
      await pause(pauseMs, { signals: [signal], ref: false }); // An abort ends the pause early. The last attempt follows.
    }
  }
}

/** Repeats a call up to twice when Redis does not answer. The call must be safe to repeat. */
export async function retried<T>(call: () => Promise<T>): Promise<T> {
  for (const pauseMs of SHORT_PAUSES_MS) {
    try {
      return await call();
    } catch (fault) {
      if (!(fault instanceof SyncGuardError && PASSING.includes(fault.code))) throw fault;
      await sleep(pauseMs);
      // A command that Redis may still answer is not sent again.
      if (isOwed(fault)) throw fault;
    }
  }
  return call();
}
