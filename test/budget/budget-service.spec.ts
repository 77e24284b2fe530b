import { Logger } from '@nestjs/common';
import {
  BudgetExceededError,
  BudgetInputError,
  BudgetUnavailableError,
} from '../../lib/budget/budget.errors.js';
import type { BudgetBackend } from '../../lib/budget/budget.backend.js';
import { MemoryBudgetBackend } from '../../lib/budget/memory/budget.memory-backend.js';
import { resolveBudgetDefaults } from '../../lib/budget/budget.options.js';
import { parseBudgetResult, parseFinalizeResult } from '../../lib/budget/redis/budget.replies.js';
import { BudgetService } from '../../lib/budget/budget.service.js';
import type { BudgetLimit } from '../../lib/budget/budget.types.js';
import { SyncGuardConfigError } from '../../lib/core/errors.js';
import { RedisFault } from '../../lib/redis/redis.errors.js';
import { eventually } from '../support/eventually.js';

const LIMITS: BudgetLimit[] = [{ scope: 'user', period: 'lifetime', limit: 100 }];

const memory = (clock = { now: () => Date.now() }): MemoryBudgetBackend =>
  new MemoryBudgetBackend({ clock, retentionMs: 1_000 });
const serviceOn = (backend: BudgetBackend, limits: unknown = LIMITS): BudgetService =>
  new BudgetService(backend, resolveBudgetDefaults({ limits, reaper: false }));

/** A backend that must not be called. */
const untouchable = new Proxy({} as BudgetBackend, {
  get: (_, name) => () => {
    throw new Error(`${String(name)} was asked`);
  },
});

describe('a wrong call is refused before any I/O', () => {
  const budgets = serviceOn(untouchable);
  const scopes = ['user:1'];

  it.each([0.1, -1, NaN, Infinity, 2 ** 53, '5', null, undefined, -1n, 2n ** 63n, {}])(
    'amount %p',
    async (amount) => {
      const wrong = amount as number;
      for (const call of [
        () => budgets.reserve({ scopes, amount: wrong }),
        () => budgets.charge({ scopes, amount: wrong, id: 'x' }),
        () => budgets.finalize({ id: 'x' }, wrong),
        () => budgets.refund({ id: 'x' }, wrong, 'r'),
        () => budgets.credit({ scope: 'user', period: 'lifetime', amount: wrong, id: 'k' }),
      ])
        await expect(call()).rejects.toThrow(BudgetInputError);
    },
  );

  type Call = [string, () => Promise<unknown>, RegExp];
  const calls: Call[] = [
    ['no options', () => budgets.reserve(undefined as never), /options must be an object/],
    ['no scopes', () => budgets.reserve({ scopes: [], amount: 1 }), /1 to 32 scopes/],
    [
      'too many scopes',
      () => budgets.reserve({ scopes: Array.from({ length: 33 }, (_, i) => `user:${i}`), amount: 1 }),
      /1 to 32 scopes/,
    ],
    [
      'a scope twice',
      () => budgets.reserve({ scopes: ['user:1', 'user:1'], amount: 1 }),
      /scopes\[1\] is the same scope as scopes\[0\]/,
    ],
    ['a scope without a type', () => budgets.reserve({ scopes: [':1'], amount: 1 }), /"type" or "type:id"/],
    ['a scope without an id', () => budgets.reserve({ scopes: ['user:'], amount: 1 }), /"type" or "type:id"/],
    ...['undefined', 'null', 'NaN', '[object Object]'].map((id): Call => [
      `a scope of ${id}`,
      () => budgets.reserve({ scopes: [`user:${id}`], amount: 1 }),
      /stands for a missing value/,
    ]),
    ...['root', 'id'].map((name): Call => [
      `a missing value in ${name}`,
      () => budgets.reserve({ scopes, amount: 1, [name]: 'job:undefined' }),
      new RegExp(`^${name} has the part "undefined", which stands for a missing value`),
    ]),
    ['an empty scope', () => budgets.reserve({ scopes: [''], amount: 1 }), /a scope must not be empty/],
    [
      'a long id',
      () => budgets.reserve({ scopes, amount: 1, id: 'x'.repeat(513) }),
      /id must be at most 512/,
    ],
    [
      'half a character',
      () => budgets.reserve({ scopes, amount: 1, root: '\ud800' }),
      /root has a lone surrogate/,
    ],
    ['a ttl of nothing', () => budgets.reserve({ scopes, amount: 1, ttlMs: 0 }), /ttlMs must be/],
    [
      'a long meta',
      () => budgets.reserve({ scopes, amount: 1, meta: 'x'.repeat(1_023) }),
      /at most 1024 bytes/,
    ],
    [
      'a meta that is no JSON',
      () => budgets.reserve({ scopes, amount: 1, meta: 1n }),
      /meta must be a JSON value/,
    ],
    ['no id to charge under', () => budgets.charge({ scopes, amount: 1 } as never), /id must be a string/],
    [
      'an unknown mode',
      () => budgets.charge({ scopes, amount: 1, id: 'x', mode: 'try' as never }),
      /mode must be/,
    ],
    ['no ref', () => budgets.finalize(undefined as never, 1), /ref must be/],
    [
      'an unknown overage',
      () => budgets.finalize({ id: 'x' }, 1, { overage: 'ignore' as never }),
      /overage must be/,
    ],
    ['an unknown late', () => budgets.finalize({ id: 'x' }, 1, { late: 'never' as never }), /late must be/],
    ['no refund id', () => budgets.refund({ id: 'x' }, 1, undefined as never), /refundId must be a string/],
    [
      'an unknown period',
      () => budgets.setLimit({ scope: 'user', period: 'day' as never, limit: 1 }),
      /period must be/,
    ],
    [
      'an undefined limit',
      () => budgets.setLimit({ scope: 'user', period: 'lifetime', limit: undefined as never }),
      /limit must be/,
    ],
    ['an unknown state', () => budgets.list({ state: 'open' as never }), /state must be/],
    ['another cursor', () => budgets.list({ cursor: '1; drop' }), /cursor must be/],
    ['a cursor over 64 bits', () => budgets.list({ cursor: '99999999999999999999' }), /cursor must be/],
    ['a cursor that is a number', () => budgets.list({ cursor: 5 as never }), /cursor must be/],
    [
      'a run of nothing',
      () => budgets.run(undefined as never, { scopes, amount: 1 }),
      /fn must be a function/,
    ],
    [
      'a cost that cannot be asked',
      () => budgets.run(() => 1, { scopes, amount: 1, actual: 5 as never }),
      /actual must be a function/,
    ],
    [
      'a reject in run',
      () => budgets.run(() => 1, { scopes, amount: 1, overage: 'reject' as never }),
      /overage must be/,
    ],
  ];
  it.each(calls)('%s', async (_, call, message) => {
    const refusal = expect(call()).rejects;
    await refusal.toThrow(BudgetInputError);
    await expect(call()).rejects.toThrow(message);
  });
});

describe('a memory backend', () => {
  it('keeps nothing of a root that was only looked at, and forgets a million operations in time', async () => {
    let nowMs = 0;
    const backend = memory({ now: () => nowMs });
    const budgets = serviceOn(backend);
    for (let i = 0; i < 100; i++) {
      const root = `guest ${i}`;
      await budgets.balance({ root, scope: 'user' });
      await budgets.finalize({ root, id: 'x' }, 1);
      await budgets.list({ root });
    }
    expect(await budgets.reap({ root: 'guest 1' })).toEqual({ expired: [], purged: 0 });
    for (let i = 0; i < 20_000; i++)
      await budgets.reserve({ scopes: ['user'], amount: 0, id: `${i}`, ttlMs: 1 + (i % 500) });
    nowMs = 500;
    expect((await budgets.reap({ max: 100_000 })).expired).toHaveLength(20_000);
    nowMs = 10_000;
    expect(await budgets.reap({ max: 100_000 })).toEqual({ expired: [], purged: 20_000 });
    expect((await budgets.list()).records).toEqual([]);
  });
});

describe('options of budgets', () => {
  it.each<[unknown, RegExp]>([
    [{ limits: 5 }, /budget.limits must be a list of limits or a function, got 5/],
    [{ limits: [{ scope: 'user', period: 'lifetime' }] }, /budget.limits\[0\].limit must be/],
    [{ limits: [{ scope: 'user', period: 'lifetime', limit: -1 }] }, /got -1 \(number\)/],
    [{ limits: [{ scope: 'user', period: 'daily', limit: 1 }] }, /budget.limits\[0\].period must be/],
    [{ limits: [{ scope: '', period: 'lifetime', limit: 1 }] }, /budget.limits\[0\].scope must not be empty/],
    [
      { limits: [{ scope: 'user', period: 'lifetime', limit: 1, threshold: [5] }] },
      /budget.limits\[0\].threshold is not an option/,
    ],
    [
      { limits: [{ scope: 'user', period: 'lifetime', limit: 1, thresholds: [0] }] },
      /thresholds\[0\] must be an integer from 1 to 1000/,
    ],
    [
      { limits: [...LIMITS, { scope: 'user', period: 'lifetime', limit: 2 }] },
      /budget.limits\[1\] limits the same scope and period/,
    ],
    [{ retentionMs: 0 }, /budget.retentionMs must be/],
    [{ reaper: true }, /budget.reaper must be false or/],
    [{ reaper: { everyMs: 5 } }, /budget.reaper.everyMs must be an integer from 100/],
    [{ limit: [] }, /budget.limit is not an option/],
  ])('%p is refused', (options, message) => {
    expect(() => resolveBudgetDefaults(options)).toThrow(message);
    expect(() => resolveBudgetDefaults(options)).toThrow(SyncGuardConfigError);
  });

  it('default to no limits, 15 minutes of retention, readers that may pause a minute, and a reaper every 30 s', () => {
    expect(resolveBudgetDefaults()).toEqual({
      limits: [],
      retentionMs: 900_000,
      idTtlMs: 86_400_000,
      idleMs: 60_000,
      maxHoldMs: undefined,
      reaper: { everyMs: 30_000 },
    });
  });

  it('may be a function that knows the limits of each scope', async () => {
    const asked: unknown[] = [];
    const budgets = serviceOn(memory(), async (scope: { root: string; type: string; id?: string }) => {
      asked.push(scope);
      return [
        { scope: scope.type, period: 'lifetime', limit: 10 },
        ...(scope.id === 'vip' ? [{ scope: 'user:vip', period: 'lifetime', limit: 1_000 }] : []),
      ];
    });
    expect(await budgets.reserve({ root: 'acme', scopes: ['user:vip', 'org'], amount: 10 })).toMatchObject({
      ok: true,
    });
    expect(asked).toEqual([
      { root: 'acme', type: 'user', id: 'vip' },
      { root: 'acme', type: 'org' },
    ]);
    expect((await budgets.balance({ scope: 'user:vip' }))[0]?.limit).toBe(1_000);
    const wrong = serviceOn(memory(), () => [{ scope: 'other', period: 'lifetime', limit: 1 }]);
    await expect(wrong.reserve({ scopes: ['user'], amount: 1 })).rejects.toThrow(
      /called for a scope of type "user", and item 0 of its result limits a scope of type "other"/,
    );
  });
});

describe('results', () => {
  it('can be written as JSON, copied and looked at twice', async () => {
    const hold = await serviceOn(memory()).reserve({ scopes: ['user'], amount: 5 });
    expect(JSON.parse(JSON.stringify(hold))).toMatchObject({ balances: [{ reserved: 5 }] });
    expect({ ...hold }).toEqual(hold);
    if (hold.ok) expect(hold.balances).toBe(hold.balances);
  });

  const about = { root: 'default', id: 'a' };
  const sums = ['100', '1 7 3 10 0 80'];
  const fixed = '- 9 c|user:1|month/15@Europe/Berlin|5 100 80 9 0 {"a":"b c"}';

  it('are read from what the scripts reply', () => {
    const reserved = parseBudgetResult(['reserved', `1 p h 1 3 0 0 0 0 0 5 8 0 80 ${fixed}`, ...sums], about);
    const period = { every: 'month', tz: 'Europe/Berlin', anchor: 15 };
    expect(reserved).toEqual({
      ...{
        ok: true,
        status: 'reserved',
        root: 'default',
        id: 'a',
        generation: 1,
        amount: 3,
        expiresAtMs: 8,
        replayed: false,
      },
      crossed: [{ scope: 'user:1', period, percent: 80 }],
      balances: [
        {
          scope: 'user:1',
          period,
          window: { startMs: 5, endMs: 9 },
          limit: 100,
          credits: 10,
          committed: 7,
          reserved: 3,
          available: 100,
        },
      ],
    });
    expect(
      parseBudgetResult(['already_aborted', `1 a h 1 3 0 0 0 0 0 5 8 6 - ${fixed}`], about),
    ).toMatchObject({
      reason: 'already_aborted',
      record: { state: 'aborted', scopes: ['user:1'], meta: { a: 'b c' }, endedAtMs: 6 },
    });
    expect(
      parseFinalizeResult(['replayed', `1 f h 1 3 2 2 0 0 0 5 8 7 - ${fixed}`, ...sums], about),
    ).toMatchObject({
      ...{ ok: true, reserved: 3, actual: 2, released: 1, overage: 0, replayed: true, crossed: [] },
    });
    expect(parseFinalizeResult(['not_found'], about)).toEqual({ ok: false, reason: 'not_found' });
  });

  it.each([[null], [[]], ['OK'], [['who knows']], [[1]], [['reserved', 'p']]])(
    'are not read from %j',
    (reply) => {
      expect(() => parseBudgetResult(reply, about)).toThrow();
      expect(() => parseFinalizeResult(reply, about)).toThrow();
    },
  );
});

describe('faults', () => {
  /** Makes the first calls of a method fail, as a lost connection does. */
  function flaky(
    method: 'finalize' | 'abort' | 'reserve',
    failures: number,
    code: 'ServiceUnavailable' | 'AuthFailed',
  ): { backend: BudgetBackend; calls: () => number } {
    const real = memory();
    let calls = 0;
    const backend = new Proxy<BudgetBackend>(real, {
      get: (target, name) =>
        name !== method
          ? (target[name as keyof BudgetBackend] as (request: unknown) => unknown).bind(target)
          : async (request: never) => {
              if (++calls <= failures)
                throw BudgetUnavailableError.from(new RedisFault(code, 'Redis cannot be reached.'));
              return target[method](request);
            },
    });
    return { backend, calls: () => calls };
  }

  it.each(['finalize', 'abort'] as const)('of %s are outlived, twice', async (method) => {
    const { backend, calls } = flaky(method, 2, 'ServiceUnavailable');
    const budgets = serviceOn(backend);
    await budgets.reserve({ scopes: ['user'], amount: 5, id: 'a' });
    const settled =
      method === 'abort' ? await budgets.abort({ id: 'a' }) : await budgets.finalize({ id: 'a' }, 5);
    expect([settled.ok, calls()]).toEqual([true, 3]);
  });

  it('that will not pass are told at once, and those that do not are told in the end', async () => {
    const refused = flaky('abort', 9, 'AuthFailed');
    await expect(serviceOn(refused.backend).abort({ id: 'a' })).rejects.toMatchObject({ code: 'AuthFailed' });
    expect(refused.calls()).toBe(1);
    const away = flaky('abort', 9, 'ServiceUnavailable');
    await expect(serviceOn(away.backend).abort({ id: 'a' })).rejects.toThrow(BudgetUnavailableError);
    expect(away.calls()).toBe(3);
  });

  it('do not take from run what its body gave: that is settled later', async () => {
    const { backend, calls } = flaky('finalize', 4, 'ServiceUnavailable');
    const budgets = serviceOn(backend);
    expect(await budgets.run(() => 'paid for', { scopes: ['user'], amount: 5 })).toBe('paid for');
    await budgets.onModuleDestroy();
    expect(calls()).toBeGreaterThanOrEqual(5);
    expect(await budgets.balance({ scope: 'user' })).toMatchObject([{ committed: 5, reserved: 0 }]);
  });
});

describe('run', () => {
  it('finalizes what the result cost, capped when told so', async () => {
    const budgets = serviceOn(memory());
    const result = await budgets.run(
      (hold) => {
        expect(hold).toMatchObject({ status: 'reserved', amount: 10 });
        return 500;
      },
      { scopes: ['user'], amount: 10, actual: (tokens: number) => tokens, overage: 'cap' },
    );
    expect(result).toBe(500);
    expect((await budgets.balance({ scope: 'user' }))[0]).toMatchObject({ committed: 100, reserved: 0 });
  });

  it('does not run without room, and says until when', async () => {
    const budgets = serviceOn(memory(), [{ scope: 'user', period: { windowMs: 3_600_000 }, limit: 10 }]);
    await budgets.charge({ scopes: ['user'], amount: 10, id: 'a' });
    const error = (await budgets
      .run(() => fail(), { scopes: ['user'], amount: 1 })
      .catch((reason: unknown) => reason)) as BudgetExceededError;
    expect(error).toBeInstanceOf(BudgetExceededError);
    expect(error.retryAtMs).toBe(error.violations[0]?.resetAtMs);
    expect(error.context.retryAfter).toBeGreaterThan(0);
  });
});

describe('shutdown', () => {
  const draining = (drainMs: number): BudgetService =>
    new BudgetService(memory(), {
      ...resolveBudgetDefaults({ limits: LIMITS, reaper: false }),
      shutdown: { drainMs },
    });

  it('reserves nothing new, and settles what is held', async () => {
    const budgets = draining(1_000);
    await budgets.reserve({ scopes: ['user'], amount: 5, id: 'a' });
    await budgets.reserve({ scopes: ['user'], amount: 5, id: 'b' });
    await budgets.onModuleDestroy();
    const refused = { name: 'BudgetUnavailableError', code: 'ServiceUnavailable' };
    await expect(budgets.reserve({ scopes: ['user'], amount: 1 })).rejects.toMatchObject(refused);
    await expect(budgets.run(fail, { scopes: ['user'], amount: 1 })).rejects.toMatchObject(refused);
    expect(await budgets.finalize({ id: 'a' }, 3)).toMatchObject({ ok: true, committed: 3 });
    expect(await budgets.abort({ id: 'b' })).toMatchObject({ ok: true, released: 5 });
  });

  it('waits for a run no longer than drainMs, and says so', async () => {
    const warn = jest.spyOn(Logger.prototype, 'warn').mockImplementation(() => {});
    const budgets = draining(50);
    let end = (): void => {};
    const run = budgets.run(() => new Promise<void>((done) => (end = done)), { scopes: ['user'], amount: 5 });
    await eventually(async () =>
      expect((await budgets.balance({ scope: 'user' }))[0]).toMatchObject({ reserved: 5 }),
    );
    await budgets.onModuleDestroy();
    expect(warn.mock.calls).toEqual([
      [
        expect.stringMatching(
          /^SHUTDOWN_BUDGETS_IN_USE: After 50 ms of shutdown 1 budget run is still going\. /,
        ),
      ],
    ]);
    warn.mockRestore();
    end();
    await run;
  });
});

describe('the reaper of a memory backend', () => {
  it('forgets ended operations, and a root that nothing is left of', async () => {
    const told: string[] = [];
    const backend = memory();
    const budgets = new BudgetService(
      backend,
      resolveBudgetDefaults({
        limits: [{ scope: 'user', period: { windowMs: 1_000 }, limit: 10 }],
        reaper: { everyMs: 100 },
      }),
      { onExpired: (_, ids) => told.push(...ids) },
    );
    await budgets.reserve({ scopes: ['user'], amount: 5, id: 'a', ttlMs: 50 });
    await eventually(() => expect(told).toEqual(['a']));
    await eventually(async () => expect((await budgets.list()).records).toEqual([]));
    await budgets.onModuleDestroy();
  });
});

function fail(): never {
  throw new Error('it ran');
}
