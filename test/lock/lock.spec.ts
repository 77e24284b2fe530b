import { createMemoryBackend, createRedisBackend } from 'nestjs-syncguard';
import { onEachClient } from '../support/on-each-client.js';
import { freshRedis } from '../support/redis.js';
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

onEachClient(describeLockBackend, (client, server) => ({
  backend: createRedisBackend(client, PATIENT),
  advance: (ms) => server.clock.advance(ms),
}));

describeLockBackend('Redis, slotted keys, a client with a keyPrefix', async () => {
  const redis = await freshRedis();
  return {
    backend: createRedisBackend(redis.client({ keyPrefix: 'app:' }), { ...PATIENT, keyLayout: 'slotted' }),
    advance: (ms) => redis.clock.advance(ms),
  };
});
