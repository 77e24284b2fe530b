import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { Test } from '@nestjs/testing';
import type { Redis } from 'ioredis';
import { FenceGuard, LockService, SyncGuardModule } from 'nestjs-syncguard';
import { createFenceGuard, createRedisBackend } from 'nestjs-syncguard/core';
import type { Pool } from 'pg';
import { buildProgram } from '../../fault/workers/build-worker.js';
import { eventually } from '../../support/eventually.js';
import { type PostgresServer, startPostgres } from '../../support/postgres-server.js';
import { freshRedis, workerRedis } from '../../support/redis.js';
import { ROOT } from '../sources.js';
import { Orders } from './fencing/orders.js';
import { shipInSql, shipOnRedis } from './fencing/ship.js';

const page = readFileSync(join(ROOT, 'docs/guides/fencing.md'), 'utf8');
const schema = /^```sql\n(.*?)^```$/ms.exec(page)?.[1] ?? '';

describe('docs/guides/fencing.md', () => {
  let postgres: PostgresServer;
  let db: Pool;
  let redis: Redis;
  let worker: { folder: string; program: string };
  beforeAll(async () => {
    const alias = { 'nestjs-syncguard/core': join(ROOT, 'lib/core.ts') };
    [postgres, worker] = await Promise.all([
      startPostgres(),
      buildProgram(join(__dirname, 'paused-holder.ts'), alias),
    ]);
    db = postgres.pool();
    await db.query('CREATE TABLE orders (id text PRIMARY KEY, state text NOT NULL)');
    await db.query(schema);
  }, 60_000);
  afterAll(async () => {
    await postgres.stop();
    rmSync(worker.folder, { recursive: true });
  });
  beforeEach(async () => {
    redis = (await freshRedis()).client();
    await db.query(`TRUNCATE orders`);
    await db.query(`INSERT INTO orders (id, state) VALUES ('7', 'new')`);
  });

  const stores = {
    Redis: {
      write: (state: string, lock: { fence: string; lockId: string }) =>
        shipOnRedis(createFenceGuard(redis), '7', state, lock),
      read: () => redis.get('order:7'),
    },
    PostgreSQL: {
      write: (state: string, lock: { fence: string; lockId: string }) => shipInSql(db, '7', state, lock),
      read: async () =>
        (await db.query<{ state: string }>(`SELECT state FROM orders WHERE id = '7'`)).rows[0]?.state,
    },
  };

  /** A process takes the lock and stops; another takes it when it has ended, and writes; the first wakes, and writes. */
  async function story(store: keyof typeof stores, fence: 'fenced' | 'unfenced'): Promise<string[]> {
    const args = [worker.program, store, fence, workerRedis().url, postgres.folder];
    const holder = spawn(process.execPath, args, { stdio: ['pipe', 'pipe', 'inherit'] });
    const said: string[] = [];
    holder.stdout.on('data', (data: Buffer) => said.push(...data.toString().trim().split('\n')));
    try {
      await eventually(() => expect(said).toEqual(['holds the lock']), { timeoutMs: 30_000 });
      await stop(holder);
      workerRedis().clock.advance(31_000);
      const lock = await createRedisBackend(redis).acquire({ key: 'order:7', ttlMs: 30_000 });
      if (!lock.ok) throw new Error('The lock did not end.');
      expect(await stores[store].write('by the second', lock)).toBe(true);
      const ended = once(holder, 'exit');
      holder.stdin.write('write\n');
      holder.kill('SIGCONT');
      await ended;
      return said.slice(1);
    } finally {
      holder.kill('SIGKILL');
    }
  }

  it.each(['Redis', 'PostgreSQL'] as const)(
    'a holder that wakes late is refused on %s',
    async (store) => {
      expect(await story(store, 'fenced')).toEqual(['wrote: false']);
      expect(await stores[store].read()).toBe('by the second');
    },
    60_000,
  );

  it.each(['Redis', 'PostgreSQL'] as const)(
    'without the fence it overwrites the next on %s',
    async (store) => {
      expect(await story(store, 'unfenced')).toEqual(['wrote: true']);
      expect(await stores[store].read()).toBe('by the first');
    },
    60_000,
  );

  it('PostgreSQL lets one of many writers be the last: the one with the highest fence', async () => {
    const fences = Array.from({ length: 20 }, (_, i) => String(i + 100).padStart(15, '0'));
    const lockId = 'A'.repeat(22);
    const shuffled = [...fences].sort(() => Math.random() - 0.5);
    await Promise.all(shuffled.map((fence) => stores.PostgreSQL.write(`by ${fence}`, { fence, lockId })));
    expect(await stores.PostgreSQL.read()).toBe(`by ${fences.at(-1)}`);
    const same = { fence: fences.at(-1) as string, lockId: 'B'.repeat(22) };
    expect(await stores.PostgreSQL.write('by another of the same fence', same)).toBe(false);
  });

  it.each(['memory', 'Redis'] as const)(
    'a service that was overtaken answers 409, on %s',
    async (backend) => {
      const module = await Test.createTestingModule({
        imports: [SyncGuardModule.forRoot(backend === 'Redis' ? { redis } : {})],
        providers: [Orders],
      }).compile();
      await module.get(Orders).ship('7');
      expect(await module.get(FenceGuard).get('order:7')).toBe('shipped');
      const overtaking = { resource: 'order:7', fence: '899999999999999', lockId: 'B'.repeat(22) };
      expect(await module.get(FenceGuard).apply(overtaking)).toEqual({ ok: true });
      await expect(module.get(Orders).ship('7')).rejects.toMatchObject({ status: 409 });
      expect(await module.get(LockService).isLocked({ key: 'order:7' })).toBe(false);
      await module.close();
    },
  );
});

async function stop(child: ChildProcess): Promise<void> {
  child.kill('SIGSTOP');
  await eventually(() =>
    expect(readFileSync(`/proc/${child.pid}/stat`, 'utf8').split(') ')[1]?.[0]).toBe('T'),
  );
}
