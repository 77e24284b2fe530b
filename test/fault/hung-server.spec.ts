import 'reflect-metadata';
import { once } from 'node:events';
import { setTimeout as sleep } from 'node:timers/promises';
import { Test } from '@nestjs/testing';
import type { Redis } from 'ioredis';
import { BudgetService, LockService, SyncGuardModule } from 'nestjs-syncguard';
import { eventually } from '../support/eventually.js';
import { stopwatch } from '../support/stopwatch.js';
import { IOREDIS_VERSIONS, ioredisOf } from '../support/ioredis-versions.js';
import { type RedisServer, startRedisServer } from '../support/redis-server.js';

/** What ioredis keeps in this process's memory, sent or not. */
const waitingIn = (client: Redis): number => {
  const { commandQueue, offlineQueue } = client as unknown as Record<string, { length: number }>;
  return (commandQueue?.length ?? 0) + (offlineQueue?.length ?? 0);
};

const budget = {
  limits: [{ scope: 'org', period: 'lifetime' as const, limit: 1_000_000 }],
  reaper: false as const,
};

describe('a server that hangs', () => {
  let server: RedisServer;
  beforeAll(async () => {
    server = await startRedisServer();
  });
  afterAll(() => server.stop());
  afterEach(async () => {
    server.resume();
    server.closeClients();
    await server.client().flushall();
  });

  const boot = async (redis: unknown) => {
    const module = await Test.createTestingModule({
      imports: [SyncGuardModule.forRoot({ redis: redis as string, budget, commandTimeoutMs: 100 })],
    }).compile();
    return module;
  };
  const recordsLeft = async (): Promise<string[]> =>
    (await server.client().keys('syncguard:*')).filter((key) => !key.includes(':fence:'));
  const refused = (promise: Promise<unknown>): Promise<unknown> =>
    promise.then(
      () => 'granted',
      (error: { code?: string }) => error.code,
    );

  describe.each(IOREDIS_VERSIONS)("through a user's client, %s", (_, version) => {
    const { Redis } = ioredisOf(version);

    it('is sent one command a call, and late grants are undone when it returns', async () => {
      const client = server.track(new Redis({ port: server.port, disconnectTimeout: 100 }));
      const module = await boot(client);
      const locks = module.get(LockService);
      server.pause();
      const calls: Promise<unknown>[] = [];
      for (let i = 0; i < 100; i++) {
        calls.push(refused(locks.acquire({ key: `order:${i}`, ttlMs: 60_000 })));
        await sleep(5);
      }
      for (const code of await Promise.all(calls)) expect(code).toBe('NetworkTimeout');
      await sleep(1_200); // Twice as long as it takes until an undo is tried again.
      expect(waitingIn(client)).toBeLessThanOrEqual(1.1 * 100);
      server.resume();
      await eventually(async () =>
        expect(await server.client().get('syncguard:fence:syncguard:order:99')).not.toBeNull(),
      );
      await eventually(async () => expect(await recordsLeft()).toStrictEqual([]));
      await module.close();
    });

    it('is sent no second acquire, renewal, release or finalize of the same call', async () => {
      const client = server.track(new Redis({ port: server.port, disconnectTimeout: 100 }));
      const module = await boot(client);
      const [locks, budgets] = [module.get(LockService), module.get(BudgetService)];
      const hold = await budgets.reserve({ scopes: ['org'], amount: 5 });
      if (!hold.ok) throw new Error('no room');
      let end!: () => void;
      const ended = new Promise<void>((resolve) => (end = resolve));
      let inside!: () => void;
      const started = new Promise<void>((resolve) => (inside = resolve));
      const renewing = refused(locks.lock(() => (inside(), sleep(1_500)), { key: 'renewed', ttlMs: 3_000 }));
      const releasing = refused(locks.lock(() => ended, { key: 'released', ttlMs: 60_000 }));
      await started;
      await eventually(async () => expect(await locks.isLocked({ key: 'released' })).toBe(true));
      server.pause();
      end();
      const others = [
        refused(locks.lock(() => 1, { key: 'waited for', timeoutMs: 1_500 })),
        refused(budgets.finalize(hold, 5)),
      ];
      expect(await Promise.all(others)).toStrictEqual(['NetworkTimeout', 'NetworkTimeout']);
      expect(await releasing).toBe('granted'); // The work is done: its lock is given back in the background.
      expect(await renewing).toBe('granted');
      // An acquire, a finalize, a renewal and a release each, and the release of the one that was renewed.
      expect(waitingIn(client)).toBeLessThanOrEqual(5);
      server.resume();
      await eventually(async () => expect(await recordsLeft()).toStrictEqual([]));
      await module.close();
    });
  });

  it('on our own connection: late grants are undone over the next one', async () => {
    const module = await boot(server.url);
    const locks = module.get(LockService);
    server.pause();
    const calls = Array.from({ length: 20 }, (_, i) =>
      refused(locks.acquire({ key: `order:${i}`, ttlMs: 60_000 })),
    );
    for (const code of await Promise.all(calls)) expect(code).toBe('NetworkTimeout');
    await sleep(1_500); // By then the connection is given up, and its acquires lie in the server's buffer.
    expect(await refused(locks.acquire({ key: 'order:99', ttlMs: 60_000 }))).toBe('ServiceUnavailable');
    server.resume();
    await eventually(async () =>
      expect(await server.client().get('syncguard:fence:syncguard:order:19')).not.toBeNull(),
    );
    await eventually(async () => expect(await recordsLeft()).toStrictEqual([]));
    await module.close();
  });

  it('an acquire that was aborted right before the shutdown leaves no lock behind', async () => {
    const module = await boot(server.url);
    const locks = module.get(LockService);
    const controller = new AbortController();
    const aborted = refused(locks.acquire({ key: 'order:1', ttlMs: 60_000, signal: controller.signal }));
    controller.abort();
    expect(await aborted).toBe('Aborted');
    await module.close();
    expect(await recordsLeft()).toStrictEqual([]);
  });
});

describe('a server that comes back empty', () => {
  it('costs its locks at once: the body learns as soon as the connection is back', async () => {
    await using server = await startRedisServer();
    for (const redis of [server.url, server.client()]) {
      const module = await Test.createTestingModule({
        imports: [SyncGuardModule.forRoot({ redis })],
      }).compile();
      const told = module.get(LockService).lock(
        async ({ signal }) => {
          const lost = once(signal, 'abort');
          const elapsedMs = stopwatch();
          await server.restart();
          await lost;
          expect(elapsedMs()).toBeLessThan(5_000); // At the default TTL: 10 s at the earliest.
          expect(await module.get(LockService).isLocked({ key: 'order:1' })).toBe(false);
        },
        { key: 'order:1' },
      );
      await expect(told).rejects.toMatchObject({ code: 'LockLost' });
      await module.close();
    }
  });
});
