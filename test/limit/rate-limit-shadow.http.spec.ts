import {
  Controller,
  type ExecutionContext,
  Get,
  HttpCode,
  type INestApplication,
  Logger,
  Post,
  UnauthorizedException,
} from '@nestjs/common';
import { APP_GUARD } from '@nestjs/core';
import {
  AbuseLimiterService,
  type LimitPolicy,
  minutes,
  RateLimit,
  RateLimitGuard,
  seconds,
  SkipRateLimit,
  SyncGuardModule,
  type SyncGuardEvent,
} from 'nestjs-syncguard';
import { listen } from '../support/adapters.js';
import { closeApp } from '../support/close-app.js';
import { freshRedis, workerRedis } from '../support/redis.js';
import { startTcpProxy } from '../support/tcp-proxy.js';

// `shadow: true`: a policy is tried on real traffic, and lets every call in.

Logger.overrideLogger(['error']);

const TRIED = { name: 'tried', limit: 2, windowMs: minutes(1), shadow: true } satisfies LimitPolicy;
const LIVE = { name: 'live', limit: 4, windowMs: minutes(1) } satisfies LimitPolicy;

const ACCOUNT = {
  ...{ name: 'account', keyBy: ['ip', 'params.id'], shadow: true },
  temp: { windowMs: minutes(1), limit: 2, blockMs: minutes(5) },
} satisfies LimitPolicy;

/** A function of the app that throws for the path that ends with its name. */
const thrownAt =
  (what: string) =>
  (context: ExecutionContext): number => {
    if (context.switchToHttp().getRequest<{ params: { what: string } }>().params.what === what)
      throw new Error(`no ${what}`);
    return 1;
  };

@Controller()
class Routes {
  @Get('tried')
  @RateLimit(TRIED)
  tried() {
    return 'ok';
  }

  @Get('both')
  @RateLimit([LIVE, { ...TRIED, name: 'beside' }])
  both() {
    return 'ok';
  }

  @Get('thrown/:what')
  @RateLimit({ ...TRIED, name: 'thrown-key', keyBy: (context) => String(thrownAt('key')(context)) })
  @RateLimit({ ...TRIED, name: 'thrown-limit', limit: thrownAt('limit') })
  @RateLimit({ ...TRIED, name: 'thrown-cost', cost: thrownAt('cost') })
  @RateLimit({ ...TRIED, name: 'too-much', cost: () => 99 })
  @RateLimit({ ...LIVE, name: 'live-beside' })
  thrown() {
    return 'ok';
  }

  @Get('account/:id')
  @RateLimit(ACCOUNT)
  account() {
    return 'ok';
  }

  @Get('skipped')
  @RateLimit({ ...TRIED, name: 'skipped' })
  @SkipRateLimit('skipped')
  skipped() {
    return 'ok';
  }

  @Post('login')
  @HttpCode(200)
  @RateLimit({
    name: 'enter',
    count: 'failure',
    temp: { windowMs: minutes(1), limit: 2, blockMs: minutes(5) },
    shadow: true,
  })
  login() {
    throw new UnauthorizedException();
  }

  @Post('succeed')
  @HttpCode(200)
  @RateLimit({ name: 'gain', count: 'success', limit: 2, windowMs: minutes(1), shadow: true })
  succeed() {
    return 'ok';
  }
}

const limits = {
  default: { name: 'everything', limit: 3, windowMs: seconds(10), shadow: true },
} satisfies Record<string, LimitPolicy>;

describe.each([
  ['express', 'memory'],
  ['fastify', 'Redis'],
] as const)('on %s and %s', (adapter, backend) => {
  let app: INestApplication;
  let url: string;
  let events: SyncGuardEvent[];
  let logged: jest.SpyInstance;
  beforeEach(async () => {
    events = [];
    logged = jest.spyOn(Logger.prototype, 'log').mockImplementation(() => undefined);
    const redis = backend === 'Redis' ? { redis: (await freshRedis()).url } : {};
    ({ app, url } = await listen(adapter, {
      imports: [
        SyncGuardModule.forRoot({
          ...redis,
          limits,
          telemetry: { onEvent: (event) => void events.push(event) },
        }),
      ],
      controllers: [Routes],
      providers: [{ provide: APP_GUARD, useClass: RateLimitGuard }],
    }));
  });
  afterEach(async () => {
    logged.mockRestore();
    await closeApp(app);
  });

  const lines = () =>
    logged.mock.calls.map(([line]) => String(line)).filter((line) => line.startsWith('RATE_LIMIT_SHADOW'));
  const ask = async (path: string, method = 'GET') => {
    const response = await fetch(`${url}/${path}`, { method });
    return [response.status, response.headers.get('ratelimit-shadow')?.replace(/t=\d+/g, 't') ?? null];
  };

  it('lets every call in, and says in a header, an event and one line what it would have denied', async () => {
    const all = '"everything";r=';
    expect(await ask('tried')).toEqual([200, `${all}2;t, "tried";r=1;t`]);
    expect(await ask('tried')).toEqual([200, `${all}1;t, "tried";r=0;t`]);
    expect(await ask('tried')).toEqual([200, `${all}0;t, "tried";r=0;t;denied`]);
    expect(await ask('tried')).toEqual([200, `${all}0;t;denied, "tried";r=0;t;denied`]);
    expect(events).toContainEqual(
      expect.objectContaining({ type: 'check', result: 'fail', policy: 'tried shadow' }),
    );
    expect(lines()).toHaveLength(1);
    expect(lines()[0]).toMatch(
      /^RATE_LIMIT_SHADOW: The policy tried would have denied a call for (59|60) s \(temp\)\.$/,
    );
  });

  it('keeps no other limit from counting, and is not asked about a call that another denies', async () => {
    const statuses: unknown[] = [];
    for (let i = 0; i < 6; i++) statuses.push((await ask('both'))[0]);
    expect(statuses).toEqual([200, 200, 200, 200, 429, 429]);
    const counted = (name: string) =>
      events.filter((event) => event.feature === 'limit' && event.policy === name).length;
    expect([counted('live'), counted('beside shadow')]).toEqual([6, 4]);
  });

  it.each(['key', 'limit', 'cost', 'nothing'])(
    'lets in though a function of it throws or wants too much: %s',
    async (what) => {
      const failed = jest.spyOn(Logger.prototype, 'error').mockImplementation(() => undefined);
      const [status, header] = await ask(`thrown/${what}`);
      expect([status, String(header).match(/thrown-\w+/g)?.length]).toEqual([
        200,
        what === 'nothing' ? 3 : 2,
      ]);
      expect(failed.mock.calls.flat().join()).toMatch(
        /^RATE_LIMIT_SHADOW: The policy (thrown-\w+|too-much), which has `shadow: true`, could not be asked\./,
      );
      failed.mockRestore();
      for (let i = 0; i < 3; i++) await fetch(`${url}/thrown/${what}`);
      expect((await ask(`thrown/${what}`))[0]).toBe(429); // by the live one
    },
  );

  it('can be skipped by its name', async () => {
    expect((await ask('skipped'))[1]).not.toContain('skipped');
  });

  it('counts failures and blocks in a bucket of its own, and never answers for a call', async () => {
    for (let i = 0; i < 5; i++) expect((await ask('login', 'POST'))[0]).toBe(401);
    expect((await ask('login', 'POST'))[1]).toContain('"enter";r=0;t;denied');
    const limiter = app.get(AbuseLimiterService);
    const live = { name: 'enter', temp: { windowMs: minutes(1), limit: 2, blockMs: minutes(5) } };
    expect(await limiter.peek({ ip: '127.0.0.1' }, { ...live, keyBy: 'ip' })).toMatchObject({
      allowed: true,
      known: false,
    });
  });

  it('leaves blocks that `lift` finds by the account', async () => {
    for (let i = 0; i < 3; i++) await ask('account/ann');
    expect((await ask('account/ann'))[1]).toContain('"account";r=0;t;denied');
    const limiter = app.get(AbuseLimiterService);
    expect(await limiter.lift(ACCOUNT, { 'params.id': 'ann' })).toEqual({ lifted: 1 });
    expect((await ask('account/ann'))[1]).toContain('"account";r=1;t');
  });

  it('counts successes without answering for one', async () => {
    for (let i = 0; i < 4; i++) expect((await ask('succeed', 'POST'))[0]).toBe(200);
    expect((await ask('succeed', 'POST'))[1]).toContain('"gain";r=0;t;denied');
  });

  it('holds for the service: what it would have decided stands in the decision', async () => {
    const limiter = app.get(AbuseLimiterService);
    for (const remaining of [1, 0])
      expect(await limiter.check('ann', TRIED)).toMatchObject({ allowed: true, remaining });
    const shadow = { allowed: false, scope: 'temp', shortCount: 2 };
    expect(await limiter.check('ann', TRIED)).toMatchObject({ allowed: true, remaining: 0, shadow });
    expect(await limiter.peek('ann', TRIED)).toMatchObject({ allowed: true, known: true, shadow });
    await limiter.limiter('ann', TRIED);
    // Live it starts from zero.
    expect(await limiter.check('ann', { ...TRIED, shadow: false })).toMatchObject({
      allowed: true,
      shortCount: 1,
    });
    expect(await limiter.check('ann', [TRIED, LIVE])).toMatchObject({ allowed: true, shortCount: 1 });
    expect(await limiter.reset('ann', TRIED)).toMatchObject({ attempts: 2 });
    expect(await limiter.check('ann', TRIED)).toMatchObject({ remaining: 1 });
  });
});

it('lets in while Redis is away or answers nonsense, whatever `onError` says', async () => {
  await freshRedis();
  const proxy = await startTcpProxy(workerRedis().port);
  const logged = jest.spyOn(Logger.prototype, 'log').mockImplementation(() => undefined);
  const { app, url } = await listen('express', {
    imports: [
      SyncGuardModule.forRoot({
        redis: `redis://127.0.0.1:${proxy.port}`,
        limits: {},
        limit: { onError: 'closed', commandTimeoutMs: 100 },
      }),
    ],
    controllers: [Routes],
  });
  try {
    expect((await fetch(`${url}/tried`)).status).toBe(200);
    const client = workerRedis().client();
    const [key] = await client.keys('*abuse_limiter*');
    await client.del(key as string);
    await client.lpush(key as string, 'of another program');
    expect((await fetch(`${url}/tried`)).status).toBe(200);
    expect(logged.mock.calls.flat().join()).toContain(
      'RATE_LIMIT_SHADOW: A policy with `shadow: true` could not be asked.',
    );
    await proxy.stop();
    expect((await fetch(`${url}/tried`)).status).toBe(200);
  } finally {
    logged.mockRestore();
    await closeApp(app);
    await proxy.stop();
  }
});
