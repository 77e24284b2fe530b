import type { Type } from '@nestjs/common';
import { Redis } from 'ioredis';
import { BudgetService, createRedisBackend, LockService, SyncGuardModule } from 'nestjs-syncguard';
import { Test } from '@nestjs/testing';
import Redlock from 'redlock';
import { listen } from '../../support/adapters.js';
import { closeApp } from '../../support/close-app.js';
import { eventually } from '../../support/eventually.js';
import { freshRedis, workerRedis } from '../../support/redis.js';
import { underBoth } from './README/both.js';
import { callPartner as partnerAfter, limits } from './redis-semaphore/semaphore-after.js';
import { callPartner as partnerBefore } from './redis-semaphore/semaphore-before.js';
import { report } from './syncguard/without-nest.js';

beforeEach(async () => {
  const { url } = await freshRedis();
  process.env.REDIS_URL = url;
});
afterAll(() => delete process.env.REDIS_URL);

/** The modules read REDIS_URL when they are loaded. */
const PAIRS: readonly [string, () => Promise<{ AppModule: Type }>][] = [
  ['redlock, before', () => import('./redlock/before.js')],
  ['redlock, after', () => import('./redlock/after.js')],
  ['murlock, before', () => import('./murlock/before.js')],
  ['murlock, after', () => import('./murlock/after.js')],
  ['redis-semaphore, before', () => import('./redis-semaphore/before.js')],
  ['redis-semaphore, after', () => import('./redis-semaphore/after.js')],
  ['syncguard, after', () => import('./syncguard/after.js')],
];

it.each(PAIRS)('the example of %s charges an order once', async (_name, load) => {
  const { AppModule } = await load();
  const { app, url } = await listen('express', { imports: [AppModule] });
  try {
    const pay = async (): Promise<unknown> => (await fetch(`${url}/orders/7/pay`, { method: 'POST' })).json();
    const answers = await Promise.all([pay(), pay(), pay()]);
    expect(answers.map((answer) => JSON.stringify(answer)).sort()).toEqual([
      '{"id":"7","charged":false}',
      '{"id":"7","charged":false}',
      '{"id":"7","charged":true}',
    ]);
  } finally {
    await closeApp(app);
  }
});

/** Work that goes on until it is told to end, and counts how many of it run at once. */
function work(): { call: () => Promise<void>; end: () => void; most: () => number } {
  let running = 0;
  let most = 0;
  let end = (): void => {};
  const ended = new Promise<void>((resolve) => (end = resolve));
  const call = async (): Promise<void> => {
    most = Math.max(most, ++running);
    await ended;
    running--;
  };
  return { call, end, most: () => most };
}

it('two of three calls have a permit of a semaphore, before', async () => {
  const redis = new Redis(workerRedis().url);
  const { call, end, most } = work();
  const calls = [1, 2, 3].map(() => partnerBefore(redis, call));
  await eventually(() => expect(most()).toBe(2));
  end();
  await Promise.all(calls);
  expect(most()).toBe(2);
  redis.disconnect();
});

it('two of three calls have a permit of a budget, after, and give it back', async () => {
  const module = await Test.createTestingModule({
    imports: [SyncGuardModule.forRoot({ redis: workerRedis().url, budget: { limits: [...limits] } })],
  }).compile();
  await module.init();
  const budgets = module.get(BudgetService);
  for (let round = 0; round < 2; round++) {
    const { call, end, most } = work();
    const calls = [1, 2].map(() => partnerAfter(budgets, call));
    await eventually(() => expect(most()).toBe(2));
    await expect(partnerAfter(budgets, call)).rejects.toMatchObject({ code: 'BudgetExceeded' });
    end();
    await Promise.all(calls);
  }
  await expect(partnerAfter(budgets, () => Promise.reject(new Error('theirs')))).rejects.toThrow('theirs');
  expect(await budgets.balance({ scope: 'partner' })).toMatchObject([{ committed: 0, reserved: 0 }]);
  await module.close();
});

it('a lock under both excludes those of the last release and those of the next', async () => {
  const redis = new Redis(workerRedis().url);
  const redlock = new Redlock([redis], { retryCount: 0 });
  const module = await Test.createTestingModule({
    imports: [SyncGuardModule.forRoot({ redis: workerRedis().url, lock: { timeoutMs: 0 } })],
  }).compile();
  await module.init();
  const locks = module.get(LockService);
  await underBoth(redlock, locks, 'order:7', async () => {
    await expect(redlock.acquire(['order:7'], 1_000)).rejects.toThrow();
    expect(await createRedisBackend(redis).isLocked({ key: 'order:7' })).toBe(true);
  });
  await expect(locks.lock(() => 'in', { key: 'order:7' })).resolves.toBe('in');
  await module.close();
  redis.disconnect();
});

it('the example without Nest locks by itself', async () => {
  const redis = new Redis(workerRedis().url);
  expect(await report(redis)).toMatch(/^true \d{15}$/);
  redis.disconnect();
});
