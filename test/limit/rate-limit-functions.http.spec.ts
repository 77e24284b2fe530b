import 'reflect-metadata';
import { Controller, type ExecutionContext, Get, type INestApplication, Logger } from '@nestjs/common';
import {
  AbuseLimiterService,
  minutes,
  RateLimit,
  seconds,
  SyncGuardModule,
  type SyncGuardOptions,
} from 'nestjs-syncguard';
import { freshRedis, workerRedis } from '../support/redis.js';
import { listen } from '../support/adapters.js';
import { upTo } from '../support/up-to.js';

Logger.overrideLogger(['error', 'warn']);

/** What the client's plan says, as JavaScript: the tests say it in a header. */
const VALUES: Readonly<Record<string, unknown>> = {
  none: 0,
  infinite: Infinity,
  unlimited: 'unlimited',
  many: 20_000,
  two: 2,
  nan: NaN,
  negative: -1,
  text: 'secret plan',
  nothing: undefined,
  null: null,
};
const plan =
  (name = 'x-plan') =>
  (context: ExecutionContext): never =>
    VALUES[
      context.switchToHttp().getRequest<{ headers: Record<string, string> }>().headers[name] ?? 'two'
    ] as never;
const TIERS = { windowMs: minutes(1), threshold: 3, blockMs: minutes(1) };

@Controller()
class Routes {
  @RateLimit({ name: 'plain', limit: plan(), windowMs: minutes(1) })
  @Get('limit')
  limit(): void {}

  @RateLimit({ name: 'blocking', limit: plan(), windowMs: minutes(1), blockMs: minutes(1) })
  @Get('blocking')
  blocking(): void {}

  @RateLimit({ name: 'priced', limit: 2, windowMs: minutes(1), cost: plan('x-cost') })
  @Get('cost')
  cost(): void {}

  @RateLimit({
    name: 'windowed',
    limit: 1,
    windowMs: (context) => seconds(Number(plan('x-window')(context))),
  })
  @Get('window')
  window(): void {}

  @RateLimit({ name: 'tiers', temp: TIERS, cost: plan('x-cost') })
  @Get('tiers')
  tiers(): void {}
}

describe.each([
  ['express', 'memory'],
  ['fastify', 'memory'],
  ['express', 'redis'],
  ['fastify', 'redis'],
] as const)('functions in a policy, on %s with %s', (adapter, backend) => {
  let app: INestApplication;
  let url = '';
  let warn: jest.SpyInstance;
  let error: jest.SpyInstance;
  beforeEach(async () => {
    await freshRedis();
    warn = jest.spyOn(Logger.prototype, 'warn').mockImplementation(() => {});
    error = jest.spyOn(Logger.prototype, 'error').mockImplementation(() => {});
    const options: SyncGuardOptions = {
      limit: { headers: 'draft-10' },
      ...(backend === 'redis' ? { redis: workerRedis().client() } : {}),
    };
    ({ app, url } = await listen(adapter, {
      imports: [SyncGuardModule.forRoot(options)],
      controllers: [Routes],
    }));
  });
  afterEach(async () => {
    warn.mockRestore();
    error.mockRestore();
    await app.close();
  });

  const get = (path: string, headers: Record<string, string> = {}): Promise<Response> =>
    fetch(`${url}/${path}`, { headers });
  const statuses = async (path: string, headers: Record<string, string>, times = 4): Promise<number[]> => {
    const seen: number[] = [];
    for (let i = 0; i < times; i++) seen.push((await get(path, headers)).status);
    return seen;
  };
  const codes = (): string[] =>
    warn.mock.calls.flatMap(([message]) => /^RATE_LIMIT_(?!ASK)\w+/.exec(String(message)) ?? []);
  const keys = (): Promise<string[]> => workerRedis().client().keys('*');

  it('limit 0 (a suspended plan): 429, Retry-After is the window, nothing is written', async () => {
    for (const path of ['limit', 'blocking']) {
      const response = await get(path, { 'x-plan': 'none' });
      expect([response.status, response.headers.get('retry-after')]).toEqual([429, '60']);
      expect(response.headers.get('ratelimit-policy')).toMatch(/;q=0;w=60/);
    }
    expect(await keys()).toEqual([]);
    expect((await get('limit', { 'x-plan': 'two' })).status).toBe(200);
  });

  it.each(['infinite', 'unlimited'])(
    'limit %s (a paid plan): lets in, uncounted, unless blocked',
    async (name) => {
      for (const path of ['limit', 'blocking'])
        expect(await statuses(path, { 'x-plan': name })).toEqual([200, 200, 200, 200]);
      expect((await get('limit', { 'x-plan': name })).headers.get('ratelimit')).toBeNull();
      expect(await keys()).toEqual([]);
      const key = JSON.stringify([['ip', '127.0.0.1']]);
      const limiter = app.get(AbuseLimiterService);
      await limiter.block(key, { name: 'plain', limit: 1, windowMs: 1_000 }, minutes(1));
      expect((await get('limit', { 'x-plan': name })).status).toBe(429);
    },
  );

  it('a limit above 9,999: a fixed window where it could be one, else 9,999 with one warning', async () => {
    const response = await get('limit', { 'x-plan': 'many' });
    expect(response.status).toBe(200);
    expect(response.headers.get('ratelimit')).toMatch(/r=19999/);
    expect(codes()).toEqual([]);
    const capped = await get('blocking', { 'x-plan': 'many' });
    await get('blocking', { 'x-plan': 'many' });
    expect(capped.status).toBe(200);
    expect(capped.headers.get('ratelimit')).toMatch(/r=9998/);
    expect(codes()).toEqual(['RATE_LIMIT_CAPPED']);
  });

  it('a cost of 0 passes uncounted, a part of one counts as one', async () => {
    for (const path of ['cost', 'tiers'])
      expect(await statuses(path, { 'x-cost': 'none' })).toEqual([200, 200, 200, 200]);
    expect(await keys()).toEqual([]);
    expect((await get('cost', { 'x-cost': 'two' })).status).toBe(200);
    expect((await get('cost', { 'x-cost': 'two' })).status).toBe(429);
    expect((await get('cost', { 'x-cost': 'none' })).status).toBe(200);
  });

  it.each(['nan', 'negative', 'text', 'nothing', 'null'])(
    'what is no number (%s) is a 500 without the text, which is logged',
    async (name) => {
      for (const [path, header] of [
        ['limit', 'x-plan'],
        ['cost', 'x-cost'],
      ] as const) {
        error.mockClear();
        const response = await get(path, { [header]: name });
        const body = await response.text();
        expect(response.status).toBe(500);
        expect(body).not.toMatch(/plain|priced|secret|must return|`limit`|`cost`/);
        expect(JSON.stringify(error.mock.calls)).toMatch(
          /The function `(limit` of the policy plain|cost` of the policy priced) must return a number of at least 0/,
        );
        expect(JSON.stringify(error.mock.calls)).not.toMatch(/secret/);
      }
    },
  );

  it('windowMs: each window has a count of its own', async () => {
    // Seconds: 2, and 20,000.
    expect(await statuses('window', { 'x-window': 'two' }, 2)).toEqual([200, 429]);
    const long = await get('window', { 'x-window': 'many' });
    expect(long.status).toBe(200);
    const denied = await get('window', { 'x-window': 'many' });
    expect([denied.status, denied.headers.get('retry-after')]).toEqual([429, upTo(20_000)]);
    expect((await get('window', { 'x-window': 'nan' })).status).toBe(500);
  });
});
