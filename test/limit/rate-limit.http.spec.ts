import 'reflect-metadata';
import {
  Controller,
  type ExecutionContext,
  Get,
  Injectable,
  type INestApplication,
  Logger,
  Module,
  Next,
  UseGuards,
} from '@nestjs/common';
import { APP_GUARD } from '@nestjs/core';
import { ExecutionContextHost } from '@nestjs/core/helpers/execution-context-host.js';
import { Test } from '@nestjs/testing';
import {
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

const TWO = { limit: 2, windowMs: seconds(10) };

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

@Controller()
class Routes {
  @RateLimit(TWO)
  @Get('two')
  two(): void {}

  @RateLimit({ name: 'tiered', temp: { windowMs: seconds(10), limit: 2, blockMs: seconds(30) } })
  @Get('tiered')
  tiered(): void {}

  @RateLimit({ ...TWO, keyBy: 'headers.x-api-key' })
  @RateLimit({ limit: 5, windowMs: minutes(1) })
  @Get('stacked')
  stacked(): void {}

  @RateLimit('named')
  @Get('named')
  named(): void {}

  @RateLimit('named')
  @Get('named-too')
  namedToo(): void {}

  @RateLimit({ limit: TenantPlan, windowMs: minutes(1), keyBy: TenantKey })
  @Get('tenant')
  tenant(): void {}

  @RateLimit({ limit: 3, windowMs: seconds(10), algorithm: 'fixed-window' })
  @RateLimit({ name: 'log', limit: 9, windowMs: minutes(1) })
  @Get('bulk')
  bulk(): void {}

  @Get('free')
  free(): void {}

  @SkipRateLimit()
  @Get('health')
  health(): void {}

  @Get('probe/ready')
  ready(): void {}

  @SkipRateLimit('default')
  @RateLimit('named')
  @Get('skip-default')
  skipDefault(): void {}
}

@RateLimit({ name: 'class', limit: 3, windowMs: minutes(1) })
@Controller('class')
class ClassRoutes {
  @Get('plain')
  plain(): void {}

  @RateLimit({ name: 'method', limit: 2, windowMs: minutes(1) })
  @Get('both')
  both(): void {}

  @RateLimit({ name: 'instead', limit: 4, windowMs: minutes(1) }, { override: true })
  @Get('override')
  override(): void {}
}

@UseGuards(RateLimitGuard)
@Controller()
class BoundTwice {
  @UseGuards(RateLimitGuard, RateLimitGuard)
  @Get('bound-twice')
  get(): void {}
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
  const statuses = async (count: number, call: () => Promise<Response>): Promise<number[]> => {
    const result: number[] = [];
    for (let i = 0; i < count; i++) result.push((await call()).status);
    return result;
  };

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

    it('says nothing of what is left, unless it is told to', async () => {
      expect([...(await get('/two')).headers.keys()].filter((name) => /ratelimit/i.test(name))).toEqual([]);
    });
  });

  describe('keys', () => {
    beforeEach(() => start());

    it('are apart for controllers of one name in two modules', async () => {
      expect(await statuses(3, () => get('/left'))).toEqual([200, 200, 429]);
      expect(await statuses(3, () => get('/right'))).toEqual([200, 200, 429]);
    });

    it('are one for routes that name one policy', async () => {
      expect(await statuses(2, () => get('/named'))).toEqual([200, 200]);
      expect(await statuses(2, () => get('/named-too'))).toEqual([200, 429]);
    });

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
    secret(): void {}
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
});
