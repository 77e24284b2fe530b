import { Redis } from 'ioredis';
import { setTimeout as sleep } from 'node:timers/promises';
import { createRedisBackend } from '../../../lib/index.js';
import { LockService } from '../../../lib/lock/lock.service.js';
import { resolveOptions } from '../../../lib/module/syncguard.options.js';

// One of several processes that want the same lock. Each section proves by an INCR/DECR pair that nobody else
// is inside, and tells its fence.
const [url = '', workers = '', sections = ''] = process.argv.slice(2);
const redis = new Redis(url);
const locks = new LockService(createRedisBackend(new Redis(url)), resolveOptions());

async function worker(name: number): Promise<void> {
  for (let i = 0; i < Number(sections); i++)
    await locks.lock(
      async ({ fence }) => {
        const inside = await redis.incr('inside');
        await sleep(1);
        await redis.rpush('history', JSON.stringify({ pid: process.pid, name, fence, inside }));
        await redis.decr('inside');
      },
      { key: 'shared', ttlMs: 3_000, timeoutMs: 60_000, retryDelayMs: 5 },
    );
}

void Promise.all(Array.from({ length: Number(workers) }, (_, name) => worker(name))).then(() =>
  process.exit(0),
);
