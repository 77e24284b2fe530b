import 'reflect-metadata';
import {
  Body,
  type CanActivate,
  Controller,
  type ExecutionContext,
  Get,
  HttpCode,
  Injectable,
  type INestApplication,
  Logger,
  Module,
  Next,
  Param,
  Post,
  Res,
  UnauthorizedException,
  UseGuards,
  VersioningType,
} from '@nestjs/common';
import { APP_GUARD } from '@nestjs/core';
import { ExecutionContextHost } from '@nestjs/core/helpers/execution-context-host.js';
import { Test } from '@nestjs/testing';
import {
  AbuseLimiterService,
  type ContextResolver,
  minutes,
  RateLimit,
  RateLimitGuard,
  seconds,
  SkipRateLimit,
  SyncGuardModule,
  type SyncGuardOptions,
} from 'nestjs-syncguard';
import { freshRedis, workerRedis } from '../support/redis.js';
import { listen } from '../support/adapters.js';
import { tryAgainUpTo, upTo } from '../support/up-to.js';

Logger.overrideLogger(['error', 'warn']);

const LOGIN = {
  keyBy: ['ip', 'body.email'],
  count: 'failure',
  resetOnSuccess: true,
  temp: { windowMs: minutes(1), threshold: 5, blockMs: minutes(1) },
} as const;
const TWO = { limit: 2, windowMs: seconds(10) };

@Injectable()
class Auth implements CanActivate {
  canActivate(context: ExecutionContext): boolean {
    const request = context
      .switchToHttp()
      .getRequest<{ headers: Record<string, string>; user?: { id: string } }>();
    const user = request.headers['x-user'];
    if (!user) throw new UnauthorizedException();
    request.user = { id: user };
    return true;
  }
}

@Injectable()
class PasswordGuard implements CanActivate {
  canActivate(context: ExecutionContext): boolean {
    const { body } = context.switchToHttp().getRequest<{ body: { password?: string } }>();
    if (body.password !== 'correct') throw new UnauthorizedException();
    return true;
  }
}

@Injectable()
class TenantPlan implements ContextResolver<number> {
  resolve(context: ExecutionContext): number {
    return context.switchToHttp().getRequest<{ headers: Record<string, string> }>().headers['x-plan'] ===
      'pro'
      ? 4
      : 1;
  }
}

@Injectable()
class TenantKey implements ContextResolver<string | undefined> {
  resolve(context: ExecutionContext): string | undefined {
    return context.switchToHttp().getRequest<{ headers: Record<string, string> }>().headers['x-tenant'];
  }
}

class TeapotError extends Error {}

@Controller()
class Routes {
  @RateLimit(LOGIN)
  @HttpCode(200)
  @Post('login')
  login(@Body() { password }: { password: string }): { ok: true } {
    if (password !== 'correct') throw new UnauthorizedException();
    return { ok: true };
  }

  @UseGuards(PasswordGuard)
  @RateLimit(LOGIN)
  @HttpCode(200)
  @Post('login-by-guard')
  loginByGuard(): { ok: true } {
    return { ok: true };
  }

  @RateLimit({ ...LOGIN, isFailure: (error) => error instanceof TeapotError })
  @Post('login-by-error')
  loginByError(@Body() { password }: { password: string }): void {
    if (password !== 'correct') throw new TeapotError('wrong');
  }

  @RateLimit(LOGIN)
  @Post('login-by-status')
  loginByStatus(
    @Body() { password }: { password: string },
    @Res({ passthrough: true }) response: { status(code: number): unknown },
  ): object {
    if (password !== 'correct') response.status(403);
    return {};
  }

  @RateLimit(TWO)
  @Get('two')
  two(): string {
    return 'ok';
  }

  @RateLimit(TWO)
  @Get('items/:id')
  item(@Param('id') id: string): string {
    return id;
  }

  @RateLimit({ name: 'tiered', temp: { windowMs: seconds(10), limit: 2, blockMs: seconds(30) } })
  @Get('tiered')
  tiered(): string {
    return 'ok';
  }

  @RateLimit({ ...TWO, keyBy: 'headers.x-api-key' })
  @RateLimit({ limit: 5, windowMs: minutes(1) })
  @Get('stacked')
  stacked(): string {
    return 'ok';
  }

  @RateLimit('named')
  @Get('named')
  named(): string {
    return 'ok';
  }

  @RateLimit('named')
  @Get('named-too')
  namedToo(): string {
    return 'ok';
  }

  // The guard that knows the user stands above and below.
  @UseGuards(Auth)
  @RateLimit({ ...TWO, keyBy: 'user' })
  @Get('user-above')
  userAbove(): string {
    return 'ok';
  }

  @RateLimit({ ...TWO, keyBy: 'user' })
  @UseGuards(Auth)
  @Get('user-below')
  userBelow(): string {
    return 'ok';
  }

  @RateLimit({ limit: TenantPlan, windowMs: minutes(1), keyBy: TenantKey })
  @Get('tenant')
  tenant(): string {
    return 'ok';
  }

  @RateLimit({ limit: 3, windowMs: seconds(10), algorithm: 'fixed-window' })
  @RateLimit({ name: 'log', limit: 9, windowMs: minutes(1) })
  @Get('bulk')
  bulk(): string {
    return 'ok';
  }

  @RateLimit({
    limit: () => 50_000,
    windowMs: minutes(1),
    algorithm: 'fixed-window',
    cost: (context) => Number(rowsOf(context)),
  })
  @Get('bulk-rows')
  bulkRows(): string {
    return 'ok';
  }

  @RateLimit({ limit: 10, windowMs: minutes(1), cost: (context) => Number(rowsOf(context)) })
  @Get('rows')
  rows(): string {
    return 'ok';
  }

  @RateLimit({
    name: 'costless',
    limit: 10,
    windowMs: minutes(1),
    cost: () => undefined as unknown as number,
  })
  @Get('costless')
  costless(): string {
    return 'ok';
  }

  @Get('free')
  free(): string {
    return 'ok';
  }

  @SkipRateLimit()
  @Get('health')
  health(): string {
    return 'ok';
  }

  @Get('probe/ready')
  ready(): string {
    return 'ok';
  }

  @SkipRateLimit('default')
  @RateLimit('named')
  @Get('skip-default')
  skipDefault(): string {
    return 'ok';
  }
}

const rowsOf = (context: ExecutionContext): unknown =>
  context.switchToHttp().getRequest<{ query: Record<string, unknown> }>().query.rows ?? 1;

@RateLimit({ name: 'class', limit: 3, windowMs: minutes(1) })
@Controller('class')
class ClassRoutes {
  @Get('plain')
  plain(): string {
    return 'ok';
  }

  @RateLimit({ name: 'method', limit: 2, windowMs: minutes(1) })
  @Get('both')
  both(): string {
    return 'ok';
  }

  @RateLimit({ name: 'instead', limit: 4, windowMs: minutes(1) }, { override: true })
  @Get('override')
  override(): string {
    return 'ok';
  }
}

@UseGuards(RateLimitGuard)
@Controller()
class BoundTwice {
  @UseGuards(RateLimitGuard, RateLimitGuard)
  @Get('bound-twice')
  get(): string {
    return 'ok';
  }
}

/** Two controllers of one name, in two modules. */
function moduleOf(path: string): new () => object {
  @Controller(path)
  class SameName {
    @RateLimit(TWO)
    @Get()
    get(): string {
      return path;
    }
  }
  @Module({ controllers: [SameName] })
  class PathModule {}
  return PathModule;
}

const LIMITS = { named: { limit: 3, windowMs: minutes(1) } };

describe.each(['express', 'fastify'] as const)('@RateLimit on %s', (adapter) => {
  let app: INestApplication;
  let url: string;
  const { clock } = workerRedis();

  async function start(
    options: SyncGuardOptions = {},
    {
      global = false,
      configure = (): void => {},
    }: { global?: boolean; configure?: (app: INestApplication) => void } = {},
  ): Promise<void> {
    await freshRedis();
    clock.hold();
    ({ app, url } = await listen(
      adapter,
      {
        imports: [
          SyncGuardModule.forRoot({
            redis: workerRedis().url,
            limits: LIMITS,
            ...options,
            // What limits say is tested here, not their deadline, which a busy machine may miss.
            limit: { denyCacheMs: 0, commandTimeoutMs: 10_000, ...options.limit },
          }),
          moduleOf('left'),
          moduleOf('right'),
        ],
        controllers: [Routes, ClassRoutes, ...(global ? [BoundTwice] : [])],
        providers: [
          TenantPlan,
          TenantKey,
          ...(global ? [{ provide: APP_GUARD, useClass: RateLimitGuard }] : []),
        ],
      },
      undefined,
      configure,
    ));
  }
  afterEach(() => app?.close());

  const get = (path: string, headers: Record<string, string> = {}): Promise<Response> =>
    fetch(url + path, { headers });
  const post = (path: string, body: object): Promise<Response> =>
    fetch(url + path, {
      method: 'POST',
      body: JSON.stringify(body),
      headers: { 'content-type': 'application/json' },
    });
  const statuses = async (count: number, call: () => Promise<Response>): Promise<number[]> => {
    const result: number[] = [];
    for (let i = 0; i < count; i++) result.push((await call()).status);
    return result;
  };
  const wrong = (path = '/login', email = 'ann@example.org'): Promise<Response> =>
    post(path, { email, password: 'wrong' });
  const right = (path = '/login', email = 'ann@example.org'): Promise<Response> =>
    post(path, { email, password: 'correct' });

  describe('a denial', () => {
    beforeEach(() => start());

    it('is a 429 with a body that says how long, and the time to wait', async () => {
      expect(await statuses(2, () => get('/two'))).toEqual([200, 200]);
      const response = await get('/two');
      expect(response.status).toBe(429);
      expect(response.headers.get('retry-after')).toEqual(upTo(10));
      expect(await response.json()).toEqual({
        statusCode: 429,
        code: 'RateLimited',
        message: tryAgainUpTo(10),
        context: { retryAfter: upTo(10), retryAtMs: expect.any(Number) as unknown },
      });
    });

    it.each([
      ['a limit without a block', '/two', 10],
      ['a tier', '/tiered', 30],
    ])('lets in who sleeps exactly Retry-After, and nobody earlier: %s', async (_, path, secs) => {
      await statuses(2, () => get(path));
      clock.advance(1);
      const retryAfter = Number((await get(path)).headers.get('retry-after'));
      expect(retryAfter).toBe(secs);
      clock.advance(seconds(retryAfter) - 2);
      expect((await get(path)).status).toBe(429);
      clock.advance(2);
      expect((await get(path)).status).toBe(200);
    });

    it('lets in who sleeps exactly Retry-After after a block by hand', async () => {
      await get('/named');
      const limiter = app.get(AbuseLimiterService);
      await limiter.block(JSON.stringify([['ip', '127.0.0.1']]), 'named', 1_500);
      const response = await get('/named');
      expect([response.status, response.headers.get('retry-after')]).toEqual([429, '2']);
      clock.advance(seconds(2));
      expect((await get('/named')).status).toBe(200);
    });

    it('says nothing of what is left, unless it is told to', async () => {
      expect([...(await get('/two')).headers.keys()].filter((name) => /ratelimit/i.test(name))).toEqual([]);
    });
  });

  describe('keys', () => {
    beforeEach(() => start());

    it('are the route’s template, not its path, with HEAD as GET', async () => {
      expect((await get('/items/1')).status).toBe(200);
      expect((await fetch(`${url}/items/2`, { method: 'HEAD' })).status).toBe(200);
      expect((await get('/items/3')).status).toBe(429);
    });

    it('are apart for controllers of one name in two modules', async () => {
      expect(await statuses(3, () => get('/left'))).toEqual([200, 200, 429]);
      expect(await statuses(3, () => get('/right'))).toEqual([200, 200, 429]);
    });

    it('are one for routes that name one policy', async () => {
      expect(await statuses(2, () => get('/named'))).toEqual([200, 200]);
      expect(await statuses(2, () => get('/named-too'))).toEqual([200, 429]);
    });

    it.each(['/user-above', '/user-below'])(
      'know the user, wherever the guard stands that finds it out: %s',
      async (path) => {
        expect(await statuses(3, () => get(path, { 'x-user': 'ann' }))).toEqual([200, 200, 429]);
        expect(await statuses(3, () => get(path, { 'x-user': 'bob' }))).toEqual([200, 200, 429]);
      },
    );

    it('fall back to the address when a value is missing, or not one', async () => {
      expect(await statuses(3, () => get('/stacked', { 'x-api-key': 'a' }))).toEqual([200, 200, 429]);
      expect(await statuses(3, () => get('/stacked', { 'x-api-key': 'b' }))).toEqual([200, 200, 429]);
      // The address has one of its five left: those that were denied by their key did not spend it.
      expect(await statuses(2, () => get('/stacked'))).toEqual([200, 429]);
    });

    it('take limits and keys from injected providers', async () => {
      expect(await statuses(5, () => get('/tenant', { 'x-tenant': 'acme', 'x-plan': 'pro' }))).toEqual([
        200, 200, 200, 200, 429,
      ]);
      expect(await statuses(2, () => get('/tenant', { 'x-tenant': 'small' }))).toEqual([200, 429]);
    });

    it('count a call for as much as it costs', async () => {
      expect(await statuses(2, () => get('/rows?rows=5'))).toEqual([200, 200]);
      expect((await get('/rows')).status).toBe(429);
    });

    it('tell the client nothing of a function of a cost that gave nothing', async () => {
      const response = await get('/costless');
      expect([response.status, await response.json()]).toMatchObject([
        500,
        { message: 'The limiter could not decide.' },
      ]);
    });
  });

  describe('limits of class and method', () => {
    beforeEach(() => start());

    it('add up, and what one denies does not spend the other', async () => {
      expect(await statuses(5, () => get('/class/both'))).toEqual([200, 200, 429, 429, 429]);
      expect(await statuses(2, () => get('/class/plain'))).toEqual([200, 429]);
    });

    it('do not add up with `override`', async () => {
      expect(await statuses(5, () => get('/class/override'))).toEqual([200, 200, 200, 200, 429]);
    });
  });

  describe('a policy that counts failures', () => {
    beforeEach(() => start());

    it('answers 429 to the failure that reaches the threshold, with Retry-After', async () => {
      expect(await statuses(4, wrong)).toEqual([401, 401, 401, 401]);
      const fifth = await wrong();
      expect([fifth.status, fifth.headers.get('retry-after')]).toEqual([429, '60']);
      expect(await fifth.json()).toMatchObject({ code: 'TooManyAttempts', context: { retryAfter: 60 } });
      expect((await right()).status).toBe(429);
      clock.advance(minutes(1));
      expect((await right()).status).toBe(200);
    });

    it('does not count successes, and forgets the failures before them', async () => {
      expect(await statuses(20, right)).toEqual(Array(20).fill(200));
      expect(await statuses(4, wrong)).toEqual([401, 401, 401, 401]);
      expect((await right()).status).toBe(200);
      expect(await statuses(5, wrong)).toEqual([401, 401, 401, 401, 429]);
    });

    it('counts one account, however it is spelled', async () => {
      const spellings = ['ann@example.org', ' ANN@example.org', 'Ann@Example.org ', 'ann@EXAMPLE.org'];
      for (const email of spellings) expect((await wrong('/login', email)).status).toBe(401);
      expect((await wrong('/login', 'aNN@example.org')).status).toBe(429);
      expect((await wrong('/login', 'bob@example.org')).status).toBe(401);
    });

    it('lets no parallel guess slip past, and tells nobody more than five results', async () => {
      const results = await Promise.all(Array.from({ length: 40 }, () => wrong()));
      const seen = results.map(({ status }) => status);
      expect(seen.filter((status) => status === 401).length).toBeLessThanOrEqual(4);
      expect(seen.every((status) => status === 401 || status === 429)).toBe(true);
    });

    it('locks nobody out for parallel correct logins', async () => {
      await Promise.all(Array.from({ length: 40 }, () => right()));
      expect((await right()).status).toBe(200);
    });

    it('counts failures of a guard, whatever the order of the decorators', async () => {
      const path = '/login-by-guard';
      expect(await statuses(5, () => wrong(path))).toEqual([401, 401, 401, 401, 401]);
      expect((await right(path)).status).toBe(429);
    });

    it('counts what `isFailure` says, and hides no error of the server behind a 429', async () => {
      expect(await statuses(7, () => wrong('/login-by-error'))).toEqual([500, 500, 500, 500, 500, 429, 429]);
    });

    it('counts a status that was set by hand', async () => {
      expect(await statuses(5, () => wrong('/login-by-status'))).toEqual([403, 403, 403, 403, 429]);
    });
  });

  describe('a global guard', () => {
    const options: SyncGuardOptions = {
      limits: { ...LIMITS, default: { limit: 4, windowMs: minutes(1) } },
      limit: { allow: ['/probe/*'] },
    };

    it('applies `default` to every route, once, also where a decorator binds its own', async () => {
      await start(options, { global: true });
      expect(await statuses(2, () => get('/free'))).toEqual([200, 200]);
      expect(await statuses(3, () => get('/two'))).toEqual([200, 200, 429]);
      expect((await get('/free')).status).toBe(429);
    });

    it('counts a call once, however often it is bound', async () => {
      await start(options, { global: true });
      expect(await statuses(5, () => get('/bound-twice'))).toEqual([200, 200, 200, 200, 429]);
    });

    it('leaves alone what is skipped or allowed', async () => {
      await start(options, { global: true });
      expect(await statuses(5, () => get('/free'))).toEqual([200, 200, 200, 200, 429]);
      expect(await statuses(10, () => get('/health'))).toEqual(Array(10).fill(200));
      expect(await statuses(10, () => get('/probe/ready?x=1'))).toEqual(Array(10).fill(200));
      expect(await statuses(4, () => get('/skip-default'))).toEqual([200, 200, 200, 429]);
      expect((await get('/class/override')).status).toBe(200);
    });

    it('leaves alone what `skipIf` says', async () => {
      const skipIf = (context: ExecutionContext): boolean =>
        context.switchToHttp().getRequest<{ headers: Record<string, string> }>().headers['x-internal'] ===
        'yes';
      await start({ ...options, limit: { skipIf } }, { global: true });
      expect(await statuses(8, () => get('/free', { 'x-internal': 'yes' }))).toEqual(Array(8).fill(200));
      expect(await statuses(5, () => get('/free'))).toEqual([200, 200, 200, 200, 429]);
    });
  });

  describe('a fixed window', () => {
    const bulk = (response: Response): (string | null | undefined)[] => [
      response.headers.get('ratelimit-policy')?.split(', ')[0],
      response.headers.get('ratelimit')?.split(', ')[0],
      response.headers.get('retry-after'),
    ];

    it('tells what is left of it, denies until it ends, and lets in who waits exactly that long', async () => {
      await start({ limit: { headers: 'draft-10' } });
      const policy = '"GET /bulk";q=3;w=10';
      expect(bulk(await get('/bulk'))).toEqual([policy, '"GET /bulk";r=2;t=10', null]);
      clock.advance(seconds(4));
      expect(await statuses(2, () => get('/bulk'))).toEqual([200, 200]);
      const denied = await get('/bulk');
      expect(denied.status).toBe(429);
      expect(bulk(denied)).toEqual([policy, upTo(6, (left) => `"GET /bulk";r=0;t=${left}`), upTo(6)]);
      expect(await denied.json()).toMatchObject({ code: 'RateLimited', context: { retryAfter: upTo(6) } });
      clock.advance(seconds(6));
      const next = await get('/bulk');
      expect(bulk(next)).toEqual([policy, '"GET /bulk";r=2;t=10', null]);
      // The call that the window denied was not counted in the log beside it.
      expect(next.headers.get('ratelimit')).toContain('"log";r=5;');
    });

    it('takes a limit and costs of tens of thousands, which come with the request', async () => {
      await start();
      const get30k = (): Promise<Response> => get('/bulk-rows?rows=30000');
      expect(await statuses(2, get30k)).toEqual([200, 429]);
      expect(await statuses(2, () => get('/bulk-rows?rows=10000'))).toEqual([200, 200]);
      clock.advance(minutes(1));
      expect((await get30k()).status).toBe(200);
    });
  });

  describe('headers', () => {
    it('of the IETF draft and legacy, on answers that are allowed and denied', async () => {
      await start({ limit: { headers: ['draft-10', 'legacy'] } });
      const first = await get('/tiered');
      expect(Object.fromEntries(first.headers)).toMatchObject({
        'ratelimit-policy': '"tiered";q=2;w=10',
        ratelimit: '"tiered";r=1;t=10',
        'x-ratelimit-limit': '2',
        'x-ratelimit-remaining': '1',
        'x-ratelimit-reset': '10',
      });
      await get('/tiered');
      const denied = await get('/tiered');
      expect(Object.fromEntries(denied.headers)).toMatchObject({
        'retry-after': '30',
        ratelimit: '"tiered";r=0;t=30',
        'x-ratelimit-remaining': '0',
        'x-ratelimit-reset': '30',
      });
    });

    it('speak of every limit of a route', async () => {
      await start({ limit: { headers: 'draft-10' } });
      const { headers } = await get('/stacked');
      expect(headers.get('ratelimit-policy')).toBe('"GET /stacked";q=2;w=10, "GET /stacked#2";q=5;w=60');
      expect(headers.get('ratelimit')).toBe('"GET /stacked";r=1;t=10, "GET /stacked#2";r=4;t=60');
    });

    it('leave CORS intact, also on a 429', async () => {
      await start(
        {},
        {
          configure: (created) =>
            created.enableCors({ origin: 'https://app.example', exposedHeaders: ['Retry-After'] }),
        },
      );
      await statuses(2, () => get('/two'));
      const response = await get('/two', { origin: 'https://app.example' });
      expect(response.status).toBe(429);
      expect(response.headers.get('access-control-allow-origin')).toBe('https://app.example');
      expect(response.headers.get('access-control-expose-headers')).toBe('Retry-After');
    });
  });

  describe('versions and prefixes', () => {
    it('are part of what an unnamed policy counts by', async () => {
      await start(
        {},
        {
          configure: (created) => {
            created.setGlobalPrefix('api');
            created.enableVersioning({ type: VersioningType.URI, defaultVersion: '1' });
          },
        },
      );
      expect(await statuses(3, () => get('/api/v1/two'))).toEqual([200, 200, 429]);
      const keys = await workerRedis().client().keys('*attempts*');
      expect(keys).toHaveLength(1);
    });
  });

  describe('without Redis', () => {
    it('is 503 with Retry-After where the policy is closed, and not 429', async () => {
      await start({
        redis: 'redis://127.0.0.1:1',
        commandTimeoutMs: 100,
        limits: { named: { ...LIMITS.named, onError: 'closed' } },
        limit: { commandTimeoutMs: 50 },
      });
      const response = await get('/named');
      expect([response.status, response.headers.get('retry-after')]).toEqual([503, '1']);
      expect(await response.json()).toMatchObject({ statusCode: 503, code: 'ServiceUnavailable' });
      expect((await get('/two')).status).toBe(200);
    });

    it('needs none: the memory backend does the same', async () => {
      await start({ redis: undefined });
      expect(await statuses(3, () => get('/two'))).toEqual([200, 200, 429]);
      expect(await statuses(5, wrong)).toEqual([401, 401, 401, 401, 429]);
    });
  });

  it('is an HttpException for filters of the app, also without ours', async () => {
    await start({ http: false });
    await statuses(2, () => get('/two'));
    expect((await get('/two')).status).toBe(429);
  });

  it('warns once when clients come through a proxy that the app does not trust', async () => {
    const warnings: unknown[] = [];
    const spy = jest
      .spyOn(Logger.prototype, 'warn')
      .mockImplementation((message) => void warnings.push(message));
    await start();
    await get('/two', { 'x-forwarded-for': '203.0.113.7' });
    await get('/two', { 'x-forwarded-for': '203.0.113.7' });
    spy.mockRestore();
    expect(warnings.filter((message) => /X-Forwarded-For/.test(String(message)))).toHaveLength(1);
  });
});

describe.each(['express', 'fastify'] as const)('the README’s example on %s', (adapter) => {
  @Controller()
  class AppController {
    @Post('login')
    @HttpCode(200)
    @RateLimit('login')
    login(@Body() { email, password }: { email: string; password: string }): object {
      if (password !== 'correct') throw new UnauthorizedException();
      return { welcome: email };
    }

    @Get('search')
    @RateLimit({ limit: 5, windowMs: seconds(10) })
    search(): [] {
      return [];
    }

    @Get('health')
    @SkipRateLimit()
    health(): object {
      return { status: 'ok' };
    }
  }

  it('does what it says', async () => {
    const { app, url } = await listen(adapter, {
      imports: [SyncGuardModule.forRoot({ limits: { default: { limit: 100, windowMs: seconds(10) } } })],
      controllers: [AppController],
      providers: [{ provide: APP_GUARD, useClass: RateLimitGuard }],
    });
    const get = (path: string): Promise<Response> => fetch(url + path);
    const login = (email: string, password: string): Promise<Response> =>
      fetch(`${url}/login`, {
        method: 'POST',
        headers: { 'content-type': 'application/json' },
        body: JSON.stringify({ email, password }),
      });
    const statuses = async (count: number, call: () => Promise<Response>): Promise<string> => {
      const seen: number[] = [];
      for (let i = 0; i < count; i++) seen.push((await call()).status);
      return seen.join(' ');
    };

    expect(await statuses(5, () => login('ann@example.org', 'no'))).toBe('401 401 401 401 429');
    const denied = await login('ann@example.org', 'correct');
    expect(denied.headers.get('retry-after')).toEqual(upTo(60));
    expect(await denied.json()).toEqual({
      statusCode: 429,
      code: 'TooManyAttempts',
      message: tryAgainUpTo(60),
      context: { retryAfter: upTo(60), retryAtMs: expect.any(Number) as unknown },
    });
    expect(await statuses(3, () => login('bob@example.org', 'correct'))).toBe('200 200 200');
    expect(await statuses(6, () => get('/search'))).toBe('200 200 200 200 200 429');
    expect(await statuses(200, () => get('/health'))).toMatch(/^(200 )*200$/);
    await app.close();
  });
});

describe('a request that a handler hands on to the next one', () => {
  @Controller('files')
  class Files {
    @RateLimit({ ...TWO, limit: 100, name: 'any' })
    @Get('*path')
    any(@Next() next: () => void): void {
      next();
    }

    @RateLimit({ ...TWO, name: 'secret' })
    @Get('secret')
    secret(): string {
      return 'secret';
    }
  }

  it('is limited by both, and by the global guard once', async () => {
    const { app, url } = await listen('express', {
      imports: [SyncGuardModule.forRoot({ limits: { default: { limit: 4, windowMs: minutes(1) } } })],
      controllers: [Files],
      providers: [{ provide: APP_GUARD, useClass: RateLimitGuard }],
    });
    try {
      const messages: unknown[] = [];
      for (let i = 0; i < 5; i++) {
        const response = await fetch(`${url}/files/secret`);
        messages.push([response.status, Number(response.headers.get('retry-after'))]);
      }
      expect(messages).toEqual([
        [200, 0],
        [200, 0],
        [429, 10],
        [429, 10],
        [429, 60],
      ]);
    } finally {
      await app.close();
    }
  });
});

describe('calls of a context that SyncGuard does not know', () => {
  it('pass, with one warning for each type', async () => {
    const module = await Test.createTestingModule({
      imports: [SyncGuardModule.forRoot({ limits: { default: TWO } })],
      providers: [RateLimitGuard],
    }).compile();
    const warnings: unknown[] = [];
    const spy = jest
      .spyOn(Logger.prototype, 'warn')
      .mockImplementation((message) => void warnings.push(message));
    const guard = module.get(RateLimitGuard);
    const contextOf = (type: string): ExecutionContext => {
      const context = new ExecutionContextHost([]);
      context.setType(type);
      return context;
    };
    for (const type of ['necord', 'telegraf', 'necord', 'telegraf'])
      expect(await guard.canActivate(contextOf(type))).toBe(true);
    spy.mockRestore();
    expect(warnings.map(String)).toEqual([
      expect.stringContaining("of type 'necord'"),
      expect.stringContaining("of type 'telegraf'"),
    ]);
    await module.close();
  });
});

describe('at boot', () => {
  const boot = async (
    controller: new () => object,
    options: SyncGuardOptions = {},
    providers: never[] = [],
  ): Promise<string> => {
    const module = await Test.createTestingModule({
      imports: [SyncGuardModule.forRoot(options)],
      controllers: [controller],
      providers,
    })
      .compile()
      .catch((error: Error) => error.message);
    if (typeof module === 'string') return module;
    return module.init().then(
      () => module.close().then(() => 'booted'),
      (error: Error) => error.message,
    );
  };

  it('refuses a name that is not there, in either decorator', async () => {
    @Controller()
    class Misspelt {
      @RateLimit('logn')
      @Get()
      get(): void {}
    }
    @SkipRateLimit('defualt')
    @Controller()
    class MisspeltSkip {}
    expect(await boot(Misspelt)).toMatch(/@RateLimit\('logn'\) names a policy that does not exist.*login/);
    expect(await boot(MisspeltSkip)).toMatch(/@SkipRateLimit\('defualt'\) names a policy/);
  });

  it('refuses a malformed policy where it stands', () => {
    expect(() => RateLimit({ limit: 0, windowMs: 1 })).toThrow(
      /@RateLimit\(\)\.limit must be an integer from 1/,
    );
    expect(() => RateLimit([])).toThrow(/must have 1 to 8 policies/);
  });

  it('refuses a provider that is not there', async () => {
    @Controller()
    class Missing {
      @RateLimit({ ...TWO, keyBy: TenantKey })
      @Get()
      get(): void {}
    }
    expect(await boot(Missing)).toMatch(/TenantKey/);
  });

  it('refuses a decorator without the module', async () => {
    @Controller()
    class Alone {
      @RateLimit(TWO)
      @Get()
      get(): void {}
    }
    await expect(Test.createTestingModule({ controllers: [Alone] }).compile()).rejects.toThrow(
      /SyncGuardModule\.forRoot\(\)/,
    );
  });

  it('knows the presets without a word in the options', async () => {
    @RateLimit('login')
    @RateLimit('api')
    @Controller()
    class Presets {}
    expect(await boot(Presets)).toBe('booted');
  });
});
