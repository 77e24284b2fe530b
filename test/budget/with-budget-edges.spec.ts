import 'reflect-metadata';
import { Injectable, Logger, StreamableFile } from '@nestjs/common';
import { Test } from '@nestjs/testing';
import { Readable } from 'node:stream';
import { text } from 'node:stream/consumers';
import {
  BudgetService,
  currentHold,
  currentLock,
  SyncGuardModule,
  WithBudget,
  WithLock,
} from 'nestjs-syncguard';
import { freshRedis } from '../support/redis.js';
import { eventually } from '../support/eventually.js';

const USER = { scopes: (user: string) => [`user:${user}`], estimate: () => 500 };

/** Functions of an app that give no names. */
const missing: { root: unknown; scopes: unknown } = { root: undefined, scopes: undefined };

@Injectable()
class Llm {
  ran = 0;

  @WithBudget({ ...USER, estimate: (_user: string, max: number) => max })
  async complete(_user: string, _max: number): Promise<number> {
    return ++this.ran;
  }

  @WithBudget({ ...USER, root: () => missing.root as string })
  async ofTenant(_user: string): Promise<number> {
    return ++this.ran;
  }

  @WithBudget({ scopes: () => missing.scopes as string[], estimate: () => 1 })
  async ofScopes(): Promise<number> {
    return ++this.ran;
  }

  @WithBudget({ ...USER, id: (_user: string, key?: string) => key })
  async once(_user: string, _key?: string): Promise<number> {
    return ++this.ran;
  }

  @WithBudget(USER)
  @WithLock('file')
  async file(_user: string): Promise<StreamableFile> {
    async function* lines(): AsyncGenerator<string> {
      for (let i = 0; i < 3; i++) {
        currentHold()?.spent(10 + i);
        yield `${currentLock()?.key} `;
      }
    }
    return new StreamableFile(Readable.from(lines()));
  }

  /** The usage is in the last chunk, which is not sent on. */
  @WithBudget({ ...USER, actual: () => (currentHold()?.returned as { total: number }).total })
  async *stream(_user: string): AsyncGenerator<string, { total: number }> {
    yield 'one';
    yield 'two';
    return { total: 37 };
  }

  /** The first provider was paid, and failed. */
  @WithBudget({ ...USER, actual: (answer: { cost: number }) => (currentHold()?.noted ?? 0) + answer.cost })
  async fallback(_user: string): Promise<{ cost: number }> {
    currentHold()?.spent(40);
    return { cost: 25 };
  }
}

const moduleOn = async (backend: 'memory' | 'redis') => ({
  imports: [
    SyncGuardModule.forRoot({
      ...(backend === 'redis' ? { redis: (await freshRedis()).url } : {}),
      budget: {
        limits: [
          { scope: 'user', period: 'lifetime', limit: 1_000 },
          { scope: 'user:free', period: 'lifetime', limit: 0 },
        ],
      },
    }),
  ],
  providers: [Llm],
});

describe.each(['memory', 'redis'] as const)('@WithBudget() at its edges, on %s', (backend) => {
  let budgets: BudgetService;
  let llm: Llm;
  let close: () => Promise<unknown>;
  const spent = async (user: string, root?: string): Promise<string> => {
    const [balance] = await budgets.balance({ root, scope: `user:${user}` });
    return `${balance?.committed}/${balance?.reserved}`;
  };

  beforeEach(async () => {
    const module = await Test.createTestingModule(await moduleOn(backend)).compile();
    await module.init();
    [budgets, llm, close] = [module.get(BudgetService), module.get(Llm), () => module.close()];
  });
  afterEach(() => close());

  it('an estimate of 0 passes no limit that is used up, and no limit of 0', async () => {
    const exceeded = { name: 'BudgetExceededError', violations: [{ requested: 1, available: 0 }] };
    await expect(llm.complete('free', 0)).rejects.toMatchObject(exceeded);
    await expect(budgets.run(() => ++llm.ran, { scopes: ['user:free'], amount: 0 })).rejects.toMatchObject(
      exceeded,
    );
    await budgets.charge({ scopes: ['user:ann'], amount: 999, id: 'most' });
    expect(await llm.complete('ann', 0)).toBe(1);
    expect(await spent('ann')).toBe('1000/0');
    await expect(llm.complete('ann', 0)).rejects.toMatchObject(exceeded);
    expect(llm.ran).toBe(1);
    expect(await budgets.reserve({ scopes: ['user:free'], amount: 0 })).toMatchObject({
      ok: true,
      amount: 0,
    });
  });

  it.each([undefined, null, '', 7, {}, ['acme']])(
    'a root function that gives %j is a fault of the app, and nothing runs',
    async (root) => {
      missing.root = root;
      const logged = jest.spyOn(Logger.prototype, 'error').mockImplementation(() => {});
      await expect(llm.ofTenant('ann')).rejects.toMatchObject({ name: 'SyncGuardConfigError' });
      expect(logged.mock.calls).toEqual([
        [expect.stringMatching(/^BUDGET_NAME_MISSING: .*`root` of @WithBudget\(\) on Llm\.ofTenant gave /)],
      ]);
      logged.mockRestore();
      expect([llm.ran, await spent('ann')]).toEqual([0, '0/0']);
      expect((await budgets.reserve({ root: undefined, scopes: ['user:ann'], amount: 1 })).ok).toBe(true);
    },
  );

  it.each([undefined, null, '', 'user:ann', [], [undefined], ['user:ann', '']])(
    'a scopes function that gives %j is one, too',
    async (scopes) => {
      missing.scopes = scopes;
      const logged = jest.spyOn(Logger.prototype, 'error').mockImplementation(() => {});
      await expect(llm.ofScopes()).rejects.toMatchObject({ name: 'SyncGuardConfigError' });
      expect(logged.mock.calls.join()).toMatch(/`scopes` of @WithBudget\(\) on Llm\.ofScopes gave /);
      logged.mockRestore();
      expect(llm.ran).toBe(0);
    },
  );

  it('an id function that gives undefined means a random id, and nothing else does', async () => {
    expect([await llm.once('ann'), await llm.once('ann')]).toEqual([1, 2]);
    expect(await llm.once('bob', 'key')).toBe(3);
    await expect(llm.once('bob', 'key')).rejects.toMatchObject({ reason: 'already_finalized' });
    for (const key of ['', null, 7] as string[])
      await expect(llm.once('bob', key)).rejects.toMatchObject({ name: 'BudgetInputError' });
  });

  it('a file is read under its hold and its lock', async () => {
    const file = await llm.file('ann');
    expect(await text(file.getStream())).toBe('file file file ');
    await eventually(async () => expect(await spent('ann')).toBe('33/0'));
  });

  it('usage that a generator returns is what it costs', async () => {
    const items: string[] = [];
    for await (const item of llm.stream('ann')) items.push(item);
    expect([items, await spent('ann')]).toEqual([['one', 'two'], '37/0']);
  });

  it('a reader that leaves before usage comes pays the estimate', async () => {
    for await (const _ of llm.stream('ann')) break;
    expect(await spent('ann')).toBe('500/0');
  });

  it('what a provider cost that failed is added where `actual` says so, and is counted at least', async () => {
    await llm.fallback('ann');
    expect(await spent('ann')).toBe('65/0');
    const body = (hold: { spent(n: number): void }): number => {
      hold.spent(40);
      return 25;
    };
    const run = { scopes: ['user:bob'], amount: 500 };
    await budgets.run(body, { ...run, actual: (cost, { noted }) => noted + cost });
    expect(await spent('bob')).toBe('65/0');
    await budgets.run(body, { ...run, actual: (cost) => cost });
    expect(await spent('bob')).toBe('105/0');
    await budgets.run(body, { ...run, actual: (_, { returned }) => (returned === undefined ? 50 : 0) });
    expect(await spent('bob')).toBe('155/0');
  });

  it('a plan with credits is told of calls in flight, and not of next month', async () => {
    await budgets.credit({ scope: 'user:ann', period: 'lifetime', amount: 500, id: 'bought' });
    await budgets.charge({ scopes: ['user:ann'], amount: 1_200, id: 'spent' });
    await budgets.reserve({ scopes: ['user:ann'], amount: 300, id: 'in flight' });
    const job = () => budgets.run(() => 'done', { scopes: ['user:ann'], amount: 10 });
    await expect(job()).rejects.toMatchObject({ context: { retryAfter: 1, violations: [{ credits: 500 }] } });
    await budgets.abort({ id: 'in flight' });
    expect(await job()).toBe('done');
  });

  it('reserves, charges and runs in the turn of close() as before it', async () => {
    const closing = close();
    const scopes = ['user:ann'];
    const calls = [
      budgets.reserve({ scopes, amount: 1 }),
      budgets.charge({ scopes, amount: 1, id: 'c' }),
      budgets.run(() => ({ ok: 'ran' }), { scopes, amount: 1 }),
    ];
    expect((await Promise.all(calls)).map(({ ok }) => ok)).toEqual([true, true, 'ran']);
    await closing;
    await expect(budgets.reserve({ scopes, amount: 1 })).rejects.toMatchObject({
      code: 'ServiceUnavailable',
    });
  });
});
