import 'reflect-metadata';
import { setImmediate as nextTurn, setTimeout as sleep } from 'node:timers/promises';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import type { DynamicModule } from '@nestjs/common';
import { Test, type TestingModule } from '@nestjs/testing';
import type { Redis } from 'ioredis';
import {
  AbuseLimiterService,
  BudgetService,
  CounterService,
  LockService,
  SecretService,
  SyncGuardModule,
} from 'nestjs-syncguard';
import { FakeClock, SyncGuardTestingModule } from 'nestjs-syncguard/testing';
import { eventually } from '../support/eventually.js';
import { type RedisServer, startRedisServer } from '../support/redis-server.js';

/** Of each feature; `OPERATIONS=100000` for a quick look. */
const OPERATIONS = Number(process.env.OPERATIONS ?? 1_000_000);
const AT_ONCE = 50;
const STEPS = 10;
/** What is kept is kept for so long. */
const KEPT_MS = 1_000;
/** After so long nothing is: the keys of a budget outlive what is in them by an hour. */
const ALL_OVER_MS = 2 * 3_600_000;
/** Whatever is left of an operation, if something is, takes more. */
const LEAK_BYTES = 20;
/** A counter with the name of its lock. */
const FENCE_BYTES = 200;

setFlagsFromString('--expose-gc');
const collect = runInNewContext('gc') as () => void;

function heapBytes(): number {
  collect();
  return process.memoryUsage().heapUsed;
}

type Operation = (i: number) => Promise<unknown>;

interface Services {
  readonly locks: LockService;
  readonly limiter: AbuseLimiterService;
  readonly counters: CounterService;
  readonly budgets: BudgetService;
  readonly secrets: SecretService;
}

/** Each with a key of its own every time. */
const features: Record<string, (services: Services) => Operation> = {
  locks:
    ({ locks }) =>
    async (i) => {
      const lock = await locks.acquire({ key: `order:${i}`, ttlMs: KEPT_MS });
      if (lock.ok && i % 2) await lock.release();
    },
  limits: ({ limiter }) => {
    const policies = [
      { name: 'log', limit: 5, windowMs: KEPT_MS },
      { name: 'window', limit: 5, windowMs: KEPT_MS, algorithm: 'fixed-window' as const },
      { name: 'block', limit: 1, windowMs: KEPT_MS, blockMs: KEPT_MS },
    ];
    return async (i) => {
      const policy = policies[i % policies.length] as (typeof policies)[number];
      for (let n = 0; n < 2; n++) await limiter.check(`user:${i}`, policy);
    };
  },
  counters:
    ({ counters }) =>
    (i) =>
      counters.increment(`count:${i}`, { max: 5, windowMs: KEPT_MS, id: `call:${i}` }),
  'budgets of one root':
    ({ budgets }) =>
    async (i) => {
      const hold = await budgets.reserve({
        root: 'tenant',
        scopes: [`user:${i}`],
        amount: 5,
        ttlMs: KEPT_MS,
      });
      if (hold.ok && i % 2) await budgets.finalize(hold, 3);
    },
  'budgets of many roots':
    ({ budgets }) =>
    async (i) => {
      const hold = await budgets.reserve({ root: `tenant:${i}`, scopes: ['org'], amount: 5, ttlMs: KEPT_MS });
      if (hold.ok && i % 2) await budgets.finalize(hold, 3);
    },
  secrets:
    ({ secrets }) =>
    async (i) => {
      const { id } = await secrets.create({ payload: `secret ${i}`, views: 2, ttlMs: KEPT_MS });
      await secrets.view(id);
      if (i % 2) await secrets.view(id);
    },
};

const period = { windowMs: KEPT_MS };
const options = {
  commandTimeoutMs: 10_000,
  limit: { commandTimeoutMs: 10_000 },
  budget: {
    limits: ['user', 'org'].map((scope) => ({ scope, period, limit: 100 })),
    retentionMs: KEPT_MS,
    reaper: { everyMs: KEPT_MS },
  },
  secret: { tombstoneMs: 0 },
};

async function boot(imported: DynamicModule): Promise<TestingModule> {
  const module = await Test.createTestingModule({ imports: [imported] }).compile();
  return module.init();
}

function operationOf(name: string, module: TestingModule): Operation {
  return (features[name] as (typeof features)[string])({
    locks: module.get(LockService),
    limiter: module.get(AbuseLimiterService),
    counters: module.get(CounterService),
    budgets: module.get(BudgetService),
    secrets: module.get(SecretService),
  });
}

async function runMany(operation: Operation, from: number, to: number): Promise<void> {
  let next = from;
  const worker = async (): Promise<void> => {
    while (next < to) {
      await operation(next++);
      if (next % AT_ONCE === 0) await nextTurn(); // Memory answers at once: timers have a turn as well.
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, worker));
}

/** A measure after each step of the work, when all that it made is over. */
async function measured(operation: Operation, measure: (done: number) => Promise<number>): Promise<number[]> {
  const measures: number[] = [];
  for (let done = 0; done < OPERATIONS;) {
    await runMany(operation, done, (done += OPERATIONS / STEPS));
    measures.push(await measure(done));
  }
  return measures;
}

/** From the middle on: by then all that has a bound is full. */
function expectNoGrowth(what: string, bytes: readonly number[], kept = 0): void {
  const grown = (bytes.at(-1) ?? 0) - (bytes[STEPS / 2 - 1] ?? 0);
  const operations = OPERATIONS / 2;
  const list = bytes.map((each) => (each / 2 ** 20).toFixed(1)).join(', ');
  console.log(`${what}: ${list} MB; ${(grown / operations).toFixed(1)} bytes an operation`);
  expect(grown).toBeLessThan((LEAK_BYTES + kept) * operations);
}

const names = Object.keys(features);

describe(`${OPERATIONS} operations with a key each`, () => {
  it.each(names)(
    '%s in memory: the heap does not grow with them',
    async (name) => {
      const clock = new FakeClock();
      const module = await boot(SyncGuardTestingModule.forRoot({ ...options, clock }));
      const heap = await measured(operationOf(name, module), async () => {
        clock.advance(ALL_OVER_MS);
        await sleep(2 * KEPT_MS); // In which timers see that it is over.
        return heapBytes();
      });
      expectNoGrowth(`${name} in memory, heap`, heap);
      await module.close();
    },
    1_200_000,
  );

  describe('on Redis', () => {
    let server: RedisServer;
    let client: Redis;
    beforeEach(async () => {
      server = await startRedisServer();
      client = server.client();
    });
    afterEach(() => server.stop());

    const usedBytes = async (): Promise<number> =>
      Number(/used_memory:(\d+)/.exec(await client.info('memory'))?.[1]);

    it.each(names)(
      '%s: neither the heap nor Redis grows with them, but for one fence counter a lock key',
      async (name) => {
        const module = await boot(SyncGuardModule.forRoot({ ...options, redis: server.url }));
        const used: number[] = [];
        const heap = await measured(operationOf(name, module), async (done) => {
          server.clock.advance(ALL_OVER_MS);
          // Of budgets that nobody uses any more the process forgets the roots, and the server its list of them.
          await eventually(async () => expect(await client.dbsize()).toBe(name === 'locks' ? done : 0), {
            timeoutMs: 60_000,
            intervalMs: 100,
          });
          used.push(await usedBytes());
          return heapBytes();
        });
        expectNoGrowth(`${name} on Redis, heap`, heap);
        expectNoGrowth(`${name} on Redis, server`, used, name === 'locks' ? FENCE_BYTES : 0);
        await module.close();
      },
      1_200_000,
    );
  });
});
