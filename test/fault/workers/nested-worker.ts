import { setTimeout as sleep } from 'node:timers/promises';
import { Redis } from 'ioredis';
import { createRedisBackend, LockError } from '../../../lib/index.js';
import { LockService } from '../../../lib/lock/lock.service.js';
import { resolveOptions } from '../../../lib/module/syncguard.options.js';

// One of several processes whose calls take two locks, one inside the other, until each is done. What it has done goes to
// `history`, what it was told in vain to `refused`.
const [url = '', outer = '', inner = '', calls = '', timeoutMs = ''] = process.argv.slice(2);
const redis = new Redis(url);
const locks = new LockService(createRedisBackend(new Redis(url)), resolveOptions());

async function untilDone(): Promise<void> {
  for (;;) {
    const done = await locks
      .lock(
        async () => {
          await sleep(5);
          const inside = async ({ fence }: { fence: string }): Promise<boolean> => {
            await redis.rpush('history', JSON.stringify({ fence, atMs: Date.now() }));
            return true;
          };
          return locks.lock(inside, { key: inner, timeoutMs: Number(timeoutMs) });
        },
        { key: outer, timeoutMs: 60_000 },
      )
      .catch(async (error: unknown) => {
        if (!(error instanceof LockError)) throw error;
        await redis.rpush('refused', error.code);
        return false;
      });
    if (done) return;
  }
}

async function main(): Promise<void> {
  await redis.incr('started');
  while ((await redis.get('started')) !== '3') await sleep(5);
  await Promise.all(Array.from({ length: Number(calls) }, untilDone));
  await locks.onModuleDestroy();
  process.exit(0);
}

void main();
