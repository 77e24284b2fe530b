// semaphore-before.ts
import type { Redis } from 'ioredis';
import { Semaphore } from 'redis-semaphore';

/** Runs at most two at once in all processes; the others wait for 10 s at most. */
export async function callPartner<T>(redis: Redis, call: () => Promise<T>): Promise<T> {
  const semaphore = new Semaphore(redis, 'partner', 2);
  await semaphore.acquire();
  try {
    return await call();
  } finally {
    await semaphore.release();
  }
}
