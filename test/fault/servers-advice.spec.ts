import 'reflect-metadata';
import { Test, type TestingModule } from '@nestjs/testing';
import { CounterService, LockService, SyncGuardHealthIndicator, SyncGuardModule } from 'nestjs-syncguard';
import { crash, fillMemory, switchPrimary } from '../support/engines/faults.js';
import { startSentinelGroup } from '../support/engines/sentinel.js';
import { eventually } from '../support/eventually.js';
import { startRedisServer } from '../support/redis-server.js';

// What docs/redis.md says to set on the server, on servers that are set so.

const boot = (redis: unknown): Promise<TestingModule> =>
  Test.createTestingModule({ imports: [SyncGuardModule.forRoot({ redis: redis as string })] }).compile();

const codeOf = (promise: Promise<unknown>): Promise<unknown> =>
  promise.then(
    () => 'done',
    (error: { code?: string }) => error.code,
  );

const statusOf = async (module: TestingModule): Promise<string> => {
  const { syncguard } = await module.get(SyncGuardHealthIndicator).isHealthy();
  return (syncguard as { status: string }).status;
};

it('min-replicas-to-write 1: a primary that has lost its replica grants nothing, until it is back', async () => {
  const args = ['--min-replicas-to-write', '1', '--min-replicas-max-lag', '10'];
  await using group = await startSentinelGroup({ args });
  const module = await boot(group.options);
  const locks = module.get(LockService);
  const acquire = (key: string): Promise<unknown> => codeOf(locks.acquire({ key, ttlMs: 60_000 }));
  expect(await acquire('order:1')).toBe('done');
  expect(await statusOf(module)).toBe('up');

  const primary = await group.primary();
  const replica = group.servers.find((server) => server !== primary) as typeof primary;
  const heal = await crash(replica);
  await eventually(async () => expect(await acquire('order:2')).toBe('ServiceUnavailable'));
  expect(await statusOf(module)).toBe('down');
  await heal();
  await group.untilReplicated();
  await eventually(async () => expect(await acquire('order:3')).toBe('done'));
  expect(await statusOf(module)).toBe('up');

  // A switch goes on working: the new primary takes writes as soon as the old one copies it.
  // (A Sentinel that has not seen the replica's return yet refuses.)
  await eventually(() => switchPrimary(group));
  await eventually(async () => expect(await acquire('order:4')).toBe('done'));
  expect(await locks.isLocked({ key: 'order:1' })).toBe(true);
  await module.close();
});

it('noeviction: a full server counts nothing, forgets nothing, and takes what frees memory', async () => {
  await using server = await startRedisServer();
  const module = await boot(server.url);
  const counters = module.get(CounterService);
  const increment = (key: string): Promise<unknown> =>
    codeOf(counters.increment(key, { max: 5, windowMs: 600_000 }));
  expect(await increment('known')).toBe('done');
  const heal = await fillMemory(server);
  expect(await increment('new')).toBe('ServiceUnavailable');
  expect(await increment('known')).toBe('ServiceUnavailable');
  expect(await statusOf(module)).toBe('down');
  expect(await counters.peek('known')).toMatchObject({ count: 1 });
  expect(await counters.peek('new')).toMatchObject({ count: 0 });
  await counters.reset('known');
  await heal();
  expect(await counters.peek('known')).toMatchObject({ count: 0 });
  expect(await increment('known')).toBe('done');
  expect(await statusOf(module)).toBe('up');
  await module.close();
});
