import { Logger } from '@nestjs/common';
import { BudgetInputError, BudgetUnavailableError } from '../../lib/budget/budget.errors.js';
import type { BudgetBackend } from '../../lib/budget/budget.backend.js';
import { MemoryBudgetBackend } from '../../lib/budget/memory/budget.memory-backend.js';
import { resolveBudgetDefaults } from '../../lib/budget/budget.options.js';
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

  type Call = () => Promise<unknown>;
  const reserve = (more: object) => (): Promise<unknown> => budgets.reserve({ scopes, amount: 1, ...more });
  const finalize = (more: object) => (): Promise<unknown> => budgets.finalize({ id: 'x' }, 1, more);
  const setLimit = (more: object) => (): Promise<unknown> =>
    budgets.setLimit({ scope: 'user', period: 'lifetime', limit: 1, ...more });
  const list = (options: object) => (): Promise<unknown> => budgets.list(options);
  const run = (more: object) => (): Promise<unknown> => budgets.run(() => 1, { scopes, amount: 1, ...more });
  const tooMany = Array.from({ length: 33 }, (_, i) => `user:${i}`);
  const calls: [string, Call, RegExp][] = [
    ['no options', () => budgets.reserve(undefined as never), /options must be an object/],
    ['a fraction', reserve({ amount: 12.5 }), /Math\.round\(euros \* 100\)/],
    ['no scopes', reserve({ scopes: [] }), /1 to 32 scopes/],
    ['too many scopes', reserve({ scopes: tooMany }), /1 to 32 scopes/],
    ['a scope twice', reserve({ scopes: ['a:1', 'a:1'] }), /scopes\[1\] is the same scope as scopes\[0\]/],
    ['a scope without a type', reserve({ scopes: [':1'] }), /"type" or "type:id"/],
    ['a scope without an id', reserve({ scopes: ['user:'] }), /"type" or "type:id"/],
    ...['undefined', 'null', 'NaN', '[object Object]'].map((id): [string, Call, RegExp] => [
      `a scope of ${id}`,
      reserve({ scopes: [`user:${id}`] }),
      /stands for a missing value/,
    ]),
    ...['root', 'id'].map((name): [string, Call, RegExp] => [
      `a missing value in ${name}`,
      reserve({ [name]: 'job:undefined' }),
      new RegExp(`^${name} has the part "undefined", which stands for a missing value`),
    ]),
    ['an empty scope', reserve({ scopes: [''] }), /a scope must not be empty/],
    ['a long id', reserve({ id: 'x'.repeat(513) }), /id must be at most 512/],
    ['half a character', reserve({ root: '\ud800' }), /root has a lone surrogate/],
    ['a ttl of nothing', reserve({ ttlMs: 0 }), /ttlMs must be/],
    ['a long meta', reserve({ meta: 'x'.repeat(1_023) }), /at most 1024 bytes/],
    ['a meta that is no JSON', reserve({ meta: 1n }), /meta must be a JSON value/],
    ['no id to charge under', () => budgets.charge({ scopes, amount: 1 } as never), /id must be a string/],
    [
      'an unknown mode',
      () => budgets.charge({ scopes, amount: 1, id: 'x', mode: 'try' as never }),
      /mode must be/,
    ],
    ['no ref', () => budgets.finalize(undefined as never, 1), /ref must be/],
    ['an unknown overage', finalize({ overage: 'ignore' }), /overage must be/],
    ['an unknown late', finalize({ late: 'never' }), /late must be/],
    ['no refund id', () => budgets.refund({ id: 'x' }, 1, undefined as never), /refundId must be a string/],
    ['an unknown period', setLimit({ period: 'day' }), /period must be/],
    ['an undefined limit', setLimit({ limit: undefined }), /limit must be/],
    ['an unknown state', list({ state: 'open' }), /state must be/],
    ['another cursor', list({ cursor: '1; drop' }), /cursor must be/],
    ['a cursor over 64 bits', list({ cursor: '99999999999999999999' }), /cursor must be/],
    ['a cursor that is a number', list({ cursor: 5 }), /cursor must be/],
    [
      'a run of nothing',
      () => budgets.run(undefined as never, { scopes, amount: 1 }),
      /fn must be a function/,
    ],
    ['a cost that cannot be asked', run({ actual: 5 }), /actual must be a function/],
    ['a reject in run', run({ overage: 'reject' }), /overage must be/],
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
    [{ limits: [{ scope: 'user', period: 'lifetime', limit: 1n }] }, /2\^53 - 1/],
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

function fail(): never {
  throw new Error('it ran');
}
