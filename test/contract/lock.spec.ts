import { Cluster } from 'ioredis';
import { Redis as Redis5 } from 'ioredis5';
import { createMemoryBackend, createRedisBackend } from 'nestjs-syncguard';
import { freshRedis, workerRedis } from '../support/redis.js';
import { type RedisServer, startRedisServer } from '../support/redis-server.js';
import { describeLockBackend } from './lock.contract.js';

describeLockBackend('memory', async () => {
  let offsetMs = 0;
  return {
    backend: createMemoryBackend({ clock: { now: () => Date.now() + offsetMs } }),
    advance: (ms) => (offsetMs += ms),
  };
});

const advance = (ms: number): void => workerRedis().clock.advance(ms);

describeLockBackend('Redis', async () => {
  const redis = await freshRedis();
  return { backend: createRedisBackend(redis.client()), advance };
});

describeLockBackend('Redis, slotted keys, a client with a keyPrefix', async () => {
  const redis = await freshRedis();
  return {
    backend: createRedisBackend(redis.client({ keyPrefix: 'app:' }), { keyLayout: 'slotted' }),
    advance,
  };
});

describeLockBackend('Redis, a client with a keyPrefix and auto-pipelining', async () => {
  const redis = await freshRedis();
  return {
    backend: createRedisBackend(redis.client({ keyPrefix: 'app:', enableAutoPipelining: true })),
    advance,
  };
});

describeLockBackend('Redis by ioredis 5', async () => {
  const redis = await freshRedis();
  return { backend: createRedisBackend(redis.track(new Redis5(redis.port))), advance };
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
    return { backend: createRedisBackend(cluster), advance: (ms) => server.clock.advance(ms) };
  });
});
