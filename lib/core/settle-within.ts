import { setTimeout as sleep } from 'node:timers/promises';

/** Waits until all promises have settled, but at most `ms`. An abort of the signal ends the wait. Never rejects. */
export async function settleWithin(
  ms: number,
  promises: readonly Promise<unknown>[],
  signal?: AbortSignal,
): Promise<void> {
  const patience = new AbortController();
  const end = (): void => patience.abort();
  const tooLate = sleep(ms, undefined, { signal: patience.signal }).catch(() => {});
  signal?.addEventListener('abort', end);
  await Promise.race([Promise.allSettled(promises), tooLate]);
  signal?.removeEventListener('abort', end);
  end();
}
