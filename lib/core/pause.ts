import { offAbort, onAbort } from './abort-listeners.js';

export interface PauseOptions {
  /** Each of them ends the pause when it aborts. */
  readonly signals: readonly (AbortSignal | undefined)[];
  /** Called with what ends the pause early. */
  readonly onBegin?: (end: () => void) => void;
  /** Whether the pause keeps the process alive. Default: true. */
  readonly ref?: boolean;
}

/** Waits for `ms`, or less if something ends the pause early. Never rejects. */
export function pause(ms: number, { signals, onBegin, ref = true }: PauseOptions): Promise<void> {
  return new Promise((resolve) => {
    const handleEvent = (): void => {
      clearTimeout(timer);
      for (const signal of signals) if (signal) offAbort(signal, listener);
      resolve();
    };
    const listener = { handleEvent };
    const timer = setTimeout(handleEvent, ms);
    if (!ref) timer.unref();
    if (signals.some((signal) => signal?.aborted)) return handleEvent();
    for (const signal of signals) if (signal) onAbort(signal, listener);
    onBegin?.(handleEvent);
  });
}
