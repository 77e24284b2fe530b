import 'reflect-metadata';
import { Logger } from '@nestjs/common';
import { Test, type TestingModule } from '@nestjs/testing';
import {
  AbuseLimiterService,
  BudgetService,
  hashKey,
  OnceService,
  type SyncGuardEvent,
  SyncGuardModule,
} from 'nestjs-syncguard';

const LOGIN = { name: 'login', keyBy: ['ip', 'body.email'], limit: 1, windowMs: 60_000, blockMs: 60_000 };
const EMAIL = 'ann@example.org';

describe('a change by hand', () => {
  let app: TestingModule;
  const events: SyncGuardEvent[] = [];
  let warned: jest.SpyInstance;

  beforeEach(async () => {
    events.length = 0;
    const module = SyncGuardModule.forRoot({
      telemetry: { onEvent: (event) => void events.push(event), includeRaw: true },
      limits: { login: LOGIN },
      budget: { limits: [{ scope: 'user', period: 'lifetime', limit: 5 }] },
    });
    app = await Test.createTestingModule({ imports: [module] }).compile();
    await app.init();
    await app.get(OnceService).run(() => 1, { key: 'pay:1' });
    await app.get(BudgetService).reserve({ scopes: ['user:1'], amount: 1, id: 'job:1' });
    warned = jest.spyOn(Logger.prototype, 'warn').mockImplementation();
  });
  afterEach(async () => {
    jest.restoreAllMocks();
    await app.close();
  });

  type Who = { by?: string };
  const unblock = (who: Who) => app.get(AbuseLimiterService).unblock('k', 'login', who);
  const lift = (who: Who) => app.get(AbuseLimiterService).lift('login', { 'body.email': EMAIL }, who);
  const setLimit = (who: Who) =>
    app.get(BudgetService).setLimit({ scope: 'user:1', period: 'lifetime', limit: 9, ...who });
  const credit = (who: Who) =>
    app.get(BudgetService).credit({ scope: 'user:1', period: 'lifetime', amount: 3, id: 'c:1', ...who });
  const abort = (who: Who) => app.get(BudgetService).abort({ id: 'job:1' }, who);
  const forget = (who: Who) => app.get(OnceService).forget('pay:1', who);
  const forced = () => events.filter(({ type }) => type === 'forced');

  it.each([
    ['unblock', 'limit', unblock, 'k', { policy: 'login' }],
    ['lift', 'limit', lift, expect.stringContaining(EMAIL), { policy: 'login' }],
    ['setLimit', 'budget', setLimit, 'user:1', {}],
    ['credit', 'budget', credit, 'user:1', {}],
    ['abort', 'budget', abort, 'job:1', {}],
    ['forget', 'once', forget, 'pay:1', {}],
  ] as const)(
    '%s of a %s is an event and a line with who it was',
    async (operation, feature, change, key, more) => {
      await change({ by: 'ann\n"' });
      const [event, ...others] = forced();
      expect(others).toStrictEqual([]);
      expect(event).toMatchObject({
        feature,
        operation,
        key: key as string,
        by: 'ann\n"',
        result: 'ok',
        ...more,
      });
      const keyHash = hashKey((event as { key: string }).key);
      expect(warned.mock.calls.flat()).toStrictEqual([
        `CHANGED_BY_HAND: ${operation} of ${feature} ${keyHash} by "ann\\n\\"".`,
      ]);
    },
  );

  it('an unblock by tag has the tag in place of the key', async () => {
    const limiter = app.get(AbuseLimiterService);
    await limiter.block('k', 'login', 60_000);
    const [{ policy, tag } = { tag: '' }] = (await limiter.blocked()).items;
    events.length = 0;
    expect(await limiter.unblock({ tag, ...(policy && { policy }) }, { by: 'ann' })).toStrictEqual({
      unblocked: 1,
    });
    const told = { feature: 'limit', result: 'ok', keyHash: hashKey('k'), policy: 'login' };
    expect(events).toStrictEqual([
      { ...told, type: 'unblock', durationMs: expect.any(Number) as number },
      { ...told, type: 'forced', operation: 'unblock', by: 'ann', durationMs: 0 },
    ]);
    expect(warned.mock.calls.flat()).toStrictEqual([`CHANGED_BY_HAND: unblock of limit ${tag} by "ann".`]);
  });

  it('an abort that ends nothing is none', async () => {
    const budgets = app.get(BudgetService);
    expect(await budgets.abort({ id: 'job:2' }, { by: 'ann' })).toMatchObject({ ok: false });
    expect(forced()).toStrictEqual([]);
    expect(warned).not.toHaveBeenCalled();
  });

  it('settle is one where it has settled something', async () => {
    const once = app.get(OnceService);
    await once.settle('pay:1', { value: 2 }, { by: 'ann' });
    await once.settle('pay:2', { value: 2 }, { by: 'ann' });
    expect(forced()).toStrictEqual([]);
    expect(warned).not.toHaveBeenCalled();
  });

  it.each([unblock, lift, setLimit, credit, abort, forget])(
    'without `by` it is the program’s, and told as before',
    async (change) => {
      await change({});
      expect(forced()).toStrictEqual([]);
      expect(warned).not.toHaveBeenCalled();
      expect(events.length).toBeGreaterThan(0);
    },
  );

  it.each([unblock, lift, setLimit, credit, abort, forget])('refuses a `by` that is none', async (change) => {
    for (const by of ['', 7, 'x'.repeat(201)])
      await expect(change({ by } as Who)).rejects.toMatchObject({
        message: expect.stringMatching(/by must be/) as string,
      });
    expect(forced()).toStrictEqual([]);
  });
});
