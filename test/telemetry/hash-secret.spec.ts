import 'reflect-metadata';
import { createHmac } from 'node:crypto';
import { Logger } from '@nestjs/common';
import { Test } from '@nestjs/testing';
import {
  AbuseLimiterService,
  BudgetService,
  hashKey,
  LockService,
  OnceService,
  type SyncGuardEvent,
  SyncGuardModule,
} from 'nestjs-syncguard';
import { showHashesBy } from '../../lib/core/keys.js';
import { eventually } from '../support/eventually.js';
import { freshRedis } from '../support/redis.js';

const SECRET = 'correct horse';
const hmac = (value: string): string => createHmac('sha256', SECRET).update(value).digest('hex');

interface Services {
  readonly locks: LockService;
  readonly limiter: AbuseLimiterService;
  readonly budgets: BudgetService;
  readonly once: OnceService;
}

/** Has each feature refuse a call, and returns what anybody is shown of it. */
async function refusals({ locks, limiter, budgets, once }: Services): Promise<unknown[]> {
  const errorOf = (refused: Promise<unknown>): Promise<{ context: unknown }> =>
    refused.then(
      () => Promise.reject(new Error('was not refused')),
      (error: { context: unknown }) => error,
    );
  const found: unknown[] = [];
  await locks.lock(
    async () => {
      found.push(await locks.lookup({ key: 'ann' }));
      found.push((await errorOf(locks.lock(() => 0, { key: 'ann' }))).context);
    },
    { key: 'ann' },
  );
  const run = (): Promise<unknown> => budgets.run(() => 0, { scopes: ['user'], amount: 1, id: 'ann' });
  await run();
  found.push((await errorOf(run())).context);
  await once.run(async () => found.push((await errorOf(once.run(() => 0, { key: 'ann' }))).context), {
    key: 'ann',
  });
  for (let i = 0; i < 2; i++) await limiter.check('ann', { name: 'login', limit: 1, windowMs: 60_000 });
  return found;
}

describe('hashes of keys, in all that is shown', () => {
  const lines: string[] = [];
  const events: SyncGuardEvent[] = [];
  beforeEach(() => {
    [lines.length, events.length] = [0, 0];
    showHashesBy(hashKey); // The secret that another test has set holds for the whole process.
    Logger.overrideLogger(['debug']);
    jest.spyOn(Logger.prototype, 'debug').mockImplementation((line: string) => void lines.push(line));
  });
  afterEach(() => jest.restoreAllMocks());

  async function shown(hashSecret?: string): Promise<unknown[]> {
    const limits = [{ scope: 'user', period: 'lifetime' as const, limit: 10 }];
    const telemetry = { onEvent: (event: SyncGuardEvent) => void events.push(event), hashSecret };
    const imports = [SyncGuardModule.forRoot({ budget: { limits, reaper: false }, telemetry })];
    const app = await Test.createTestingModule({ imports }).compile();
    const found = await refusals({
      locks: app.get(LockService),
      limiter: app.get(AbuseLimiterService),
      budgets: app.get(BudgetService),
      once: app.get(OnceService),
    });
    await app.close();
    return found;
  }

  it('are `hashKey`s without a secret, and HMACs with one: in errors, lookups, logs and events', async () => {
    const seen = (keyHash: string): unknown[] =>
      [{ keyHash }, { keyHash }, { idHash: keyHash }, { keyHash }].map(
        (each) => expect.objectContaining(each) as unknown,
      );
    expect(await shown()).toEqual(seen(hashKey('ann')));
    expect(lines).toEqual([expect.stringContaining(`limit login ${hashKey('ann')}: denied`)]);

    [lines.length, events.length] = [0, 0];
    expect(await shown(SECRET)).toEqual(seen(hmac('ann')));
    expect(lines).toEqual([expect.stringContaining(`limit login ${hmac('ann')}: denied`)]);
    expect(events.map(({ keyHash }) => keyHash)).toContain(hmac('ann'));
    expect(JSON.stringify(events)).not.toContain(hashKey('ann'));
  });

  it.each([
    ['without a secret', undefined, hashKey],
    ['with one', SECRET, hmac],
  ])('lead from a log line and an event to the block, and end it, %s', async (_, hashSecret, hash) => {
    const telemetry = { onEvent: (event: SyncGuardEvent) => void events.push(event), hashSecret };
    const module = SyncGuardModule.forRoot({ telemetry, redis: (await freshRedis()).client() });
    const app = await Test.createTestingModule({ imports: [module] }).compile();
    const limiter = app.get(AbuseLimiterService);
    const policy = { name: 'login', limit: 1, windowMs: 60_000, blockMs: 60_000 };
    for (let i = 0; i < 2; i++) await limiter.check('ann', policy);
    const [, tag = ''] = /limit login (\w+): denied/.exec(lines[0] as string) ?? [];
    expect(tag).toBe(hash('ann'));
    expect(events.at(-1)).toMatchObject({ result: 'fail', keyHash: tag });
    await eventually(async () =>
      expect((await limiter.blocked()).items).toMatchObject([{ policy: 'login', tag }]),
    );
    expect(await limiter.unblock({ tag })).toStrictEqual({ unblocked: 1 });
    expect(await limiter.check('ann', policy)).toMatchObject({ allowed: true });
    await app.close();
  });
});
