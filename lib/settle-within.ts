import { setTimeout as sleep } from 'node:timers/promises';

/** Waits until all promises have settled, but at most `ms`. Never rejects. */
export async function settleWithin(ms: number, promises: readonly Promise<unknown>[]): Promise<void> {
  const patience = new AbortController();
  const tooLate = sleep(ms, undefined, { signal: patience.signal }).catch(() => {});
  await Promise.race([Promise.allSettled(promises), tooLate]);
  patience.abort();
}
