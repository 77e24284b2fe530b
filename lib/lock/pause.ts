import { setMaxListeners } from 'node:events';

/** What may end a pause early by waking. */
export interface Waker {
  onWake(listener: (() => void) | undefined): void;
}

/**
 * Waits for so many ms, or until woken. Returns the signal that aborted meanwhile, if one did.
 *
 * (`AbortSignal.any()` would be shorter, and keeps what it made for as long as a signal lives: here the app's shutdown.)
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
      setMaxListeners(0, signal); // Many may wait by one signal.
      signal.addEventListener('abort', end);
    }
    if (signals.some((signal) => signal?.aborted)) end();
    else waker?.onWake(end);
  });
}
