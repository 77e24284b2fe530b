import { Controller, Get, Header, type INestApplication, Module } from '@nestjs/common';
import { APP_GUARD } from '@nestjs/core';
import {
  minutes,
  seconds,
  SkipThrottle,
  Throttle,
  ThrottlerGuard,
  ThrottlerModule,
  type ThrottlerModuleOptions,
} from '@nestjs/throttler';
import { AbuseLimiterService, SyncGuardModule } from 'nestjs-syncguard';
import { SyncGuardThrottlerStorage } from 'nestjs-syncguard/throttler';
import { listen } from '../support/adapters.js';
import { closeApp } from '../support/close-app.js';
import { freshRedis } from '../support/redis.js';

// What the guard of throttler does with its own storage, it does with ours: the same calls get the same answers.

@Controller('items')
class ItemsController {
  @Get()
  list() {
    return 'ok';
  }

  @Get('strict')
  @Throttle({ short: { limit: 1, ttl: seconds(20), blockDuration: seconds(40) } })
  strict() {
    return 'ok';
  }

  @Get('by-function')
  @Throttle({ short: { limit: () => 2, ttl: () => seconds(15), getTracker: () => 'everybody' } })
  byFunction() {
    return 'ok';
  }

  @Get('feed')
  @SkipThrottle({ short: true })
  feed() {
    return 'ok';
  }

  @Get('health')
  @SkipThrottle({ short: true, long: true })
  health() {
    return 'ok';
  }

  @Get('none')
  @Throttle({ short: { limit: 0 } })
  none() {
    return 'ok';
  }

  @Get('cached')
  @Header('x-app', 'yes')
  @Throttle({ short: { limit: Infinity }, long: { limit: Infinity } })
  cached() {
    return 'ok';
  }
}

@Controller('classes')
@Throttle({ short: { limit: 2 } })
@SkipThrottle({ long: true })
class ClassController {
  @Get('own')
  own() {
    return 'ok';
  }

  @Get('method')
  @Throttle({ short: { limit: 1 } })
  method() {
    return 'ok';
  }

  @Get('again')
  @SkipThrottle({ long: false })
  again() {
    return 'ok';
  }
}

const OPTIONS = {
  throttlers: [
    { name: 'short', limit: 3, ttl: seconds(10) },
    { name: 'long', limit: 5, ttl: minutes(1), blockDuration: minutes(2) },
  ],
  errorMessage: (_context: unknown, { totalHits, limit }: { totalHits: number; limit: number }) =>
    `call ${totalHits} of ${limit}`,
  ignoreUserAgents: [/^probe/],
  skipIf: (context: { switchToHttp(): { getRequest(): { headers: Record<string, unknown> } } }) =>
    context.switchToHttp().getRequest().headers['x-skip'] === 'yes',
} as unknown as Exclude<ThrottlerModuleOptions, unknown[]>;

const onOurs = (redis?: string) => [
  SyncGuardModule.forRoot(redis === undefined ? {} : { redis }),
  ThrottlerModule.forRootAsync({
    inject: [AbuseLimiterService],
    useFactory: (limiter: AbuseLimiterService) => ({
      ...OPTIONS,
      storage: new SyncGuardThrottlerStorage(limiter),
    }),
  }),
];

const STORAGES = {
  'its own': () => [ThrottlerModule.forRoot(OPTIONS)],
  'ours in memory': () => onOurs(),
  'ours on Redis': async () => onOurs((await freshRedis()).url),
};

let app: INestApplication;
afterEach(() => closeApp(app));

async function answersOn(
  adapter: 'express' | 'fastify',
  storage: keyof typeof STORAGES,
): Promise<Record<string, unknown>> {
  @Module({
    imports: await STORAGES[storage](),
    controllers: [ItemsController, ClassController],
    providers: [{ provide: APP_GUARD, useClass: ThrottlerGuard }],
  })
  class AppModule {}
  let url: string;
  ({ app, url } = await listen(adapter, { imports: [AppModule] }));
  const answers: Record<string, unknown> = {};
  const ask = async (path: string, count: number, headers: Record<string, string> = {}): Promise<void> => {
    const all: unknown[] = [];
    for (let i = 0; i < count; i++) {
      const response = await fetch(`${url}/${path}`, { headers });
      const limits = [...response.headers].filter(([name]) => /^(x-ratelimit|retry-after)/.test(name));
      all.push([response.status, await response.text(), Object.fromEntries(limits)]);
    }
    answers[`${path} ${JSON.stringify(headers)}`] = all;
  };
  await ask('items', 5);
  await ask('items', 2, { 'x-skip': 'yes' });
  await ask('items', 2, { 'user-agent': 'probe/1' });
  for (const path of ['strict', 'by-function', 'none']) await ask(`items/${path}`, 4);
  for (const path of ['feed', 'health', 'cached']) await ask(`items/${path}`, 7);
  for (const path of ['own', 'method', 'again']) await ask(`classes/${path}`, 4);
  return answers;
}

it.each(['express', 'fastify'] as const)('answers as with its own storage, on %s', async (adapter) => {
  const own = await answersOn(adapter, 'its own');
  expect(JSON.stringify(own)).toContain('"retry-after-short":"40"');
  expect(JSON.stringify(own)).toContain('call 4 of 3');
  for (const storage of ['ours in memory', 'ours on Redis'] as const) {
    await closeApp(app);
    expect(await answersOn(adapter, storage)).toEqual(own);
  }
});
