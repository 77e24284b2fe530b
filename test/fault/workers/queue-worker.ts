import { Redis } from 'ioredis';
import { createRedisBackend } from '../../../lib/index.js';
import { RedisTurn } from '../../../lib/lock/redis/lock.redis-turns.js';
import { LockService } from '../../../lib/lock/lock.service.js';
import { resolveOptions } from '../../../lib/module/syncguard.options.js';

// One of several processes that wait for locks as they are told: what it is told, and what it tells, goes over IPC.
const [url = ''] = process.argv.slice(2);
const redis = new Redis(url);
const locks = new LockService(
  createRedisBackend(new Redis(url)),
  resolveOptions({ lock: { pollMs: 60_000, timeoutMs: 120_000 } }),
);
const leave = new Map<string, () => void>();
const tell = (event: object): void => void process.send?.(event);

interface Order {
  readonly do: 'lock' | 'leave' | 'work' | 'block' | 'die at the next turn';
  readonly name: string;
  readonly key: string;
  readonly ttlMs?: number;
  readonly ms?: number;
}

/** Stays inside until it is told to leave. */
async function lock({ name, key, ttlMs }: Order): Promise<void> {
  await locks.lock(
    ({ fence }) => {
      tell({ event: 'in', name, fence, atMs: performance.timeOrigin + performance.now() });
      return new Promise<void>((resolve) => leave.set(name, resolve));
    },
    { key, ...(ttlMs ? { ttlMs } : {}) },
  );
  tell({ event: 'out', name });
}

/** Works, section by section, until 300 are done by all workers together. */
async function work({ name, key }: Order): Promise<void> {
  let isOver = false;
  while (!isOver)
    await locks.lock(
      async ({ fence }) => {
        const inside = await redis.incr('inside');
        const section = await redis.incr('sections');
        isOver = section > 300;
        if (!isOver) await redis.rpush('history', JSON.stringify({ name, fence, inside }));
        await redis.decr('inside');
      },
      { key },
    );
  tell({ event: 'out', name });
}

process.on('message', (order: Order) => {
  const failed = (error: unknown): void => tell({ event: 'failed', name: order.name, error: String(error) });
  switch (order.do) {
    case 'lock':
      return void lock(order).catch(failed);
    case 'work':
      return void work(order).catch(failed);
    case 'leave':
      return leave.get(order.name)?.();
    case 'block': {
      tell({ event: 'blocked', name: '' });
      const untilMs = performance.now() + (order.ms ?? 0);
      while (performance.now() < untilMs);
      return;
    }
    case 'die at the next turn':
      // It is told that the lock is its own, and has not taken it yet.
      RedisTurn.prototype.wake = () => process.kill(process.pid, 'SIGKILL');
      return tell({ event: 'armed' });
  }
});
process.once('disconnect', () => process.exit(0));
tell({ event: 'ready' });
