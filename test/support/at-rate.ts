import { setTimeout as sleep } from 'node:timers/promises';

/**
 * Starts a call as often as it should, on average also where the machine is busy for a while: calls that are due are
 * made up for at once. Resolves with all of them when the last one has settled.
 *
 * @example const codes = await atRate({ perSecond: 200, seconds: 25 }, (i) => acquire(`order:${i}`));
 */
export async function atRate<T>(
  { perSecond, seconds }: { perSecond: number; seconds: number },
  call: (i: number) => Promise<T>,
): Promise<T[]> {
  const calls: Promise<T>[] = [];
  const startMs = performance.now();
  while (calls.length < perSecond * seconds) {
    const due = Math.min(perSecond * seconds, ((performance.now() - startMs) / 1_000) * perSecond);
    while (calls.length < due) calls.push(call(calls.length));
    await sleep(5);
  }
  return Promise.all(calls);
}
