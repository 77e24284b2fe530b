import { createRedisBackend } from 'nestjs-syncguard';
import { freshRedis } from '../support/redis.js';
import { allOf, describeLockOperations } from './lock-operations.contract.js';
import { PATIENT } from './lock.contract.js';
import { onEachQueue } from './queue-backends.js';

onEachQueue(describeLockOperations);

describe('a walk over a server that has other keys, too', () => {
  const OTHERS = 4_000;

  it('looks at 5,000 keys a second at most, and leaves alone what is named like a lock and is none', async () => {
    const redis = await freshRedis();
    const client = redis.client();
    const backend = createRedisBackend(client, PATIENT);
    await client.mset(Array.from({ length: OTHERS }, (_, i) => [`app:${i}`, '1']).flat());
    await client.hset('syncguard:cart', 'a', '1');
    await client.set('syncguard:text', 'no record');
    await backend.acquire({ key: 'order:1', ttlMs: 60_000 });
    const startMs = performance.now();
    expect((await allOf(backend, { limit: 1_000 })).map(({ key }) => key)).toStrictEqual(['order:1']);
    expect(performance.now() - startMs).toBeGreaterThan(((OTHERS - 500) / 5_000) * 1_000);
  });

  it('ends a page in time, and the walks of one process wait for each other', async () => {
    const redis = await freshRedis();
    const client = redis.client();
    const backends = [createRedisBackend(client, PATIENT), createRedisBackend(redis.client(), PATIENT)];
    await client.mset(Array.from({ length: OTHERS }, (_, i) => [`app:${i}`, '1']).flat());
    const startMs = performance.now();
    await Promise.all(backends.map((backend) => allOf(backend, { limit: 1_000 })));
    expect(performance.now() - startMs).toBeGreaterThan(((2 * OTHERS - 500) / 5_000) * 1_000);
  });
});
