import { Redis } from 'ioredis';
import { createRedisBackend } from 'nestjs-syncguard';
import { RedisBudgetBackend } from '../../lib/budget/redis/budget.redis-backend.js';
import { BudgetReaper } from '../../lib/budget/budget.reaper.js';
import { parsePeriodKey } from '../../lib/budget/budget.calendar.js';
import { ScriptRunner } from '../../lib/script/script-runner.js';
import { eventually } from '../support/eventually.js';
import { startLyingServer } from '../support/lying-server.js';
import { movedTime } from '../support/moved-time.js';
import { freshRedis } from '../support/redis.js';

const COMMAND_TIMEOUT_MS = 400;
const limits = [{ period: parsePeriodKey('day'), limit: 100, thresholds: [], inherited: false }];
const scopes = [{ scope: 'org', limits }];
const hold = { root: 'default', id: 'i', amount: 1, ttlMs: 60_000, meta: '', nonce: 'n', scopes };

describe('a server whose scripts always want to be called again', () => {
  const clients: Redis[] = [];
  afterEach(() => {
    for (const client of clients.splice(0)) client.disconnect();
  });
  const backendOn = ({ port }: { port: number }): RedisBudgetBackend => {
    const client = new Redis({ port, protocol: 2, enableReadyCheck: false });
    clients.push(client);
    return new RedisBudgetBackend(new ScriptRunner(client, COMMAND_TIMEOUT_MS), {
      keyPrefix: 'syncguard',
      retentionMs: 900_000,
    });
  };

  it('more ends a call', async () => {
    const untilMs = performance.now() + 20 * COMMAND_TIMEOUT_MS;
    await using server = await startLyingServer(() => (performance.now() < untilMs ? ['more'] : ['the end']));
    const backend = backendOn(server);
    await eventually(() => expect(clients[0]?.status).toBe('ready'));
    await expect(backend.reserve({ ...hold, mode: 'run' })).rejects.toMatchObject({
      code: 'Internal',
      message: expect.stringContaining("'more' again and again") as unknown,
    });
    expect(server.scripts).toBeGreaterThan(1);
  });

  it('a root that is never done does not hold up the others', async () => {
    const reaped = new Set<string>();
    const faults: unknown[] = [];
    const backend = {
      reap: ({ root }: { root: string }) =>
        new Promise<{ expired: []; quarantined: []; purged: 0; nextInMs: 0 }>((resolve) => {
          reaped.add(root);
          setImmediate(() => resolve({ expired: [], quarantined: [], purged: 0, nextInMs: 0 }));
        }),
      roots: async () => ({ untilMs: 0, roots: ['one', 'two'] }),
    };
    const reaper = new BudgetReaper(
      backend,
      5,
      () => {},
      (fault) => faults.push(fault),
    );
    try {
      await eventually(() => expect(reaped).toStrictEqual(new Set(['one', 'two'])));
    } finally {
      await reaper.stop();
    }
    expect(faults).toStrictEqual([]);
  });
});

it('a lock that is handed over for ever is not looked at for ever', async () => {
  const client = (await freshRedis()).client();
  const looks = async (): Promise<number> => {
    const scripts = (await client.info('commandstats')).matchAll(/cmdstat_eval(?:sha)?:calls=(\d+)/g);
    return [...scripts].reduce((sum, [, calls]) => sum + Number(calls), 0);
  };
  const lock = await createRedisBackend(client).acquire({ key: 'order', ttlMs: 30_000 });
  // A waiter that no message reaches, and that never takes its lock.
  await client.zadd('syncguard/queue:order', 1, `${'w'.repeat(22)}${'p'.repeat(16)}-`);
  await client.append('syncguard:order', ' ');
  const time = movedTime();
  try {
    if (lock.ok) await lock.release();
    await client.persist('syncguard:order');
    const before = await looks();
    await time.pass(4_000);
    const after = await looks();
    expect(after - before).toBe(100);
    await time.pass(1_000);
    expect(await looks()).toBe(after);
  } finally {
    time.end();
  }
});
