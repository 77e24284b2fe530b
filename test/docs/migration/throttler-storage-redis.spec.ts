import { ThrottlerStorageRedisService } from '@nest-lab/throttler-storage-redis';
import { type INestApplication, Logger, type Type } from '@nestjs/common';
import type { ThrottlerStorage } from '@nestjs/throttler';
import { AbuseLimiterService, seconds, SyncGuardModule } from 'nestjs-syncguard';
import { SyncGuardThrottlerStorage } from 'nestjs-syncguard/throttler';
import { listen } from '../../support/adapters.js';
import { closeApp } from '../../support/close-app.js';
import { freshRedis, workerRedis } from '../../support/redis.js';

Logger.overrideLogger(['error']);

let app: INestApplication;
let url: string;

beforeEach(async () => {
  process.env.REDIS_URL = (await freshRedis()).url;
});
afterEach(() => closeApp(app));
afterAll(() => delete process.env.REDIS_URL);

const ask = async (path: string, count: number, headers: Record<string, string> = {}) => {
  const all: (number | string | null)[][] = [];
  while (all.length < count) {
    const response = await fetch(`${url}/${path}`, { headers });
    const named = ['retry-after-short', 'retry-after-long', 'x-ratelimit-remaining-long'];
    all.push([response.status, ...named.map((name) => response.headers.get(name))]);
  }
  return all;
};

it.each<[string, () => Promise<{ AppModule: Type }>]>([
  ['before', () => import('./throttler-storage-redis/before.js')],
  ['after', () => import('./throttler-storage-redis/after.js')],
])('the app answers the same calls alike, with the same headers, %s', async (_name, load) => {
  workerRedis().clock.hold();
  ({ app, url } = await listen('express', { imports: [(await load()).AppModule] }));
  const letIn = (from: number, count: number) =>
    Array.from({ length: count }, (_, i) => [200, null, null, String(from - i)]);
  expect(await ask('items', 4)).toEqual([...letIn(5, 3), [429, '10', null, null]]);
  expect(await ask('items/search', 2)).toEqual([...letIn(5, 1), [429, '30', null, null]]);
  expect(await ask('items/feed', 7)).toEqual([...letIn(5, 6), [429, null, '60', null]]);
  for (const key of ['a', 'b'])
    expect(await ask('items', 4, { 'x-api-key': key })).toEqual([...letIn(5, 3), [429, '10', null, null]]);
});

describe('differs as the page says', () => {
  let theirs: ThrottlerStorage;
  let ours: ThrottlerStorage;
  beforeEach(async () => {
    workerRedis().clock.hold();
    ({ app } = await listen('express', {
      imports: [SyncGuardModule.forRoot({ redis: workerRedis().url, limit: { denyCacheMs: 0 } })],
    }));
    theirs = new ThrottlerStorageRedisService(workerRedis().client());
    ours = new SyncGuardThrottlerStorage(app.get(AbuseLimiterService));
  });

  /** Of a client that does not pause: whether each of its calls is let in. */
  async function callsOf(storage: ThrottlerStorage, gapsMs: readonly number[]): Promise<boolean[]> {
    const all: boolean[] = [];
    for (const gapMs of gapsMs) {
      workerRedis().clock.advance(gapMs);
      all.push(!(await storage.increment('ann', seconds(10), 2, seconds(5), 'default')).isBlocked);
    }
    return all;
  }

  it('blocks', async () => {
    const gapsMs = [0, 0, 0, 1_000, 1_000, 3_001];
    expect(await callsOf(theirs, gapsMs)).toEqual([true, true, false, false, false, false]);
    expect(await callsOf(ours, gapsMs)).toEqual([true, true, false, false, false, true]);
  });

  it('fractions', async () => {
    const call = (storage: ThrottlerStorage) => storage.increment('ann', 2_500.5, 2, 2_500.5, 'default');
    await expect(call(theirs)).rejects.toThrow('ERR value is not an integer');
    expect(await call(ours)).toMatchObject({ totalHits: 1, isBlocked: false });
  });

  it('a ttl of 0', async () => {
    const call = (storage: ThrottlerStorage) => storage.increment('ann', 0, 1, 0, 'default');
    for (let i = 0; i < 3; i++) expect(await call(theirs)).toMatchObject({ isBlocked: false });
    expect(await call(ours)).toMatchObject({ isBlocked: true });
  });

  it('scripts', async () => {
    const sent: string[][] = [];
    const monitor = await workerRedis().client().monitor();
    monitor.on('monitor', (_time: string, args: string[]) => sent.push(args));
    const call = (storage: ThrottlerStorage) => storage.increment('ann', 1_000, 9, 1_000, 'default');
    await call(ours);
    await workerRedis().client().script('FLUSH');
    for (const storage of [ours, ours, theirs, theirs])
      expect(await call(storage)).toMatchObject({ isBlocked: false });
    await workerRedis().client().ping();
    monitor.disconnect();
    const evals = sent
      .filter(([name = '']) => /^evals?h?a?$/i.test(name))
      .map(([name = '']) => name.toLowerCase());
    expect(evals.slice(-5)).toEqual(['evalsha', 'eval', 'evalsha', 'eval', 'eval']);
  });
});
