import { setMaxListeners } from 'node:events';

/** Something that may end a pause early. */
export interface Waker {
  onWake(listener: (() => void) | undefined): void;
}

/**
 * Waits for `ms`, until a signal aborts or until `waker` wakes. Returns the signal that has aborted, if any.
 *
 * `AbortSignal.any()` would be shorter, but its results stay in memory for as long as the signal of the shutdown lives.
 */
export function pause(
  ms: number,
  signals: readonly (AbortSignal | undefined)[],
  waker?: Waker,
): Promise<AbortSignal | undefined> {
  return new Promise((resolve) => {
    const end = (): void => {
      clearTimeout(timer);
      waker?.onWake(undefined);
      for (const signal of signals) signal?.removeEventListener('abort', end);
      resolve(signals.find((signal) => signal?.aborted));
    };
    const timer = setTimeout(end, ms);
    for (const signal of signals) {
      if (!signal) continue;
      setMaxListeners(0, signal); // Any number of calls may wait with one signal.
      signal.addEventListener('abort', end);
    }
    if (signals.some((signal) => signal?.aborted)) end();
    else waker?.onWake(end);
  });
}
