import 'reflect-metadata';
import {
  Body,
  type CallHandler,
  type CanActivate,
  Controller,
  type ExecutionContext,
  Get,
  type INestApplication,
  Injectable,
  Logger,
  type NestInterceptor,
  Post,
  Scope,
  Sse,
  type Type,
  UnauthorizedException,
  UseGuards,
  UseInterceptors,
} from '@nestjs/common';
import { APP_GUARD } from '@nestjs/core';
import { type LimitPolicy, RateLimit, RateLimitGuard, seconds, SyncGuardModule } from 'nestjs-syncguard';
import { mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type Observable, of } from 'rxjs';
import { eventually } from '../support/eventually.js';
import { freshRedis } from '../support/redis.js';
import { listen } from '../support/adapters.js';

Logger.overrideLogger(['error', 'warn']);

interface Request {
  headers: Record<string, string>;
  body?: { password?: string };
  user?: { id: string };
}
const requestOf = (context: ExecutionContext): Request => context.switchToHttp().getRequest<Request>();

/** How many guesses a guard has judged. */
let judged = 0;

@Injectable()
class PasswordGuard implements CanActivate {
  canActivate(context: ExecutionContext): boolean {
    judged++;
    const request = requestOf(context);
    if (request.headers['x-password'] !== 'correct') throw new UnauthorizedException();
    request.user = { id: request.headers['x-user'] ?? 'ann' };
    return true;
  }
}

@Injectable({ scope: Scope.REQUEST })
class ScopedPasswordGuard extends PasswordGuard {}

const keyBy = (context: ExecutionContext): string => requestOf(context).headers['x-tenant'] ?? 'tenant';
const LIMIT = { limit: 3, windowMs: seconds(60) };

const POLICIES: Record<string, LimitPolicy> = {
  'attempts by a function, before': { ...LIMIT, keyBy, ask: 'before' },
  'attempts at a cost by a function, before': { ...LIMIT, cost: () => 1, ask: 'before' },
  'failures by a function': { ...LIMIT, keyBy, count: 'failure' },
  'failures at a cost by a function': { ...LIMIT, cost: () => 1, count: 'failure' },
  'failures by address and user': { ...LIMIT, keyBy: ['ip', 'user'], count: 'failure' },
};

/** A fresh class for each policy: metadata stands on functions. */
const PLACES: Record<string, (policy: LimitPolicy) => { controller: Type; providers?: object[] }> = {
  'a guard above': (policy) => {
    @Controller()
    class Above {
      @UseGuards(PasswordGuard)
      @RateLimit(policy)
      @Post('guess')
      guess(): void {}
    }
    return { controller: Above };
  },
  'a guard below': (policy) => {
    @Controller()
    class Below {
      @RateLimit(policy)
      @UseGuards(PasswordGuard)
      @Post('guess')
      guess(): void {}
    }
    return { controller: Below };
  },
  'both on the class': (policy) => {
    @RateLimit(policy)
    @UseGuards(PasswordGuard)
    @Controller()
    class OnClass {
      @Post('guess')
      guess(): void {}
    }
    return { controller: OnClass };
  },
  'a limit on the class, a guard on the method': (policy) => {
    @RateLimit(policy)
    @Controller()
    class Mixed {
      @UseGuards(PasswordGuard)
      @Post('guess')
      guess(): void {}
    }
    return { controller: Mixed };
  },
  'both inherited': (policy) => {
    @UseGuards(PasswordGuard)
    class Base {
      @RateLimit(policy)
      @Post('guess')
      guess(): void {}
    }
    @Controller()
    class Inherits extends Base {}
    return { controller: Inherits };
  },
  'a request-scoped guard': (policy) => {
    @Controller({ scope: Scope.REQUEST })
    class Scoped {
      @RateLimit(policy)
      @UseGuards(ScopedPasswordGuard)
      @Post('guess')
      guess(): void {}
    }
    return { controller: Scoped, providers: [ScopedPasswordGuard] };
  },
  'a global guard after ours': (policy) => {
    @Controller()
    class UnderGlobal {
      @RateLimit(policy)
      @Post('guess')
      guess(): void {}
    }
    return {
      controller: UnderGlobal,
      providers: [
        { provide: APP_GUARD, useClass: RateLimitGuard },
        { provide: APP_GUARD, useClass: PasswordGuard },
      ],
    };
  },
};

const CELLS = (['express', 'fastify'] as const).flatMap((adapter) =>
  (['memory', 'redis'] as const).map((backend) => [adapter, backend] as const),
);

let app: INestApplication;
let url: string;
afterEach(() => app.close());

async function start(
  [adapter, backend]: readonly ['express' | 'fastify', 'memory' | 'redis'],
  controllers: Type[],
  options: Parameters<typeof SyncGuardModule.forRoot>[0] = {},
  providers: object[] = [],
  prepare?: (app: INestApplication) => void,
): Promise<void> {
  judged = 0;
  // What limits say is tested here, not their deadline, which a busy machine may miss.
  const redis = backend === 'redis' ? { redis: (await freshRedis()).url } : {};
  ({ app, url } = await listen(
    adapter,
    {
      imports: [
        SyncGuardModule.forRoot({
          ...redis,
          ...options,
          limit: { commandTimeoutMs: 10_000, ...options.limit },
        }),
      ],
      controllers,
      providers: providers as never[],
    },
    undefined,
    prepare,
  ));
}

const answer = (path: string, headers: Record<string, string> = {}): Promise<Response> =>
  fetch(url + path, { method: 'POST', headers });

const post = async (path: string, headers?: Record<string, string>): Promise<number> =>
  (await answer(path, headers)).status;

async function statuses(n: number, path: string, headers?: Record<string, string>): Promise<number[]> {
  const all: number[] = [];
  for (let i = 0; i < n; i++) all.push(await post(path, headers));
  return all;
}

describe.each(CELLS)('a guard that judges passwords, on %s and %s', (adapter, backend) => {
  describe.each(Object.keys(POLICIES))('%s', (policy) => {
    it.each(Object.keys(PLACES))('judges three guesses: %s', async (place) => {
      const { controller, providers } = (PLACES[place] as (typeof PLACES)[string])(
        POLICIES[policy] as LimitPolicy,
      );
      const limits = { default: { limit: 1_000, windowMs: seconds(60) } };
      await start([adapter, backend], [controller], { limits }, providers);
      // A failure counts when its answer was sent: the next request may be there first.
      const answers: number[] = [];
      for (let i = 0; i < 8; i++) {
        answers.push(await post('/guess'));
        await new Promise((resolve) => setImmediate(resolve));
      }
      expect(answers).toStrictEqual([401, 401, 401, 429, 429, 429, 429, 429]);
      expect(judged).toBe(3);
    });
  });

  it('judges three of thirty that come at once', async () => {
    const { controller } = (PLACES['a guard below'] as (typeof PLACES)[string])(
      POLICIES['failures by address and user'] as LimitPolicy,
    );
    await start([adapter, backend], [controller]);
    const answers = await Promise.all(Array.from({ length: 30 }, () => post('/guess')));
    expect(answers.filter((status) => status === 401)).toHaveLength(3);
    expect(judged).toBe(3);
  });

  it.each([
    ['', LIMIT],
    [', also under a window by a function', { ...LIMIT, windowMs: () => seconds(60) }],
  ])(
    'shows no count of the calls that a guard refuses: they stand in a bucket of their own%s',
    async (_, limit) => {
      const { controller } = (PLACES['a guard below'] as (typeof PLACES)[string])({
        ...limit,
        keyBy: ['ip', 'user'],
        count: 'failure',
      });
      await start([adapter, backend], [controller], { limit: { headers: 'draft-10' } });
      expect((await answer('/guess')).headers.has('ratelimit')).toBe(false);
      const passed = await answer('/guess', { 'x-password': 'correct' });
      expect(passed.headers.get('ratelimit')).toContain('r=3');
    },
  );

  it.each([
    ['', LIMIT],
    [' under a window by a function', { ...LIMIT, windowMs: () => seconds(60) }],
  ])('counts for the address nothing that a handler refuses%s', async (_, limit) => {
    @Controller()
    class Refuses {
      @RateLimit({ ...limit, keyBy: 'user', count: 'failure' })
      @UseGuards(PasswordGuard)
      @Post('refuse')
      refuse(): void {
        throw new UnauthorizedException();
      }
    }
    await start([adapter, backend], [Refuses]);
    const answers: number[] = [];
    for (let i = 0; i < 6; i++) {
      answers.push(await post('/refuse', { 'x-password': 'correct', 'x-user': `user${i}` }));
      await new Promise((resolve) => setImmediate(resolve));
    }
    expect(answers).toStrictEqual(Array(6).fill(401));
  });

  it('gives the room back once the guards are passed', async () => {
    const { controller } = (PLACES['a guard below'] as (typeof PLACES)[string])(
      POLICIES['failures by address and user'] as LimitPolicy,
    );
    await start([adapter, backend], [controller]);
    expect(await statuses(10, '/guess', { 'x-password': 'correct' })).toStrictEqual(Array(10).fill(201));
    expect(await statuses(2, '/guess')).toStrictEqual([401, 401]);
  });
});

describe.each(CELLS)('what is asked after the guards, on %s and %s', (adapter, backend) => {
  const start2 = (controller: Type, ...rest: unknown[]): Promise<void> =>
    start([adapter, backend], [controller], ...(rest as []));
  const byUser = { ...LIMIT, limit: 1, keyBy: 'user' } satisfies LimitPolicy;
  const as = (user: string): Record<string, string> => ({ 'x-password': 'correct', 'x-user': user });

  it('knows the user, whatever guards stand where', async () => {
    @Controller()
    class Routes {
      @UseGuards(PasswordGuard)
      @RateLimit(byUser)
      @Post('above')
      above(): void {}

      @RateLimit(byUser)
      @UseGuards(ScopedPasswordGuard)
      @Post('scoped')
      scoped(): void {}
    }
    await start2(Routes, {}, [ScopedPasswordGuard]);
    for (const path of ['/above', '/scoped'])
      expect([await post(path, as('ann')), await post(path, as('bob')), await post(path, as('ann'))]).toEqual(
        [201, 201, 429],
      );
  });

  it('is asked after global guards too, and so is `default`', async () => {
    @Controller()
    class Routes {
      @Post('plain')
      plain(): void {}
    }
    await start2(
      Routes,
      { limits: { default: byUser } },
      [{ provide: APP_GUARD, useClass: RateLimitGuard }],
      (made: INestApplication) => {
        made.useGlobalGuards(new PasswordGuard());
      },
    );
    expect([await post('/plain', as('ann')), await post('/plain', as('bob'))]).toEqual([201, 201]);
    expect(await post('/plain', as('ann'))).toBe(429);
  });

  it('two apps that share a class have each their own limits', async () => {
    @Controller()
    class Shared {
      @RateLimit('mine')
      @UseGuards(PasswordGuard)
      @Post('shared')
      shared(): void {}
    }
    await start2(Shared, { limits: { mine: { ...byUser, limit: 2 } } });
    const first = { app, url };
    await start2(Shared, { limits: { mine: { ...LIMIT, limit: 1 } } });
    expect(await statuses(3, '/shared', as('ann'))).toEqual([201, 429, 429]);
    await app.close();
    ({ app, url } = first);
    expect(await statuses(3, '/shared', as('ann'))).toEqual([201, 201, 429]);
    expect(await post('/shared', as('bob'))).toBe(201);
  });

  it('comes before interceptors: uploads leave no file, a cache does not answer', async () => {
    const folder = mkdtempSync(join(tmpdir(), 'syncguard-upload-'));
    let cached = 0;
    @Injectable()
    class Upload implements NestInterceptor {
      intercept(_context: ExecutionContext, next: CallHandler): Observable<unknown> {
        writeFileSync(join(folder, String(Math.random())), 'a file');
        return next.handle();
      }
    }
    @Injectable()
    class Cache implements NestInterceptor {
      intercept(): Observable<unknown> {
        cached++;
        return of({ cached: true });
      }
    }
    @Controller()
    class Routes {
      @UseInterceptors(Upload)
      @RateLimit(byUser)
      @UseGuards(PasswordGuard)
      @Post('upload')
      upload(): void {}

      @RateLimit(byUser)
      @UseInterceptors(Cache)
      @UseGuards(PasswordGuard)
      @Post('cached')
      cached(): void {}
    }
    await start2(Routes);
    expect(await statuses(3, '/upload', as('ann'))).toEqual([201, 429, 429]);
    expect(readdirSync(folder)).toHaveLength(1);
    rmSync(folder, { recursive: true });
    expect(await statuses(3, '/cached', as('ann'))).toEqual([201, 429, 429]);
    expect(cached).toBe(1);
  });

  it('denies a stream of events with a real 429, and leaves it its own 401', async () => {
    @Controller()
    class Streams {
      @RateLimit(byUser)
      @UseGuards(PasswordGuard)
      @Sse('events')
      events(): Observable<object> {
        return of({ data: 'one' });
      }

      @RateLimit({ ...LIMIT, count: 'failure', temp: undefined })
      @Sse('refused')
      refused(): Promise<Observable<object>> {
        return Promise.reject(new UnauthorizedException());
      }

      @RateLimit({ count: 'failure', temp: { windowMs: seconds(60), threshold: 2, blockMs: seconds(60) } })
      @Sse('blocked')
      blocked(): Observable<object> {
        throw new UnauthorizedException();
      }
    }
    await start2(Streams);
    const get = async (path: string): Promise<[number, string | null]> => {
      const response = await fetch(url + path, { headers: as('ann') });
      await response.text();
      return [response.status, response.headers.get('retry-after')];
    };
    expect([await get('/events'), await get('/events')]).toEqual([
      [200, null],
      [429, '60'],
    ]);
    expect([await get('/refused'), await get('/refused')]).toEqual([
      [401, null],
      [401, null],
    ]);
    expect([await get('/blocked'), await get('/blocked')]).toEqual([
      [401, null],
      [429, '60'],
    ]);
  });

  it('a stream of events gives its room back as soon as it runs', async () => {
    @Controller()
    class Streams {
      @RateLimit({ ...LIMIT, limit: 1, count: 'failure' })
      @Sse('events')
      events(): Observable<object> {
        return of({ data: 'one' });
      }
    }
    await start2(Streams);
    const open = await fetch(`${url}/events`);
    await eventually(async () => expect((await fetch(`${url}/events`)).status).toBe(200));
    await open.body?.cancel();
  });
});

describe('when a limit is asked', () => {
  const warnings = (): string[] =>
    (Logger.prototype.warn as jest.MockedFunction<(message: string) => void>).mock.calls.map(
      ([message]) => message,
    );

  beforeEach(() => {
    jest.spyOn(Logger.prototype, 'warn').mockImplementation(() => {});
  });
  afterEach(() => jest.restoreAllMocks());

  it('warns once of the routes where a function has moved it behind guards, unless `ask` says so', async () => {
    @Controller()
    class Routes {
      @RateLimit({ ...LIMIT, keyBy })
      @UseGuards(PasswordGuard)
      @Get('moved')
      moved(): void {}

      @RateLimit({ ...LIMIT, cost: () => 1 })
      @UseGuards(PasswordGuard)
      @Get('too')
      too(): void {}

      @RateLimit({ ...LIMIT, keyBy, ask: 'after' })
      @UseGuards(PasswordGuard)
      @Get('said')
      said(): void {}

      @RateLimit({ ...LIMIT, keyBy })
      @Get('unguarded')
      unguarded(@Body() _body: unknown): void {}
    }
    await start(['express', 'memory'], [Routes]);
    expect(warnings().filter((message) => message.includes('RATE_LIMIT_ASK'))).toEqual([
      expect.stringMatching(/RATE_LIMIT_ASK: .*a guard refuses: Routes\.moved, Routes\.too\. Set `ask/),
    ]);
  });

  it('refuses to count by a user who is not known yet', async () => {
    await start(['express', 'memory'], []);
    for (const who of ['user', ['ip', 'user'], 'user.tenantId'])
      expect(() =>
        SyncGuardModule.forRoot({ limits: { mine: { ...LIMIT, keyBy: who, ask: 'before' } } }),
      ).toThrow(/RATE_LIMIT_ASK: The policy limits\.mine counts by the user/);
  });
});
