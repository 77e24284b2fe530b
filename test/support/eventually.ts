import { setTimeout as sleep } from 'node:timers/promises';

// Taken before a spec can put fake timers in its place, which would make the deadline never come.
const now = performance.now.bind(performance);

export interface EventuallyOptions {
  timeoutMs?: number;
  intervalMs?: number;
}

/**
 * Repeats an assertion until it holds, and gives what it returned; when time is up, its last error. Instead of a
 * fixed sleep, which is too long on a fast machine and too short on a slow one.
 *
 * @example await eventually(async () => expect(await redis.exists(key)).toBe(0));
 */
export async function eventually<T>(
  assertion: () => T | Promise<T>,
  { timeoutMs = 15_000, intervalMs = 10 }: EventuallyOptions = {},
): Promise<T> {
  const deadline = now() + timeoutMs;
  for (;;) {
    try {
      return await assertion();
    } catch (error) {
      if (now() >= deadline) throw error;
    }
    await sleep(intervalMs);
  }
}
