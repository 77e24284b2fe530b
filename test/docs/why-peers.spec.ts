import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { Controller, Get, type INestApplication, Injectable } from '@nestjs/common';
import { APP_GUARD } from '@nestjs/core';
import { Test } from '@nestjs/testing';
import { SkipThrottle, Throttle, ThrottlerGuard, ThrottlerModule } from '@nestjs/throttler';
import { Redis } from 'ioredis';
import { MurLock, MurLockModule } from 'murlock';
import { BudgetService, LockService, SyncGuardModule } from 'nestjs-syncguard';
import { Mutex } from 'redis-semaphore';
import { listen } from '../support/adapters.js';
import { closeApp } from '../support/close-app.js';
import { eventually } from '../support/eventually.js';
import { freshRedis, workerRedis } from '../support/redis.js';
import { ROOT } from './sources.js';

beforeEach(freshRedis);

/** What a promise settles to once `end` was called. */
function gate(): { end: () => void; ended: Promise<void> } {
  let end = (): void => {};
  const ended = new Promise<void>((resolve) => (end = resolve));
  return { end, ended };
}

@Injectable()
class Jobs {
  running = 0;
  readonly gate = gate();

  @MurLock(200, 'key')
  async run(key: string): Promise<string> {
    this.running++;
    await this.gate.ended;
    return key;
  }
}

it('murlock: a second caller is in beside the first when the TTL is over, and the release of the first throws', async () => {
  const module = await Test.createTestingModule({
    imports: [
      MurLockModule.forRoot({
        redisOptions: { url: workerRedis().url },
        ...{ wait: 50, maxAttempts: 100, logLevel: 'none', blocking: true },
      }),
    ],
    providers: [Jobs],
  }).compile();
  await module.init();
  const jobs = module.get(Jobs);
  const first = jobs.run('7');
  await eventually(() => expect(jobs.running).toBe(1));
  const second = jobs.run('7');
  await eventually(() => expect(jobs.running).toBe(2));
  jobs.gate.end();
  const results = await Promise.allSettled([first, second]);
  expect(results.map(({ status }) => status)).toContain('rejected');
  await module.close();
});

/** How often others ask Redis for a lock while a caller of redis-semaphore asks 20 times. */
async function triesMeanwhile(redis: Redis): Promise<number> {
  const calls = async (): Promise<number> =>
    [...(await redis.info('commandstats')).matchAll(/cmdstat_(?:set|eval|evalsha):calls=(\d+)/g)].reduce(
      (sum, [, count]) => sum + Number(count),
      0,
    );
  await redis.set('mutex:measure', 'taken');
  const before = await calls();
  const measure = new Mutex(redis, 'measure', { retryInterval: 10, acquireAttemptsLimit: 20 });
  expect(await measure.tryAcquire()).toBe(false);
  return (await calls()) - before - 20;
}

it('redis-semaphore: a waiting caller goes on asking', async () => {
  const redis = new Redis(workerRedis().url);
  const other = new Redis(workerRedis().url);
  await redis.set('mutex:7', 'taken');
  const mutex = new Mutex(other, '7');
  const waiting = mutex.acquire();
  expect(await triesMeanwhile(redis)).toBeGreaterThan(5);
  await redis.del('mutex:7');
  await waiting;
  await mutex.release();
  other.disconnect();
  redis.disconnect();
});

it('SyncGuard: a waiting caller sends nothing', async () => {
  const redis = new Redis(workerRedis().url);
  const module = await Test.createTestingModule({
    imports: [SyncGuardModule.forRoot({ redis: workerRedis().url })],
  }).compile();
  await module.init();
  const locks = module.get(LockService);
  const held = await locks.acquire({ key: '7', ttlMs: 60_000 });
  if (!held.ok) throw new Error('The lock is not free.');
  const waiting = locks.lock(() => 'in', { key: '7', timeoutMs: 60_000 });
  await eventually(async () => expect(await redis.zcard('syncguard/queue:7')).toBe(1));
  // It looks once more when it has begun to listen.
  expect(await triesMeanwhile(redis)).toBeLessThan(3);
  await held.release();
  expect(await waiting).toBe('in');
  await module.close();
  redis.disconnect();
});

describe('@nestjs/throttler', () => {
  /** As decorators do that put a function of their own in the place of a method. */
  const Wrapped: MethodDecorator = (_target, _key, descriptor) => {
    const method = descriptor.value as unknown as () => unknown;
    descriptor.value = function (this: unknown) {
      return method.call(this);
    } as never;
  };

  @Controller('items')
  class Items {
    @Get('misspelt')
    @Throttle({ shrot: { limit: 1 } })
    misspelt(): string {
      return 'in';
    }

    @Get('lost')
    @Wrapped
    @Throttle({ short: { limit: 1 } })
    lost(): string {
      return 'in';
    }

    @Get('denied')
    @Throttle({ long: { limit: 1 } })
    denied(): string {
      return 'in';
    }

    @Get('skipped')
    @SkipThrottle()
    skipped(): string {
      return 'in';
    }
  }

  let app: INestApplication;
  let url: string;
  beforeEach(async () => {
    ({ app, url } = await listen('express', {
      imports: [
        ThrottlerModule.forRoot([
          { name: 'short', limit: 3, ttl: 60_000, blockDuration: 0 },
          { name: 'long', limit: 100, ttl: 120_000 },
        ]),
      ],
      controllers: [Items],
      providers: [{ provide: APP_GUARD, useClass: ThrottlerGuard }],
    }));
  });
  afterEach(() => closeApp(app));
  const statuses = async (path: string, count: number): Promise<number[]> => {
    const all: number[] = [];
    while (all.length < count) all.push((await fetch(`${url}/items/${path}`)).status);
    return all;
  };

  it.each(['misspelt', 'lost', 'skipped'])('a limit of 1 that is %s lets in 3', async (path) => {
    expect(await statuses(path, 4)).toEqual([200, 200, 200, 429]);
  });

  it('a call that one limit denies uses up the other', async () => {
    const left: (string | null)[] = [];
    for (let i = 0; i < 3; i++)
      left.push((await fetch(`${url}/items/denied`)).headers.get('x-ratelimit-remaining-short'));
    expect(left).toEqual(['2', '1', '0']);
    expect(await statuses('denied', 1)).toEqual([429]);
  });
});

it('a check and then an INCRBY lets two calls pass together, and a budget does not', async () => {
  const redis = new Redis(workerRedis().url);
  const spend = async (): Promise<void> => {
    const spent = Number((await redis.get('spent')) ?? 0);
    if (spent + 60 <= 100) await redis.incrby('spent', 60);
  };
  await Promise.all([spend(), spend()]);
  expect(await redis.get('spent')).toBe('120');
  redis.disconnect();

  const module = await Test.createTestingModule({
    imports: [
      SyncGuardModule.forRoot({
        redis: workerRedis().url,
        budget: { limits: [{ scope: 'org', period: { every: 'day' }, limit: 100 }] },
      }),
    ],
  }).compile();
  await module.init();
  const budgets = module.get(BudgetService);
  const holds = await Promise.all([1, 2].map(() => budgets.reserve({ scopes: ['org'], amount: 60 })));
  expect(holds.map(({ ok }) => ok).sort()).toEqual([false, true]);
  await module.close();
});

it.each([
  ['redlock', ['node-abort-controller']],
  ['murlock', ['@nestjs/common', '@nestjs/core', 'del-cli', 'redis', 'reflect-metadata', 'rxjs']],
  ['redis-semaphore', ['debug']],
])('%s depends on %j', (name, dependencies) => {
  const text = readFileSync(join(ROOT, `node_modules/${name}/package.json`), 'utf8');
  const found = (JSON.parse(text) as { dependencies: Record<string, string> }).dependencies;
  expect(Object.keys(found).sort()).toEqual(dependencies);
});
