import 'reflect-metadata';
import {
  type CanActivate,
  Controller,
  type ExecutionContext,
  Get,
  Header,
  HttpCode,
  type INestApplication,
  Logger,
  Module,
  Param,
  type Type,
  UnauthorizedException,
  UseGuards,
  VersioningType,
} from '@nestjs/common';
import { APP_GUARD, RouterModule } from '@nestjs/core';
import { FastifyAdapter } from '@nestjs/platform-fastify';
import { Test } from '@nestjs/testing';
import {
  AbuseLimiterService,
  type LimitPolicy,
  minutes,
  presets,
  RateLimit,
  RateLimitGuard,
  SyncGuardModule,
  type SyncGuardOptions,
} from 'nestjs-syncguard';
import { type HttpApp, listen } from '../support/adapters.js';
import { eventually } from '../support/eventually.js';

const MANY = { limit: 100, windowMs: minutes(1) };
const FAILURES = { keyBy: 'ip', count: 'failure', limit: 5, windowMs: minutes(1) } satisfies LimitPolicy;
const globally = { provide: APP_GUARD, useClass: RateLimitGuard };

let judged = 0;
beforeEach(() => (judged = 0));

/** Refuses all keys but one. */
class KeyGuard implements CanActivate {
  canActivate(context: ExecutionContext): boolean {
    judged++;
    const { headers } = context.switchToHttp().getRequest<{ headers: Record<string, string> }>();
    if (headers['x-api-key'] !== 'right') throw new UnauthorizedException();
    return true;
  }
}
const keysGlobally = { provide: APP_GUARD, useClass: KeyGuard };

describe.each(['express', 'fastify'] as const)('the boot, on %s', (adapter) => {
  let running: HttpApp | undefined;
  let warnings: string[] = [];
  beforeEach(() => {
    warnings = [];
    jest.spyOn(Logger.prototype, 'warn').mockImplementation((message) => void warnings.push(String(message)));
    jest.spyOn(Logger.prototype, 'error').mockImplementation(() => {});
  });
  afterEach(async () => {
    await running?.app.close();
    running = undefined;
    jest.restoreAllMocks();
  });

  interface Parts {
    readonly controllers?: Type[];
    readonly imports?: NonNullable<Parameters<typeof listen>[1]['imports']>;
    readonly providers?: readonly object[];
    readonly prepare?: (app: INestApplication) => unknown;
  }
  /** Boots an app, and returns the warnings of this issue, and of limits in general. */
  const boot = async (options: SyncGuardOptions, parts: Parts = {}): Promise<string[]> => {
    warnings = [];
    await running?.app.close();
    running = undefined;
    const { controllers = [], imports = [], providers = [], prepare = () => {} } = parts;
    const metadata = {
      imports: [SyncGuardModule.forRoot(options), ...imports],
      controllers,
      providers: providers as [],
    };
    running = await listen(adapter, metadata, undefined, (app) => void prepare(app));
    return warnings.filter((line) => line.startsWith('RATE_LIMIT_'));
  };
  const get = (path: string, headers: Record<string, string> = {}): Promise<Response> =>
    fetch(`${running?.url}${path}`, { headers });
  const statuses = async (
    times: number,
    path: string,
    headers?: Record<string, string>,
  ): Promise<number[]> => {
    const seen: number[] = [];
    for (let i = 0; i < times; i++) seen.push((await get(path, headers)).status);
    return seen;
  };

  @Controller()
  class Plain {
    @Get('x')
    x(): void {}
  }

  describe('RATE_LIMIT_GUARD_NOT_INJECTED', () => {
    const options = { limits: { default: MANY } };

    it('refuses a guard that was made by new, wherever it is bound, and says what to write', async () => {
      @Controller()
      @UseGuards(new RateLimitGuard())
      class OnClass extends Plain {}
      @Controller()
      class OnMethod {
        @UseGuards(new RateLimitGuard())
        @Get('y')
        y(): void {}
      }
      class Derived extends RateLimitGuard {}
      const faulty: Parts[] = [
        { controllers: [Plain], prepare: (app) => app.useGlobalGuards(new RateLimitGuard()) },
        { controllers: [Plain], prepare: (app) => app.useGlobalGuards(new Derived()) },
        { controllers: [Plain], providers: [{ provide: APP_GUARD, useValue: new RateLimitGuard() }] },
        { controllers: [OnClass] },
        { controllers: [OnMethod] },
      ];
      for (const parts of faulty)
        await expect(boot(options, parts)).rejects.toMatchObject({
          code: 'RATE_LIMIT_GUARD_NOT_INJECTED',
          hint: expect.stringContaining(
            'providers: [{ provide: APP_GUARD, useClass: RateLimitGuard }]',
          ) as unknown,
        });
    });

    it('boots with the line, and with a guard that Nest has made', async () => {
      expect(await boot(options, { controllers: [Plain], providers: [globally] })).toEqual([]);
      expect(await statuses(1, '/x')).toEqual([200]);
      const prepare = (app: INestApplication) => app.useGlobalGuards(app.get(RateLimitGuard));
      expect(await boot(options, { controllers: [Plain], providers: [RateLimitGuard], prepare })).toEqual([]);
      expect(await statuses(1, '/x')).toEqual([200]);
    });
  });

  describe('RATE_LIMIT_GUARD_ORDER', () => {
    @Controller()
    class Failing {
      @RateLimit(FAILURES)
      @Get('failing')
      failing(): void {}
    }
    const ofDefault = { limits: { default: FAILURES } };

    it('warns of a global guard before the limits that count failures, and the mended app counts', async () => {
      const [warning, ...others] = await boot(ofDefault, {
        controllers: [Plain],
        providers: [keysGlobally, globally],
      });
      expect(warning).toMatch(/^RATE_LIMIT_GUARD_ORDER: KeyGuard runs before .* Plain\.x\./);
      expect(warning).toContain('{ provide: APP_GUARD, useClass: RateLimitGuard }');
      expect(warning).toContain('@UseGuards');
      expect(others).toEqual([]);
      expect(await statuses(20, '/x')).toEqual(Array(20).fill(401));

      judged = 0;
      const mended = { controllers: [Plain], providers: [globally, keysGlobally] };
      expect(await boot(ofDefault, mended)).toEqual([]);
      expect(new Set((await statuses(20, '/x')).slice(5))).toEqual(new Set([429]));
      expect(judged).toBe(5);
    });

    it('warns where @RateLimit counts them, and not where the guard is bound by @UseGuards', async () => {
      const [warning] = await boot({}, { controllers: [Failing], providers: [keysGlobally] });
      expect(warning).toMatch(/^RATE_LIMIT_GUARD_ORDER: .*Failing\.failing/);
      @Controller()
      @UseGuards(KeyGuard)
      class Guarded extends Failing {}
      expect(await boot({}, { controllers: [Guarded] })).toEqual([]);
      expect((await statuses(7, '/failing')).slice(5)).toEqual([429, 429]);
    });

    it('does not warn where the handler judges, of presets, or of limits that count all calls', async () => {
      @Controller()
      class Public {
        @RateLimit({ ...FAILURES, judgedBy: 'handler' })
        @Get('public')
        public(): void {}

        @RateLimit('login')
        @Get('login')
        login(): void {}

        @RateLimit(MANY)
        @Get('many')
        many(): void {}
      }
      expect(await boot({}, { controllers: [Public], providers: [keysGlobally] })).toEqual([]);
    });
  });

  describe('RATE_LIMIT_ALLOW', () => {
    @Controller(['health', 'healthz'])
    class Health {
      @RateLimit({ limit: 1, windowMs: minutes(1) })
      @Get(['', 'deep/:part'])
      health(@Param() _: unknown): void {}
    }
    const parts = { controllers: [Health] };
    const allowing = (...allow: string[]): SyncGuardOptions => ({ limit: { allow } });

    it('warns of a pattern that matches no route, and not of one that does', async () => {
      const [warning, ...others] = await boot(allowing('/helth', '/health'), parts);
      expect(warning).toMatch(/^RATE_LIMIT_ALLOW: The pattern '\/helth' of `limit.allow` matches no route/);
      expect(others).toEqual([]);
      expect(await statuses(3, '/health')).toEqual([200, 200, 200]);
      for (const pattern of [
        '/health/*',
        '/health/deep/me',
        '/healthz/',
        '/*',
        '/health/*path',
        '/health/{*path}',
      ])
        expect([pattern, await boot(allowing(pattern), parts)]).toEqual([pattern, []]);
      expect(await statuses(3, '/health/deep/me')).toEqual([200, 200, 200]);
      for (const pattern of [
        '/health/deep',
        '/health/deep/:part',
        '/health/deep/*/x',
        '/health/x',
        '/healthz/deep/me/*',
      ])
        expect([pattern, (await boot(allowing(pattern), parts)).length]).toEqual([pattern, 1]);
    });

    it('matches with and without the global prefix', async () => {
      for (const prefix of ['api', '/api', '/api/'])
        for (const pattern of ['/health', '/api/health', '/api/*']) {
          const prepare = (app: INestApplication) => app.setGlobalPrefix(prefix);
          expect([pattern, await boot(allowing(pattern), { ...parts, prepare })]).toEqual([pattern, []]);
          expect([pattern, await statuses(3, '/api/health?q=1')]).toEqual([pattern, [200, 200, 200]]);
        }
      const prepare = (app: INestApplication) => app.setGlobalPrefix('api', { exclude: ['health'] });
      expect(await boot(allowing('/health'), { ...parts, prepare })).toEqual([]);
      expect(await statuses(3, '/health')).toEqual([200, 200, 200]);
      expect(await statuses(2, '/api/healthz')).toEqual([200, 429]);
    });

    it('says the path of a route with a version, or of a module with a path', async () => {
      const prepare = (app: INestApplication) =>
        app.enableVersioning({ type: VersioningType.URI, defaultVersion: '1' });
      const [warning] = await boot(allowing('/health'), { ...parts, prepare });
      expect(warning).toContain("Did you mean `allow: ['/v1/health']`?");
      expect(await boot(allowing('/v1/health'), { ...parts, prepare })).toEqual([]);
      expect(await statuses(3, '/v1/health')).toEqual([200, 200, 200]);

      @Module(parts)
      class Inner {}
      const imports = [Inner, RouterModule.register([{ path: 'inner', module: Inner }])];
      expect((await boot(allowing('/health'), { imports }))[0]).toContain("['/inner/health']");
      expect(await boot(allowing('/inner/health'), { imports })).toEqual([]);
    });

    it('takes no function', () => {
      const limit = { allow: (() => true) as unknown as string[] };
      expect(() => SyncGuardModule.forRoot({ limit })).toThrow(
        /limit\.allow must be a list of paths.*skipIf/,
      );
    });
  });

  describe('RATE_LIMIT_TRUST_PROXY', () => {
    const bootTrusting = async (trust: unknown, options: SyncGuardOptions = {}): Promise<string[]> => {
      warnings = [];
      const module = await Test.createTestingModule({
        imports: [SyncGuardModule.forRoot({ limits: { default: MANY }, ...options })],
        controllers: [Plain],
        providers: [globally],
      }).compile();
      const app =
        adapter === 'fastify'
          ? module.createNestApplication(new FastifyAdapter({ trustProxy: trust as boolean }))
          : module.createNestApplication();
      if (adapter === 'express')
        (app.getHttpAdapter().getInstance() as { set(name: string, value: unknown): void }).set(
          'trust proxy',
          trust,
        );
      await app.init();
      await app.close();
      return warnings.filter((line) => line.startsWith('RATE_LIMIT_'));
    };

    it('warns of true, and of nothing else', async () => {
      const [warning, ...others] = await bootTrusting(true);
      expect(warning).toMatch(/^RATE_LIMIT_TRUST_PROXY: /);
      expect(warning).toContain(adapter === 'express' ? "app.set('trust proxy', 1)" : 'trustProxy: 1');
      expect(others).toEqual([]);
      for (const trust of [false, 1, '10.0.0.1', () => true])
        expect([trust, await bootTrusting(trust)]).toEqual([trust, []]);
    });

    it('does not warn where the address comes from elsewhere', async () => {
      expect(await bootTrusting(true, { limit: { address: 'headers.cf-connecting-ip' } })).toEqual([]);
    });
  });

  describe('RATE_LIMIT_SHORT_WINDOW', () => {
    it('warns once of windows below 100 ms, in decorators, options and calls', async () => {
      @Controller()
      class Short {
        @RateLimit({ limit: 5, windowMs: 60 })
        @Get('short')
        short(): void {}
      }
      const [warning, ...others] = await boot(
        { limits: { mine: { temp: { windowMs: 10, threshold: 5, blockMs: 600 } } } },
        { controllers: [Short] },
      );
      expect(warning).toMatch(
        /^RATE_LIMIT_SHORT_WINDOW: `windowMs` is in ms\..* @RateLimit \(60\), mine \(10\)\./,
      );
      expect(warning).toContain('`seconds(n)`');
      expect(others).toEqual([]);

      @Controller()
      class Long {
        @RateLimit({ limit: 5, windowMs: 100 })
        @RateLimit({ limit: 5, windowMs: () => 60 })
        @Get('long')
        long(): void {}
      }
      expect(await boot({}, { controllers: [Long] })).toEqual([]);
      const limiter = running?.app.get(AbuseLimiterService);
      for (let i = 0; i < 3; i++) await limiter?.check('ann', { name: `call${i}`, limit: 1, windowMs: 60 });
      expect(warnings.filter((line) => line.startsWith('RATE_LIMIT_SHORT_WINDOW'))).toHaveLength(1);
    });
  });

  describe('judgedBy', () => {
    it('gives the room back when the guards have let the call pass, and counts what they refuse', async () => {
      const waiting: (() => void)[] = [];
      @Controller()
      class Slow {
        @RateLimit({ ...FAILURES, judgedBy: 'guards' })
        @UseGuards(KeyGuard)
        @Get('slow')
        async slow(): Promise<void> {
          await new Promise<void>((resolve) => waiting.push(resolve));
          throw new UnauthorizedException();
        }
      }
      await boot({}, { controllers: [Slow] });
      const good: Promise<Response>[] = [];
      for (let i = 1; i <= 12; i++) {
        good.push(get('/slow', { 'x-api-key': 'right' }));
        await eventually(() => expect(waiting).toHaveLength(i));
      }
      for (const answer of waiting) answer();
      // What the handler answers does not count.
      expect((await Promise.all(good)).map(({ status }) => status)).toEqual(Array(12).fill(401));
      judged = 0;
      const wrong = await Promise.all(Array.from({ length: 20 }, () => get('/slow')));
      expect(wrong.filter(({ status }) => status === 401)).toHaveLength(5);
      expect(judged).toBe(5);
      expect(await statuses(2, '/slow', { 'x-api-key': 'right' })).toEqual([429, 429]);
    });

    it('does not boot where the guards cannot judge for the policy', () => {
      const of = (policy: object) => () => RateLimit(policy as LimitPolicy);
      expect(of({ ...MANY, judgedBy: 'guards' })).toThrow(/judgedBy needs `count: 'failure'`/);
      expect(of({ ...FAILURES, keyBy: 'user', judgedBy: 'guards' })).toThrow(/asked after the guards/);
      expect(of({ ...FAILURES, judgedBy: 'nobody' })).toThrow(/judgedBy must be "guards" or "handler"/);
      expect(presets.login[0]).toMatchObject({ judgedBy: 'handler' });
    });
  });

  describe('answers', () => {
    it('that deny are not stored, whatever the handler says', async () => {
      @Controller()
      class Cached {
        constructor(private readonly limiter: AbuseLimiterService) {}

        @RateLimit({ limit: 1, windowMs: minutes(1) })
        @Header('Cache-Control', 'public, max-age=60')
        @Get('before')
        before(): void {}

        @RateLimit({ count: 'failure', temp: { windowMs: minutes(1), threshold: 1, blockMs: minutes(1) } })
        @Header('Cache-Control', 'public, max-age=60')
        @Get('after')
        after(): never {
          throw new UnauthorizedException();
        }

        @Header('Cache-Control', 'public, max-age=60')
        @Get('inside')
        inside(): Promise<void> {
          return this.limiter.limiter('ann', { name: 'inside', limit: 1, windowMs: minutes(1) });
        }
      }
      await boot({}, { controllers: [Cached] });
      const seen = async (path: string): Promise<[number, string | null]> => {
        const { status, headers } = await get(path);
        return [status, headers.get('cache-control')];
      };
      for (const path of ['/before', '/inside']) {
        expect([path, await seen(path)]).toEqual([path, [200, 'public, max-age=60']]);
        expect([path, await seen(path)]).toEqual([path, [429, 'no-store']]);
      }
      expect(await seen('/after')).toEqual([429, 'no-store']);
    });

    it('have headers of the count that was made last', async () => {
      @Controller()
      class Login {
        @RateLimit({
          name: 'wrong',
          count: 'failure',
          temp: { windowMs: minutes(1), threshold: 3, blockMs: minutes(2) },
        })
        @HttpCode(200)
        @Get('wrong')
        wrong(): never {
          throw new UnauthorizedException();
        }
      }
      await boot({ limit: { headers: 'draft-10' } }, { controllers: [Login] });
      const seen: unknown[] = [];
      for (let i = 0; i < 3; i++) {
        const { status, headers } = await get('/wrong');
        seen.push([status, headers.get('ratelimit')]);
      }
      expect(seen).toEqual([
        [401, '"wrong";r=1;t=60'],
        [401, '"wrong";r=0;t=60'],
        [429, '"wrong";r=0;t=120'],
      ]);
    });
  });
});
