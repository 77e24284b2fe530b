import type { Cluster, Redis } from 'ioredis';
import { Redis as Redis5 } from 'ioredis5';
import { describeInBatches } from './in-batches.js';
import { freshRedis } from './redis.js';
import {
  DISCONNECT_TIMEOUT_MS,
  type RedisEndpoint,
  type RedisServer,
  startRedisServer,
} from './redis-server.js';

type Client = Redis | Redis5 | Cluster;

/** Describes a contract on Redis by each kind of client that users have, on an empty server for each test. */
export function onEachClient<T>(
  describeContract: (name: string, setUp: () => Promise<T>) => void,
  setUp: (client: Client, server: RedisEndpoint) => T,
): void {
  const by = (connect: (redis: RedisEndpoint) => Client) => async (): Promise<T> => {
    const redis = await freshRedis();
    return setUp(connect(redis), redis);
  };
  const plainly = by((redis) => redis.client());
  describeContract('Redis', plainly);
  describeInBatches('each call in a batch', () => describeContract('Redis', plainly));
  describeContract(
    'Redis, a client with a keyPrefix and auto-pipelining',
    by((redis) => redis.client({ keyPrefix: 'app:', enableAutoPipelining: true })),
  );
  describeContract(
    'Redis by ioredis 5',
    by((redis) => redis.track(new Redis5({ port: redis.port, disconnectTimeout: DISCONNECT_TIMEOUT_MS }))),
  );

  describe('a Cluster', () => {
    let server: RedisServer;
    beforeAll(async () => {
      server = await startRedisServer({ cluster: true });
    });
    afterAll(() => server.stop());

    describeContract('a Redis Cluster of one node', async () => {
      await server.client().flushall();
      server.clock.reset();
      return setUp(server.cluster(), server);
    });
  });
}
