import { mkdtempSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import {
  type ArgumentsHost,
  Catch,
  Controller,
  type ExceptionFilter,
  Get,
  HttpException,
  type INestApplication,
  Inject,
  Logger,
  Next,
  Req,
} from '@nestjs/common';
import { APP_FILTER, APP_GUARD, HttpAdapterHost, ModuleRef } from '@nestjs/core';
import type { NestExpressApplication } from '@nestjs/platform-express';
import {
  hours,
  Limited,
  type LimitedDecision,
  limitedOn,
  minutes,
  presets,
  rateLimit,
  RateLimit,
  RateLimitGuard,
  seconds,
  SyncGuardModule,
  type SyncGuardOptions,
} from 'nestjs-syncguard';
import { listen } from '../support/adapters.js';
import { closeApp } from '../support/close-app.js';
import { eventually } from '../support/eventually.js';
import { freshRedis } from '../support/redis.js';

// `app.use(rateLimit(app))`: limits before any route is known.

Logger.overrideLogger(['error']);

@Controller()
class Routes {
  @Get('known')
  known() {
    return 'ok';
  }

  @Get('left')
  left(@Limited() limited: LimitedDecision | undefined, @Req() request: object) {
    return [limited?.remaining, limitedOn(request)?.remaining];
  }

  @Get('strict')
  @RateLimit({ name: 'strict', limit: 1, windowMs: minutes(1) })
  strict() {
    return 'ok';
  }
}

const DEFAULT = { name: 'all', limit: 3, windowMs: seconds(10) };

let app: INestApplication;
let url: string;
afterEach(() => closeApp(app));

async function start(
  adapter: 'express' | 'fastify',
  options: SyncGuardOptions,
  prepare: (app: INestApplication) => unknown = (created) => created.use(rateLimit(created)),
  providers: object[] = [],
): Promise<void> {
  ({ app, url } = await listen(
    adapter,
    {
      imports: [SyncGuardModule.forRoot(options)],
      controllers: [Routes],
      providers: [{ provide: APP_GUARD, useClass: RateLimitGuard }, ...(providers as [])],
    },
    undefined,
    prepare,
  ));
}

const statuses = async (
  path: string,
  count: number,
  headers: Record<string, string> = {},
): Promise<number[]> => {
  const all: number[] = [];
  while (all.length < count) all.push((await fetch(`${url}/${path}`, { headers })).status);
  return all;
};

describe.each(['express', 'fastify'] as const)('on %s', (adapter) => {
  it('limits unknown paths, and the guard does not count the same call again', async () => {
    await start(adapter, { redis: (await freshRedis()).url, limits: { default: DEFAULT } });
    expect(await statuses('nowhere', 1)).toEqual([404]);
    expect(await statuses('known', 3)).toEqual([200, 200, 429]);
    const denied = await fetch(`${url}/nowhere/else`);
    expect(denied.status).toBe(429);
    expect(Number(denied.headers.get('retry-after'))).toBeGreaterThan(0);
    expect(denied.headers.get('cache-control')).toBe('no-store');
    expect(await denied.json()).toMatchObject({
      statusCode: 429,
      code: 'RateLimited',
      context: { retryAfter: expect.any(Number) as number },
    });
  });

  it('leaves the limits of a route to the guard, and counts under a name of its own', async () => {
    await start(
      adapter,
      { limits: { default: DEFAULT, edge: { limit: 5, windowMs: minutes(1) } } },
      (created) => {
        created.use(rateLimit(created, 'edge'));
        created.use(rateLimit(created));
        created.use(rateLimit(created, 'edge')); // A second one of a name counts again.
      },
    );
    expect(await statuses('strict', 2)).toEqual([200, 429]);
    expect(await statuses('known', 1)).toEqual([429]); // the fifth and the sixth of `edge`
  });

  it('applies `allow`, `skipIf`, headers and a list of policies', async () => {
    await start(adapter, {
      limits: {
        default: [DEFAULT, { name: 'by-key', limit: 1, windowMs: minutes(1), keyBy: 'headers.x-key' }],
      },
      limit: {
        allow: ['/known'],
        headers: 'draft-10',
        skipIf: (context) => 'x-skip' in context.switchToHttp().getRequest<{ headers: object }>().headers,
      },
    });
    expect(await statuses('known', 5)).toEqual([200, 200, 200, 200, 200]);
    expect(await statuses('nowhere', 5, { 'x-skip': 'yes' })).toEqual([404, 404, 404, 404, 404]);
    const first = await fetch(`${url}/nowhere`, { headers: { 'x-key': 'a' } });
    expect(first.headers.get('ratelimit')).toMatch(/^"all";r=2;t=\d+, "by-key";r=0;t=\d+$/);
    expect(await statuses('nowhere', 1, { 'x-key': 'a' })).toEqual([429]);
    expect(await statuses('nowhere', 1, { 'x-key': 'b' })).toEqual([404]);
  });

  it('is told to the handler, and in the headers beside the limits of the route', async () => {
    await start(adapter, { limits: { default: DEFAULT }, limit: { headers: 'draft-10' } });
    expect(await (await fetch(`${url}/left`)).json()).toEqual([2, 2]);
    const { headers } = await fetch(`${url}/strict`);
    expect(headers.get('ratelimit')).toMatch(/^"all";r=1;t=\d+, "strict";r=0;t=\d+$/);
  });

  it('counts once though it is used twice, and tells that', async () => {
    await start(adapter, { limits: { default: DEFAULT } }, (created) => {
      created.use(rateLimit(created));
      created.use(rateLimit(created));
    });
    expect(await (await fetch(`${url}/left`)).json()).toEqual([2, 2]);
  });

  it('counts failures by the status that leaves', async () => {
    await start(adapter, {
      limits: {
        default: {
          name: 'probes',
          limit: 3,
          windowMs: minutes(1),
          count: 'failure',
          isFailure: (_error, { statusCode }) => statusCode === 404,
        },
      },
    });
    expect(await statuses('known', 5)).toEqual([200, 200, 200, 200, 200]);
    expect(await statuses('nowhere', 4)).toEqual([404, 404, 404, 429]);
    expect(await statuses('known', 1)).toEqual([429]);
  });

  it('is answered by a filter of the app', async () => {
    @Catch(HttpException)
    class Teapot implements ExceptionFilter {
      constructor(private readonly host: HttpAdapterHost) {}
      catch(error: HttpException, host: ArgumentsHost): void {
        this.host.httpAdapter.reply(host.switchToHttp().getResponse(), `own ${error.getStatus()}`, 418);
      }
    }
    await start(adapter, { limits: { default: { ...DEFAULT, limit: 1 } } }, undefined, [
      { provide: APP_FILTER, useClass: Teapot },
    ]);
    await statuses('known', 1);
    const denied = await fetch(`${url}/known`);
    expect([denied.status, await denied.text()]).toEqual([418, 'own 429']);
  });

  it.each<[string, SyncGuardOptions['limits'], RegExp]>([
    ['body.email', { default: { ...DEFAULT, keyBy: 'body.email' } }, /counts by 'body\.email'/],
    ['params.id', { default: { ...DEFAULT, keyBy: ['ip', 'params.id'] } }, /counts by 'params\.id'/],
    ['the route', { default: { ...DEFAULT, keyBy: 'route' } }, /counts by 'route'/],
    ['the user', { default: { ...DEFAULT, keyBy: 'user' } }, /counts by 'user'/],
    ['a user id', { default: { ...DEFAULT, keyBy: 'user.id' } }, /counts by 'user\.id'/],
    ['ask', { default: { ...DEFAULT, ask: 'after' } }, /is asked after the guards/],
    [
      'judgedBy',
      { default: { ...DEFAULT, count: 'failure', judgedBy: 'guards' } },
      /is judged by the guards/,
    ],
    ['a preset', { default: presets.login }, /counts by 'body\.email'|counts by 'body/],
    ['no policy', {}, /RATE_LIMIT_UNKNOWN_POLICY/],
  ])('refuses %s', async (_what, limits, message) => {
    await start('express', { limits: { default: DEFAULT } }, () => undefined);
    const other = await listen(adapter, { imports: [SyncGuardModule.forRoot({ limits })] });
    try {
      expect(() => rateLimit(other.app)).toThrow(message);
    } finally {
      await closeApp(other.app);
    }
  });
});

it('tells the app of what the next middleware throws, and leaves no rejection behind', async () => {
  await start('express', { limits: { default: DEFAULT } }, () => undefined);
  const told: unknown[] = [];
  const fault = new Error('of the next one');
  const request = { headers: {}, url: '/', socket: { remoteAddress: '203.0.113.7' } };
  rateLimit(app)(request, { setHeader: () => undefined }, (error) => {
    if (error === undefined) throw fault;
    told.push(error);
  });
  await eventually(() => expect(told).toEqual([fault]), { timeoutMs: 5_000 });
});

it('is made of what a module has injected, too', async () => {
  class Holder {
    constructor(@Inject(ModuleRef) readonly moduleRef: ModuleRef) {}
  }
  const use = (created: INestApplication): unknown => created.use(rateLimit(created.get(Holder).moduleRef));
  await start('express', { limits: { default: DEFAULT } }, use, [Holder]);
  expect(await statuses('nowhere', 4)).toEqual([404, 404, 404, 429]);
});

it('says that the module is missing', async () => {
  ({ app, url } = await listen('express', {}));
  expect(() => rateLimit(app)).toThrow(/is SyncGuardModule\.forRoot\(\) imported\?/);
});

it('an app that another one mounts has a `default` of its own', async () => {
  const inner = await listen('express', {
    imports: [SyncGuardModule.forRoot({ limits: { default: { ...DEFAULT, limit: 1 } } })],
    controllers: [Routes],
    providers: [{ provide: APP_GUARD, useClass: RateLimitGuard }],
  });
  try {
    await start('express', { limits: { default: DEFAULT } }, (created) => {
      created.use(rateLimit(created));
      created.use('/inner', inner.app.getHttpAdapter().getInstance() as () => void);
    });
    expect(await statuses('inner/known', 2)).toEqual([200, 429]);
  } finally {
    await closeApp(inner.app);
  }
});

it('a handler that passes the request on has asked all of `default`, also what is asked after the guards', async () => {
  @Controller()
  class Two {
    @Get('two')
    one(@Next() next: () => void) {
      next();
    }

    @Get('two')
    two(@Req() request: object) {
      return { left: limitedOn(request)?.remaining };
    }
  }
  const limits = { default: { ...DEFAULT, keyBy: 'user' } } satisfies SyncGuardOptions['limits'];
  ({ app, url } = await listen('express', {
    imports: [SyncGuardModule.forRoot({ limits })],
    controllers: [Two],
    providers: [{ provide: APP_GUARD, useClass: RateLimitGuard }],
  }));
  expect(await (await fetch(`${url}/two`)).json()).toEqual({ left: 2 });
});

it('limits static files of Express', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'static-'));
  writeFileSync(join(folder, 'file.txt'), 'file');
  await start('express', { limits: { default: { ...DEFAULT, windowMs: hours(1) } } }, (created) => {
    created.use(rateLimit(created));
    (created as NestExpressApplication).useStaticAssets(folder);
  });
  expect(await statuses('file.txt', 4)).toEqual([200, 200, 200, 429]);
});
