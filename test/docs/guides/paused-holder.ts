import { once } from 'node:events';
import { Redis } from 'ioredis';
import { createFenceGuard, createRedisBackend } from 'nestjs-syncguard/core';
import { Pool } from 'pg';
import { shipInSql, shipOnRedis } from './fencing/ship.js';

// Takes the lock, and writes when it is told to, without a look at the clock: a process that stands still between
// its last check and its write behaves so.
const [store = '', fence = '', url = '', host = ''] = process.argv.slice(2);
const redis = new Redis(url);
const db = new Pool({ host, user: 'postgres', database: 'postgres' });

async function main(): Promise<void> {
  await db.query('SELECT 1');
  const lock = await createRedisBackend(redis).acquire({ key: 'order:7', ttlMs: 30_000 });
  if (!lock.ok) throw new Error('The lock is taken.');
  process.stdout.write('holds the lock\n');
  await once(process.stdin, 'data');

  const state = 'by the first';
  const writes: Record<string, () => Promise<boolean>> = {
    'Redis fenced': () => shipOnRedis(createFenceGuard(redis), '7', state, lock),
    'PostgreSQL fenced': () => shipInSql(db, '7', state, lock),
    'Redis unfenced': async () => (await redis.set('order:7', state)) === 'OK',
    'PostgreSQL unfenced': async () =>
      (await db.query(`UPDATE orders SET state = $1 WHERE id = '7'`, [state])).rowCount === 1,
  };
  process.stdout.write(`wrote: ${await writes[`${store} ${fence}`]?.()}\n`);
  process.exit(0);
}

void main();
