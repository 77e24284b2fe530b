import type { TestingModule } from '@nestjs/testing';
import { SyncGuardModule } from 'nestjs-syncguard';
import { FakeClock, SyncGuardTestingModule } from 'nestjs-syncguard/testing';
import {
  ALL_OVER_MS,
  boot,
  distinctKeyFeatures,
  distinctKeyOptions,
  operationOf,
  runMany,
} from '../support/distinct-keys.js';
import { eventually } from '../support/eventually.js';
import { KeptEntries } from '../support/kept-entries.js';
import { freshRedis } from '../support/redis.js';

/** Fewer than make the memory backends look for what is over while they work. */
const KEYS = 2_000;
const KEYS_ON_REDIS = 1_000;
/** The longest that memory takes to look for what is over. */
const SOON_MS = 60_000;
/** Of what does not belong to a key. */
const FEW = 100;

let app: TestingModule;
afterEach(() => app.close());

describe('in memory', () => {
  beforeEach(() => jest.useFakeTimers({ doNotFake: ['nextTick', 'queueMicrotask'] }));
  let entries: KeptEntries;
  afterEach(() => {
    entries.stop();
    jest.useRealTimers();
  });

  it.each(distinctKeyFeatures)('%s: what is over is forgotten while nobody calls', async (name) => {
    const clock = new FakeClock();
    app = await boot(SyncGuardTestingModule.forRoot({ ...distinctKeyOptions, clock }));
    entries = new KeptEntries().start();
    await runMany(operationOf(name, app), 0, KEYS);
    expect(await entries.count()).toBeGreaterThan(KEYS / 2); // The count sees what they hold.
    clock.advance(ALL_OVER_MS);
    await jest.advanceTimersByTimeAsync(SOON_MS);
    expect(await entries.count()).toBeLessThan(FEW);
  });
});

describe('on Redis', () => {
  it.each(distinctKeyFeatures)('%s: nothing stays but one fence counter a lock key', async (name) => {
    const redis = await freshRedis();
    const client = redis.client();
    app = await boot(SyncGuardModule.forRoot({ ...distinctKeyOptions, redis: redis.url }));
    await runMany(operationOf(name, app), 0, KEYS_ON_REDIS);
    redis.clock.advance(ALL_OVER_MS);
    const kept = name === 'locks' ? KEYS_ON_REDIS : 0;
    await eventually(async () => expect(await client.dbsize()).toBe(kept), { timeoutMs: 30_000 });
    expect((await client.keys('*')).filter((key) => !key.includes(':fence:'))).toEqual([]);
  });
});
