import { pause } from './pause.js';

/** Waits until all promises have settled, but at most `ms`. An abort of the signal ends the wait. Never rejects. */
export async function settleWithin(
  ms: number,
  promises: readonly Promise<unknown>[],
  signal?: AbortSignal,
): Promise<void> {
  const settled = Promise.allSettled(promises);
  await pause(ms, { signals: [signal], onBegin: (end) => void settled.then(end) });
}
