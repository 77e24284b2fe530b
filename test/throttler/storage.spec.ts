import type { ThrottlerStorage } from '@nestjs/throttler';
import { SyncGuardThrottlerStorage } from 'nestjs-syncguard/throttler';
import { hours, minutes, seconds } from '../../lib/core/time.js';
import type { LimitBackend } from '../../lib/limit/limit.backend.js';
import { MemoryLimitBackend } from '../../lib/limit/memory/limit.memory-backend.js';
import { RedisLimitBackend } from '../../lib/limit/redis/limit.redis-backend.js';
import { ScriptRunner } from '../../lib/script/script-runner.js';
import { limiterOn } from '../limit/limit.contract.js';
import { startRedisServer } from '../support/redis-server.js';
import { freshRedis, workerRedis } from '../support/redis.js';

interface Harness {
  readonly backend: LimitBackend;
  advance(ms: number): void;
}

const backendOn = (client: unknown): RedisLimitBackend =>
  new RedisLimitBackend(new ScriptRunner(client as ScriptRunner['client'], 10_000), 'test');

describe.each<[string, () => Promise<Harness>]>([
  [
    'memory',
    async () => {
      let nowMs = Date.now();
      return { backend: new MemoryLimitBackend({ now: () => nowMs }), advance: (ms) => (nowMs += ms) };
    },
  ],
  [
    'Redis',
    async () => {
      const { clock } = await freshRedis();
      clock.hold();
      return { backend: backendOn(workerRedis().client()), advance: (ms) => clock.advance(ms) };
    },
  ],
])("the storage for throttler's guard on %s", (_name, createHarness) => {
  let harness: Harness;
  let storage: ThrottlerStorage;
  beforeEach(async () => {
    harness = await createHarness();
    storage = new SyncGuardThrottlerStorage(limiterOn(harness.backend));
  });

  const allowed = (totalHits: number, timeToExpire: number) => ({
    ...{ totalHits, timeToExpire, isBlocked: false, timeToBlockExpire: 0 },
  });
  const denied = (limit: number, secs: number) => ({
    ...{ totalHits: limit + 1, timeToExpire: secs, isBlocked: true, timeToBlockExpire: secs },
  });
  const hit = (limit = 2, ttl = seconds(10), block = seconds(10), name = 'default', key = 'ann') =>
    storage.increment(key, ttl, limit, block, name);

  it('counts up to the limit, and blocks from the first call too many', async () => {
    expect(await hit()).toEqual(allowed(1, 10));
    harness.advance(seconds(4));
    expect(await hit()).toEqual(allowed(2, 6));
    expect(await hit()).toEqual(denied(2, 10));
  });

  it('does not renew a block, and counts anew when it ends, however long it is', async () => {
    for (const blockMs of [seconds(3), seconds(30)]) {
      const call = () => hit(2, seconds(10), blockMs, `block ${blockMs}`);
      await call();
      await call();
      expect(await call()).toEqual(denied(2, blockMs / 1000));
      harness.advance(blockMs - 1);
      expect(await call()).toEqual(denied(2, 1));
      harness.advance(1);
      expect(await call()).toMatchObject({ totalHits: 1, isBlocked: false });
    }
  });

  it.each([0, -1])('waits until the window ends without a block: %d', async (block) => {
    await hit(1, seconds(10), block);
    harness.advance(seconds(4));
    expect(await hit(1, seconds(10), block)).toEqual(denied(1, 6));
    harness.advance(seconds(6));
    expect(await hit(1, seconds(10), block)).toEqual(allowed(1, 10));
  });

  it('rounds fractions up, and a limit down', async () => {
    expect(await hit(2.5, 1_500.2, 2_500.4)).toEqual(allowed(1, 2));
    await hit(2.5, 1_500.2, 2_500.4);
    expect(await hit(2.5, 1_500.2, 2_500.4)).toEqual(denied(2, 3));
    expect(await hit(1, 2.5, 2.5, 'short')).toEqual(allowed(1, 1));
    expect(await hit(1, 2.5, 2.5, 'short')).toEqual(denied(1, 1));
    harness.advance(3);
    expect(await hit(1, 2.5, 2.5, 'short')).toEqual(allowed(1, 1));
  });

  it.each<[string, number, number]>([
    ['a limit of 0', 0, seconds(10)],
    ['a limit below 0', -3, seconds(10)],
    ['a limit below 1', 0.5, seconds(10)],
    ['a ttl of 0', 5, 0],
    ['a ttl below 0', 5, -1],
  ])('denies every call with %s', async (_what, limit, ttl) => {
    for (let i = 0; i < 2; i++) expect(await hit(limit, ttl)).toEqual(denied(0, 10));
  });

  it('lets in with a limit of Infinity, and takes any length', async () => {
    for (let i = 0; i < 20; i++) expect(await hit(Infinity)).toMatchObject({ isBlocked: false });
    expect(await hit(1, Infinity, Infinity, 'long')).toMatchObject({ isBlocked: false });
    harness.advance(hours(24 * 365));
    expect(await hit(1, Infinity, Infinity, 'long')).toMatchObject({ isBlocked: true });
    expect(await hit(2 ** 40, minutes(1), 0, 'large')).toEqual(allowed(1, 60));
  });

  it('counts each throttler and each key apart, whatever they are called', async () => {
    const names = ['default', 'short', '', 'ü', 'x'.repeat(500), 'a b'];
    const keys = ['ann', 'bob', '', 'ann\0', 'ü', '{ann}', 'x'.repeat(5_000), 'undefined'];
    for (const name of names)
      for (const key of keys)
        expect(await hit(1, seconds(10), seconds(10), name, key)).toMatchObject({ isBlocked: false });
    for (const name of names)
      for (const key of keys)
        expect(await hit(1, seconds(10), seconds(10), name, key)).toMatchObject({ isBlocked: true });
  });

  it('counts exactly, however many call at once', async () => {
    const records = await Promise.all(Array.from({ length: 500 }, () => hit(100)));
    expect(records.filter(({ isBlocked }) => !isBlocked)).toHaveLength(100);
  });

  it('counts a key under limits that change from call to call, and keeps no policy for ever', async () => {
    for (let limit = 1; limit <= 2_000; limit++)
      expect(await hit(limit, minutes(1), 0)).toMatchObject({ totalHits: limit, isBlocked: false });
    expect(await hit(1, minutes(1), 0)).toMatchObject({ isBlocked: true });
  });

  it.each([
    ['version 5', ['ann', 60]],
    ['a ttl of NaN', ['ann', NaN, 1, 1, 'default']],
    ['a limit that is a text', ['ann', 1, '1', 1, 'default']],
  ])('says which version it needs: %s', async (_what, args) => {
    const call = storage.increment(...(args as unknown as Parameters<ThrottlerStorage['increment']>));
    await expect(call).rejects.toMatchObject({
      name: 'SyncGuardConfigError',
      message: expect.stringContaining('SyncGuardThrottlerStorage got a ttl of') as string,
      hint: expect.stringContaining('@nestjs/throttler 6') as string,
    });
  });
});

it('says what to inject', () => {
  expect(() => new SyncGuardThrottlerStorage(undefined as never)).toThrow(
    'SyncGuardThrottlerStorage needs the AbuseLimiterService, got undefined',
  );
});

it('keeps blocks and counts over a restart, and counts by itself while Redis is away', async () => {
  const server = await startRedisServer();
  try {
    const storageOf = () => new SyncGuardThrottlerStorage(limiterOn(backendOn(server.client())));
    const [before, after] = [storageOf(), storageOf()];
    const call = (storage: ThrottlerStorage, key: string) =>
      storage.increment(key, minutes(1), 1, hours(1), 'default');
    for (let i = 0; i < 2; i++) await call(before, 'ann');
    expect(await call(after, 'ann')).toMatchObject({ isBlocked: true, timeToBlockExpire: 3_600 });
    await server.stop();
    expect(await call(after, 'ann')).toMatchObject({ isBlocked: true });
    expect(await call(after, 'bob')).toMatchObject({ isBlocked: false, totalHits: 1 });
    expect(await call(after, 'bob')).toMatchObject({ isBlocked: true });
  } finally {
    await server.stop();
  }
});
