import { Logger } from '@nestjs/common';
import { Test, type TestingModule } from '@nestjs/testing';
import { LockService, SyncGuardHealthIndicator } from 'nestjs-syncguard';
import { startSentinelGroup } from '../../support/engines/sentinel.js';
import { eventually } from '../../support/eventually.js';
import { startRedisServer } from '../../support/redis-server.js';
import { AppModule, redisFrom } from './sentinel-and-cluster/redis.options.js';

describe('docs/guides/sentinel-and-cluster.md', () => {
  let module: TestingModule;
  const before = { ...process.env };
  beforeEach(() => jest.spyOn(Logger.prototype, 'warn').mockImplementation(() => {}));
  afterEach(() => {
    process.env = before;
    jest.restoreAllMocks();
  });

  const start = async (env: Record<string, string>): Promise<LockService> => {
    process.env = { ...before, ...env };
    module = await Test.createTestingModule({ imports: [AppModule] }).compile();
    return module.get(LockService);
  };
  const health = async () => (await module.get(SyncGuardHealthIndicator).isHealthy()).syncguard;

  it('reads what there is from the environment', () => {
    expect(redisFrom({})).toBeUndefined();
    expect(redisFrom({ REDIS_URL: 'redis://one:6379' })).toBe('redis://one:6379');
  });

  it('follows the Sentinels to the next primary, where fences still rise', async () => {
    await using group = await startSentinelGroup();
    const sentinels = group.options.sentinels.map(({ host, port }) => `${host}:${port}`).join();
    const locks = await start({ REDIS_SENTINELS: sentinels });
    const first = await locks.acquire({ key: 'order:7', ttlMs: 300_000 });
    expect(first.ok).toBe(true);
    await group.untilReplicated();

    const old = await group.primary();
    await old.kill();
    await group.untilSwitchedFrom(old);
    await eventually(async () => expect(await health()).toMatchObject({ status: 'up' }), {
      timeoutMs: 20_000,
    });
    if (first.ok) expect(await first.release()).toEqual({ ok: true });
    const second = await locks.acquire({ key: 'order:7', ttlMs: 30_000 });
    expect(second.ok && first.ok && second.fence > first.fence).toBe(true);
    await module.close();
  }, 60_000);

  it('runs on a Cluster, where keys that are locked together share a tag', async () => {
    await using server = await startRedisServer({ cluster: true });
    const locks = await start({ REDIS_CLUSTER: `${server.host}:${server.port}` });
    const together = { keys: ['{user:7}:cart', '{user:7}:wallet'], ttlMs: 30_000 };
    const lock = await locks.acquire(together);
    expect(lock.ok).toBe(true);
    if (lock.ok) await lock.release();
    await expect(locks.acquire({ keys: ['cart', 'wallet'], ttlMs: 30_000 })).rejects.toMatchObject({
      code: 'InvalidArgument',
    });
    await module.close();
  });
});
