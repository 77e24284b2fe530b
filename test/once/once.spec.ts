import { Cluster } from 'ioredis';
import { Redis as Redis5 } from 'ioredis5';
import { MemoryOnceBackend } from '../../lib/once/memory/once.memory-backend.js';
import { onceOn } from '../support/redis-backends.js';
import type { RedisClient } from '../../lib/redis/redis.client.js';
import { ScriptRunner } from '../../lib/script/script-runner.js';
import { describeInBatches } from '../support/in-batches.js';
import { freshRedis } from '../support/redis.js';
import { type RedisEndpoint, type RedisServer, startRedisServer } from '../support/redis-server.js';
import { describeOnce } from './once.contract.js';
import type { OnceUnderTest } from './support.js';

describeOnce('memory', async () => {
  let offsetMs = 0;
  const backend = new MemoryOnceBackend({ now: () => Date.now() + offsetMs });
  return {
    backend: () => backend,
    advance: (ms) => (offsetMs += ms),
    contents: async () =>
      [...backend['entries']].map(([key, { kept }]) => `${key} ${kept?.bytes.toString()}\n`).join(''),
  };
});

const onRedis = (server: RedisEndpoint, client: RedisClient): OnceUnderTest => {
  const admin = server.client();
  const runner = new ScriptRunner(client, 10_000);
  return {
    backend: () => onceOn(runner, 'syncguard'),
    advance: (ms) => server.clock.advance(ms),
    contents: async () => {
      const keys = await admin.keys('*');
      return (await Promise.all(keys.map((key) => admin.get(key)))).join('\n');
    },
  };
};

describeOnce('Redis', async () => {
  const redis = await freshRedis();
  return onRedis(redis, redis.client());
});

describeInBatches('each call in a batch', () =>
  describeOnce('Redis', async () => {
    const redis = await freshRedis();
    return onRedis(redis, redis.client());
  }),
);

describeOnce('Redis by ioredis 5, with a keyPrefix and auto-pipelining', async () => {
  const redis = await freshRedis();
  return onRedis(
    redis,
    redis.track(new Redis5({ port: redis.port, keyPrefix: 'app:', enableAutoPipelining: true })),
  );
});

describe('a Cluster', () => {
  let server: RedisServer;
  beforeAll(async () => {
    server = await startRedisServer({ cluster: true });
  });
  afterAll(() => server.stop());

  describeOnce('a Redis Cluster of one node', async () => {
    await server.client().flushall();
    server.clock.reset();
    return onRedis(server, server.track(new Cluster([{ host: server.host, port: server.port }])));
  });
});
