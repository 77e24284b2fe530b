import 'reflect-metadata';
import { Controller, Get, type INestApplication, Logger, UseFilters } from '@nestjs/common';
import {
  days,
  LockError,
  RateLimit,
  SyncGuardExceptionFilter,
  SyncGuardModule,
  type SyncGuardOptions,
  TooManyAttemptsError,
} from 'nestjs-syncguard';
import { listen } from '../support/adapters.js';

Logger.overrideLogger(['error', 'warn']);

const MONTH = { limit: 1, windowMs: days(30) };
const DAY_SECS = 86_400;

@Controller()
class Routes {
  @RateLimit(MONTH)
  @Get('limited')
  limited(): string {
    return 'ok';
  }

  @Get('locked')
  locked(): never {
    throw new LockError({
      code: 'AcquisitionTimeout',
      message: 'Somebody else holds it.',
      context: { retryAfter: 30 * DAY_SECS },
    });
  }

  @UseFilters(SyncGuardExceptionFilter)
  @Get('by-hand')
  byHand(): never {
    throw new TooManyAttemptsError({
      ...{ allowed: false, scope: 'manual', reason: 'manual', shortCount: 0, longCount: 0 },
      retryAfterSecs: 30 * DAY_SECS,
      retryAfterMs: days(30),
    });
  }
}

describe.each(['express', 'fastify'] as const)('Retry-After, on %s', (adapter) => {
  let app: INestApplication | undefined;
  afterEach(async () => {
    await app?.close();
    app = undefined;
  });

  async function denied(
    path: string,
    http?: SyncGuardOptions['http'],
  ): Promise<{ header: number; context: Record<string, number> }> {
    const started = await listen(adapter, {
      imports: [SyncGuardModule.forRoot(http === undefined ? {} : { http })],
      controllers: [Routes],
    });
    app = started.app;
    await fetch(`${started.url}/${path}`);
    const response = await fetch(`${started.url}/${path}`);
    const { context } = (await response.json()) as { context: Record<string, number> };
    return { header: Number(response.headers.get('retry-after')), context };
  }

  it.each(['limited', 'locked', 'by-hand'])(
    'is a day at most, and the truth stands beside it: %s',
    async (path) => {
      const { header, context } = await denied(path);
      expect(header).toBe(DAY_SECS);
      expect(context.retryAfter).toBe(DAY_SECS);
      const left = (context.retryAtMs as number) - Date.now();
      expect(left).toBeGreaterThan(days(30) - 60_000);
      expect(left).toBeLessThanOrEqual(days(30) + 1_000);
    },
  );

  it.each(['limited', 'locked', 'by-hand'])('is what http.maxRetryAfterMs says: %s', async (path) => {
    const { header, context } = await denied(path, { maxRetryAfterMs: 90_500 });
    expect([header, context.retryAfter]).toEqual([90, 90]);
  });

  it('is capped also where the app has its own filter', async () => {
    const { header, context } = await denied('limited', false);
    expect([header, context.retryAfter]).toEqual([DAY_SECS, DAY_SECS]);
  });
});

it('http takes no other bound', () => {
  for (const http of [{ maxRetryAfterMs: 0 }, { maxRetryAfterMs: 2 ** 31 }, { maxRetryAfter: 1 }, 'yes'])
    expect(() => SyncGuardModule.forRoot({ http: http as never })).toThrow(/http/);
});
