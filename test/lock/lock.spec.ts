import { Cluster } from 'ioredis';
import { Redis as Redis5 } from 'ioredis5';
import { createMemoryBackend, createRedisBackend } from 'nestjs-syncguard';
import { describeInBatches } from '../support/in-batches.js';
import { freshRedis, workerRedis } from '../support/redis.js';
import { type RedisServer, startRedisServer } from '../support/redis-server.js';
import { describeLockBackend, PATIENT } from './lock.contract.js';

describeLockBackend('memory', async () => {
  let offsetMs = 0;
  return {
    backend: createMemoryBackend({ clock: { now: () => Date.now() + offsetMs } }),
    advance: (ms) => (offsetMs += ms),
  };
});

describe('memory that nobody asks any more', () => {
  afterEach(() => jest.useRealTimers());

  it('is given back: 5,000 expired locks are gone within a minute, and then no timer is left', async () => {
    jest.useFakeTimers({ doNotFake: ['performance'] });
    let nowMs = 0;
    const backend = createMemoryBackend({ clock: { now: () => nowMs } });
    const lookups = jest.spyOn(Map.prototype, 'delete');
    for (let i = 0; i < 5_000; i++) await backend.acquire({ key: `order:${i}`, ttlMs: 1_000 });
    await backend.acquire({ key: 'long', ttlMs: 50_000 });
    nowMs = 30_000;
    lookups.mockClear();
    jest.advanceTimersByTime(30_000);
    // Each by its key and by its id.
    expect(lookups).toHaveBeenCalledTimes(10_000);
    nowMs = 60_000;
    jest.advanceTimersByTime(30_000);
    expect(lookups).toHaveBeenCalledTimes(10_002);
    expect(jest.getTimerCount()).toBe(0);
    lookups.mockRestore();
  });
});

const advance = (ms: number): void => workerRedis().clock.advance(ms);

describeLockBackend('Redis', async () => {
  const redis = await freshRedis();
  return { backend: createRedisBackend(redis.client(), PATIENT), advance };
});

describeInBatches('each call in a batch', () =>
  describeLockBackend('Redis', async () => {
    const redis = await freshRedis();
    return { backend: createRedisBackend(redis.client(), PATIENT), advance };
  }),
);

describeLockBackend('Redis, slotted keys, a client with a keyPrefix', async () => {
  const redis = await freshRedis();
  return {
    backend: createRedisBackend(redis.client({ keyPrefix: 'app:' }), { ...PATIENT, keyLayout: 'slotted' }),
    advance,
  };
});

describeLockBackend('Redis, a client with a keyPrefix and auto-pipelining', async () => {
  const redis = await freshRedis();
  return {
    backend: createRedisBackend(redis.client({ keyPrefix: 'app:', enableAutoPipelining: true }), PATIENT),
    advance,
  };
});

describeLockBackend('Redis by ioredis 5', async () => {
  const redis = await freshRedis();
  return { backend: createRedisBackend(redis.track(new Redis5(redis.port)), PATIENT), advance };
});

describe('a Cluster', () => {
  let server: RedisServer;
  beforeAll(async () => {
    server = await startRedisServer({ cluster: true });
  });
  afterAll(() => server.stop());

  describeLockBackend('a Redis Cluster of one node', async () => {
    await server.client().flushall();
    server.clock.reset();
    const cluster = server.track(new Cluster([{ host: server.host, port: server.port }]));
    return { backend: createRedisBackend(cluster, PATIENT), advance: (ms) => server.clock.advance(ms) };
  });
});
