import { Cluster } from 'ioredis';
import { Redis as Redis5 } from 'ioredis5';
import { MemoryLimitBackend } from '../../lib/limit/memory/limit.memory-backend.js';
import { RedisLimitBackend } from '../../lib/limit/redis/limit.redis-backend.js';
import { ScriptRunner } from '../../lib/script/script-runner.js';
import { describeInBatches } from '../support/in-batches.js';
import { freshRedis, workerRedis } from '../support/redis.js';
import { type RedisServer, startRedisServer } from '../support/redis-server.js';
import { describeLimitBackend, type LimitHarness } from './limit.contract.js';

const backendOn = (client: unknown): RedisLimitBackend =>
  new RedisLimitBackend(new ScriptRunner(client as ScriptRunner['client'], 10_000), 'test');

/** The worker's server, empty and at a standstill. */
async function redisHarness(backend: RedisLimitBackend): Promise<LimitHarness> {
  const { clock } = await freshRedis();
  clock.hold();
  return { backend, advance: (ms) => clock.advance(ms) };
}

describeLimitBackend('memory', async () => {
  let nowMs = Date.now();
  return { backend: new MemoryLimitBackend({ now: () => nowMs }), advance: (ms) => (nowMs += ms) };
});

const plain = backendOn(workerRedis().client());
describeLimitBackend('Redis', () => redisHarness(plain));

describeInBatches('each call in a batch', () =>
  describeLimitBackend('Redis', () => redisHarness(backendOn(workerRedis().client()))),
);

const prefixed = backendOn(workerRedis().client({ keyPrefix: 'app:', enableAutoPipelining: true }));
describeLimitBackend('Redis, a client with a keyPrefix and auto-pipelining', () => redisHarness(prefixed));

const ioredis5 = backendOn(workerRedis().track(new Redis5(workerRedis().port)));
describeLimitBackend('Redis by ioredis 5', () => redisHarness(ioredis5));

describe('a Cluster', () => {
  let server: RedisServer;
  let backend: RedisLimitBackend;
  beforeAll(async () => {
    server = await startRedisServer({ cluster: true });
    backend = backendOn(server.track(new Cluster([{ host: server.host, port: server.port }])));
  });
  afterAll(() => server.stop());

  describeLimitBackend('a Redis Cluster of one node', async () => {
    await server.client().flushall();
    server.clock.hold();
    return { backend, advance: (ms) => server.clock.advance(ms) };
  });
});
