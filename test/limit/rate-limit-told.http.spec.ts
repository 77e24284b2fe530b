import {
  type CallHandler,
  Controller,
  type ExecutionContext,
  Get,
  HttpCode,
  type INestApplication,
  Injectable,
  Logger,
  type NestInterceptor,
  Post,
  Req,
  UnauthorizedException,
  UseInterceptors,
} from '@nestjs/common';
import { APP_GUARD } from '@nestjs/core';
import {
  AbuseLimiterService,
  days,
  type DenialMessage,
  type DeniedDecision,
  Limited,
  type LimitedDecision,
  limitedOn,
  minutes,
  RateLimit,
  RateLimitGuard,
  seconds,
  SkipRateLimit,
  SyncGuardModule,
} from 'nestjs-syncguard';
import type { Observable } from 'rxjs';
import { listen } from '../support/adapters.js';
import { closeApp } from '../support/close-app.js';
import { freshRedis } from '../support/redis.js';

// What a handler and its client are told of a limit: `@Limited()`, `limitedOn` and `message`.

Logger.overrideLogger(['error']);

/** Sets a header from what the limits have decided. */
@Injectable()
class TriesHeader implements NestInterceptor {
  intercept(context: ExecutionContext, next: CallHandler): Observable<unknown> {
    const http = context.switchToHttp();
    const left = limitedOn(http.getRequest<object>())?.remaining;
    http.getResponse<{ header(name: string, value: string): void }>().header('x-tries', String(left));
    return next.handle();
  }
}

const TWO = { limit: 2, windowMs: minutes(1) };
const told: { message?: unknown } = {};
const nothing: unknown = undefined;

@Controller()
class Routes {
  @Get('one')
  @RateLimit({ ...TWO, name: 'one' })
  one(@Limited() limited: LimitedDecision) {
    return limited;
  }

  @Get('least')
  @RateLimit([
    { ...TWO, name: 'wide', limit: 50 },
    { name: 'narrow', temp: { windowMs: minutes(1), limit: 3, blockMs: minutes(1) } },
  ])
  @UseInterceptors(TriesHeader)
  least(@Limited() limited: LimitedDecision) {
    return limited;
  }

  @Get('none')
  @SkipRateLimit()
  none(@Limited() limited?: LimitedDecision, @Req() request?: object) {
    return { limited: limited ?? null, on: limitedOn(request as object) ?? null, odd: limitedOn({}) ?? null };
  }

  @Get('free')
  @RateLimit({ ...TWO, name: 'free', cost: () => 0 }, { override: true })
  free(@Limited() limited?: LimitedDecision) {
    return { limited: limited ?? null };
  }

  @Post('login')
  @HttpCode(200)
  @RateLimit({
    name: 'tries',
    count: 'failure',
    temp: { windowMs: minutes(1), limit: 3, blockMs: minutes(1) },
    message: 'The account is locked.',
  })
  login(@Limited() limited: LimitedDecision) {
    throw new UnauthorizedException(`${limited.remaining} left`);
  }

  @Get('text')
  @RateLimit({ limit: 1, windowMs: minutes(1), name: 'text', message: 'Slow down, please.' })
  text() {
    return 'ok';
  }

  @Get('told')
  @RateLimit({
    ...{ limit: 1, windowMs: minutes(1), name: 'told' },
    message: (decision: DeniedDecision, context: ExecutionContext) => {
      const { message } = told;
      return typeof message === 'function'
        ? (message as DenialMessage)(decision, context)
        : (message as string);
    },
  })
  told() {
    return 'ok';
  }
}

const limits = {
  default: { name: 'all', limit: 100, windowMs: seconds(10) },
  texts: { ...TWO, limit: 1, message: 'Later.' },
};

describe.each(['express', 'fastify'] as const)('on %s', (adapter) => {
  let app: INestApplication;
  let url: string;
  beforeEach(async () => {
    const redis = adapter === 'express' ? { redis: (await freshRedis()).url } : {};
    ({ app, url } = await listen(adapter, {
      imports: [SyncGuardModule.forRoot({ ...redis, limits })],
      controllers: [Routes],
      providers: [{ provide: APP_GUARD, useClass: RateLimitGuard }],
    }));
  });
  afterEach(() => closeApp(app));

  const ask = async (path: string, method = 'GET') => {
    const response = await fetch(`${url}/${path}`, { method });
    return {
      status: response.status,
      headers: response.headers,
      body: (await response.json().catch(() => undefined)) as Record<string, unknown> | undefined,
    };
  };

  it('a handler gets the decision that leaves least, and an interceptor finds it on the request', async () => {
    expect((await ask('one')).body).toEqual({
      ...{ allowed: true, policy: 'one', limit: 2, remaining: 1, shortCount: 1, longCount: 1 },
      resetMs: minutes(1),
    });
    expect((await ask('one')).body).toMatchObject({ policy: 'one', remaining: 0, shortCount: 2 });
    for (const remaining of [2, 1, 0]) {
      const { body, headers } = await ask('least');
      expect(body).toMatchObject({ policy: 'narrow', limit: 3, remaining });
      expect(headers.get('x-tries')).toBe(String(remaining));
    }
  });

  it('is undefined if nothing was counted', async () => {
    expect((await ask('none')).body).toEqual({ limited: null, on: null, odd: null });
    expect((await ask('free')).body).toEqual({ limited: null });
  });

  it('a login says how many tries are left, and has a text for the lockout', async () => {
    for (const left of [3, 2, 1]) expect((await ask('login', 'POST')).body?.message).toBe(`${left} left`);
    for (let i = 0; i < 2; i++) {
      const { status, body, headers } = await ask('login', 'POST');
      expect([status, body?.message, body?.code]).toEqual([429, 'The account is locked.', 'TooManyAttempts']);
      expect(Number(headers.get('retry-after'))).toBeGreaterThan(0);
    }
  });

  it('a client is told the text of the policy', async () => {
    await ask('text');
    expect((await ask('text')).body).toMatchObject({
      ...{ statusCode: 429, code: 'RateLimited', message: 'Slow down, please.' },
      context: { retryAfter: expect.any(Number) as number },
    });
    const limiter = app.get(AbuseLimiterService);
    await limiter.limiter('ann', 'texts');
    await expect(limiter.limiter('ann', 'texts')).rejects.toMatchObject({
      message: 'Later.',
      retryAfterSecs: 60,
    });
  });

  it('a function makes the text, or the whole body', async () => {
    await ask('told');
    const problem = { type: 'https://example.org/slow-down', title: 'Slow down', status: 429 };
    for (const message of [
      ({ retryAfterSecs }: DeniedDecision) => `In ${retryAfterSecs} s.`,
      ({ retryAfterSecs }: DeniedDecision) => Promise.resolve(`In ${retryAfterSecs} s.`),
    ]) {
      told.message = message;
      expect((await ask('told')).body).toMatchObject({
        statusCode: 429,
        message: expect.stringMatching(/^In \d+ s\.$/) as string,
      });
    }
    told.message = (_: DeniedDecision, context: ExecutionContext) => {
      context
        .switchToHttp()
        .getResponse<{ header(name: string, value: string): void }>()
        .header('content-type', 'application/problem+json');
      return problem;
    };
    // Nest 11 warns, on Express, of each type that it replaces.
    const warned = jest.spyOn(Logger.prototype, 'warn').mockImplementation(() => undefined);
    const { status, headers, body } = await ask('told');
    expect([status, body]).toEqual([429, problem]);
    expect(headers.get('content-type')).toMatch(/^application\/problem\+json(; charset=utf-8)?$/);
    expect(Number(headers.get('retry-after'))).toBeGreaterThan(0);
    expect(warned.mock.calls).toEqual([]);
    warned.mockRestore();
  });

  it('a function that does not answer keeps no client waiting for longer than a second', async () => {
    await ask('told');
    const warned = jest.spyOn(Logger.prototype, 'warn').mockImplementation(() => undefined);
    const late: ((error: Error) => void)[] = [];
    for (const message of [
      () => new Promise<string>((_resolve, reject) => late.push(reject)),
      // What can be awaited need not be a promise.
      () => ({ then: () => undefined }),
    ]) {
      told.message = message;
      const { status, headers, body } = await ask('told');
      expect([status, body]).toEqual([
        429,
        expect.objectContaining({
          code: 'RateLimited',
          message: expect.stringMatching(/^Too many/) as string,
        }),
      ]);
      expect(Number(headers.get('retry-after'))).toBeGreaterThan(0);
    }
    // Nobody waits for this any more.
    late[0]?.(new Error('no translation'));
    expect(warned.mock.calls).toEqual([
      [
        'RATE_LIMIT_MESSAGE_LATE: The `message` of the policy told has not answered within 1000 ms, so the client was told the text that it is told without one.',
      ],
    ]);
    warned.mockRestore();
  });

  it('a function that fails is logged, and the client gets the refusal that it gets without it', async () => {
    await ask('told');
    const logged = jest.spyOn(Logger.prototype, 'error').mockImplementation(() => undefined);
    const standard = { statusCode: 429, message: expect.stringMatching(/^Too many attempts\./) as string };
    for (const message of [
      () => {
        throw new Error('no translation');
      },
      () => Promise.reject(new Error('no translation')),
      // What is no Error fails as well.
      () => Promise.reject(nothing),
      undefined,
      () => 7,
      () => null,
    ]) {
      told.message = message;
      expect((await ask('told')).body).toMatchObject(standard);
    }
    expect(logged.mock.calls).toEqual([
      ['The `message` of the policy told failed.', expect.stringContaining('no translation')],
    ]);
    logged.mockRestore();
  });
});

it.each([
  ['', 'an empty string'],
  ['x'.repeat(1_001), 'x'],
  [7, '7 (number)'],
  [{}, 'object'],
])('a message that is no text and no function does not boot: %#', (message, shown) => {
  const limit = () => RateLimit({ limit: 1, windowMs: days(1), message: message as string });
  expect(limit).toThrow(
    /@RateLimit\(\)\.message must be a text of 1 to 1,000 characters or a function, got /,
  );
  expect(limit).toThrow(shown);
});
