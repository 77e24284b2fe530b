import 'reflect-metadata';
import { Body, Controller, type INestApplication, Injectable, Logger, Param, Post } from '@nestjs/common';
import { Test } from '@nestjs/testing';
import {
  BudgetExceededError,
  type BudgetLimit,
  BudgetService,
  hashKey,
  SyncGuardModule,
  WithBudget,
} from 'nestjs-syncguard';
import type { BudgetBackend } from '../../lib/budget/budget.backend.js';
import { resolveBudgetDefaults } from '../../lib/budget/budget.options.js';
import { type Parts, SYNCGUARD_PARTS } from '../../lib/module/syncguard.parts.js';
import { freshRedis, workerRedis } from '../support/redis.js';
import { listen } from '../support/adapters.js';

interface Answer {
  text: string;
  tokens: number;
}

const LIMITS: BudgetLimit[] = [
  { scope: 'user', period: { every: 'month' }, limit: 100 },
  { scope: 'org', period: 'lifetime', limit: 150 },
];

@Injectable()
class Llm {
  calls = 0;

  @WithBudget({
    scopes: (user: string) => [`user:${user}`, 'org'],
    estimate: (_user: string, maxTokens: number) => maxTokens,
    actual: (answer: Answer) => answer.tokens,
  })
  async complete(
    user: string,
    maxTokens: number,
    work: { tokens?: number; fail?: string } = {},
  ): Promise<Answer> {
    this.calls++;
    if (work.fail) throw new TypeError(work.fail);
    return { text: `for ${user}`, tokens: work.tokens ?? maxTokens };
  }

  @WithBudget({ scopes: () => ['nobody'], estimate: () => 1 })
  async unlimited(): Promise<void> {}

  @WithBudget({ scopes: () => ['org'], estimate: () => -1 })
  async negative(): Promise<void> {}
}

@Controller('ai')
class AiController {
  constructor(private readonly llm: Llm) {}

  @Post(':user')
  async complete(
    @Param('user') user: string,
    @Body() body: { max: number; tokens?: number; fail?: string },
  ): Promise<Answer> {
    return this.llm.complete(user, body.max, body);
  }

  @Post('wrong/unlimited')
  async unlimited(): Promise<void> {
    return this.llm.unlimited();
  }

  @Post('wrong/negative')
  async negative(): Promise<void> {
    return this.llm.negative();
  }
}

const moduleWith = (redis?: string) => ({
  imports: [SyncGuardModule.forRoot({ redis, budget: { limits: LIMITS }, commandTimeoutMs: 500 })],
  providers: [Llm],
  controllers: [AiController],
});

describe.each(['express', 'fastify'] as const)('@WithBudget over HTTP on %s', (adapter) => {
  let app: INestApplication;
  let url: string;

  const post = async (path: string, body: object = {}) => {
    const response = await fetch(`${url}${path}`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify(body),
    });
    return {
      status: response.status,
      retryAfter: response.headers.get('retry-after'),
      body: (await response.json().catch(() => ({}))) as {
        code?: string;
        message?: string;
        context?: { violations?: unknown[] };
      } & Partial<Answer>,
    };
  };

  beforeEach(async () => {
    const server = await freshRedis();
    server.clock.set(Date.parse('2027-01-31T23:59:00Z'));
    ({ app, url } = await listen(adapter, moduleWith(server.url)));
  });
  afterEach(() => app.close());

  it('answers 400 for a budget that is asked for wrongly', async () => {
    for (const path of ['/ai/wrong/unlimited', '/ai/wrong/negative'])
      expect(await post(path)).toMatchObject({ status: 400, body: { code: 'InvalidArgument' } });
  });

  it('names the method of a wrong estimate in the log, and not to clients', async () => {
    const warn = jest.spyOn(Logger.prototype, 'warn').mockImplementation();
    const { body } = await post('/ai/wrong/negative');
    expect(body.message).toMatch(/^the estimate must be a whole number .*, got -1 \(number\)\.$/);
    expect(warn.mock.calls).toEqual([
      [
        expect.stringMatching(
          /^BUDGET_ARGUMENT_WRONG: @WithBudget\(\) on Llm\.negative refused a call: the estimate must be a whole number /,
        ),
      ],
    ]);
    warn.mockRestore();
  });

  it('answers 500 where a key holds what we did not write', async () => {
    app.useLogger(false);
    await workerRedis().client().set('syncguard/budget:{default}:b', 'foreign');
    expect(await post('/ai/ada', { max: 1 })).toMatchObject({ status: 500, retryAfter: null });
  });
});

describe('@WithBudget in a provider', () => {
  let llm: Llm;
  let budgets: BudgetService;
  let backend: BudgetBackend;
  let close: () => Promise<void>;

  beforeEach(async () => {
    const module = await Test.createTestingModule(moduleWith()).compile();
    await module.init();
    llm = module.get(Llm);
    budgets = module.get(BudgetService);
    backend = module.get<Parts>(SYNCGUARD_PARTS).backends.budget;
    close = () => module.close();
  });
  afterEach(() => close());

  it('throws what the method throws, and BudgetExceededError when there is no room', async () => {
    await expect(llm.complete('ada', 10, { fail: 'broken' })).rejects.toThrow(new TypeError('broken'));
    const error: BudgetExceededError = await llm.complete('ada', 101).then(
      () => {
        throw new Error('it ran');
      },
      (reason: BudgetExceededError) => reason,
    );
    expect(error).toBeInstanceOf(BudgetExceededError);
    expect(error.violations).toMatchObject([{ scope: 'user:ada', available: 100, requested: 101 }]);
    expect(llm.calls).toBe(1);
  });

  it('says so when its hold was settled by somebody else meanwhile', async () => {
    const elsewhere = new BudgetService(backend, resolveBudgetDefaults({ reaper: false }));
    const run = budgets.run((hold) => elsewhere.abort(hold), { scopes: ['org'], amount: 5, id: 'job 8' });
    await expect(run).rejects.toMatchObject({
      name: 'BudgetConflictError',
      reason: 'aborted',
      summary:
        'The body has run, but its cost could not be counted, because another call had settled its hold (aborted).',
      context: { idHash: hashKey('job 8') },
    });
  });

  it('refuses a misspelt option, and a generator, where they stand', () => {
    const wrong = { scopes: () => ['org'], estimate: () => 1 };
    expect(() => WithBudget({ ...wrong, ttl: 5 } as never)).toThrow(/ttl is not an option/);
    expect(() => WithBudget({ scopes: () => ['org'] } as never)).toThrow(/estimate must be a function/);
    expect(() => WithBudget({ ...wrong, overage: 'reject' } as never)).toThrow(/overage must be/);
    expect(() => WithBudget({ ...wrong, ttlMs: 0 })).toThrow(/ttlMs must be/);
    const decorate = WithBudget(wrong) as MethodDecorator;
    expect(() => decorate({}, 'stream', { value: function* () {} })).toThrow(/generator/);
  });
});
