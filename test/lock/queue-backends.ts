import { type Redis } from 'ioredis';
import { createMemoryBackend, createRedisBackend } from 'nestjs-syncguard';
import { freshRedis, workerRedis } from '../support/redis.js';
import { type RedisServer, startRedisServer } from '../support/redis-server.js';
import { PATIENT } from './lock.contract.js';
import type { LockQueueUnderTest } from './lock-queue.contract.js';

const namesOf = async (client: Pick<Redis, 'keys'>): Promise<string[]> =>
  (await client.keys('*')).filter((name) => !/:fence:|\/released:/.test(name));

const advance = (ms: number): void => workerRedis().clock.advance(ms);

/** Describes a queue of locks on each backend. */
export function onEachQueue(
  describeQueue: (name: string, setUp: () => Promise<LockQueueUnderTest>) => void,
): void {
  describeQueue('memory', async () => {
    let offsetMs = 0;
    const backend = createMemoryBackend({ clock: { now: () => Date.now() + offsetMs } });
    return {
      backends: [backend, backend],
      advance: (ms) => (offsetMs += ms),
      leftovers: async () => [],
    };
  });

  describeQueue('Redis', async () => {
    const redis = await freshRedis();
    const admin = redis.client();
    return {
      backends: [createRedisBackend(redis.client(), PATIENT), createRedisBackend(redis.client(), PATIENT)],
      advance,
      leftovers: () => namesOf(admin),
    };
  });

  describeQueue('Redis, slotted keys, a keyPrefix and auto-pipelining', async () => {
    const redis = await freshRedis();
    const admin = redis.client();
    const backend = () =>
      createRedisBackend(redis.client({ keyPrefix: 'app:', enableAutoPipelining: true }), {
        ...PATIENT,
        keyLayout: 'slotted',
      });
    return { backends: [backend(), backend()], advance, leftovers: () => namesOf(admin) };
  });

  describe('a Cluster', () => {
    let server: RedisServer;
    beforeAll(async () => {
      server = await startRedisServer({ cluster: true });
    });
    afterAll(() => server.stop());

    describeQueue('a Redis Cluster of one node', async () => {
      server.clock.reset();
      const admin = server.client();
      await admin.flushall();
      const backend = () => createRedisBackend(server.cluster(), PATIENT);
      return {
        backends: [backend(), backend()],
        advance: (ms) => server.clock.advance(ms),
        leftovers: () => namesOf(admin),
      };
    });
  });
}
