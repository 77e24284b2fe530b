import 'reflect-metadata';
import { setTimeout as sleep } from 'node:timers/promises';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import type { Redis } from 'ioredis';
import { SyncGuardModule } from 'nestjs-syncguard';
import { FakeClock, SyncGuardTestingModule } from 'nestjs-syncguard/testing';
import {
  ALL_OVER_MS,
  boot,
  distinctKeyFeatures,
  distinctKeyOptions,
  KEPT_MS,
  type Operation,
  operationOf,
  runMany,
} from '../support/distinct-keys.js';
import { eventually } from '../support/eventually.js';
import { type RedisServer, startRedisServer } from '../support/redis-server.js';

/** Of each feature; `OPERATIONS=100000` for a quick look. */
const OPERATIONS = Number(process.env.OPERATIONS ?? 1_000_000);
const STEPS = 10;
/** A busy machine takes its time: a million secrets on Redis took more than 20 minutes beside six other suites. */
const AT_MOST_MS = 2 * 3_600_000;
/** Whatever is left of an operation, if something is, takes more. */
const LEAK_BYTES = 20;
/** A heap that falls by less than this between two looks has come to rest. */
const FALLING_BYTES = 2 ** 20;
/** A counter with the name of its lock. */
const FENCE_BYTES = 200;

setFlagsFromString('--expose-gc');
const collect = runInNewContext('gc') as () => void;

function heapBytes(): number {
  collect();
  return process.memoryUsage().heapUsed;
}

/** What is left when timers have seen what is over. Many roots of budgets take the reaper more than one round. */
async function restingHeapBytes(): Promise<number> {
  let [before, now] = [Infinity, heapBytes()];
  while (now < before - FALLING_BYTES) {
    await sleep(2 * KEPT_MS);
    [before, now] = [now, heapBytes()];
  }
  return now;
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

describe(`${OPERATIONS} operations with a key each`, () => {
  it.each(distinctKeyFeatures)(
    '%s in memory: the heap does not grow with them',
    async (name) => {
      const clock = new FakeClock();
      const module = await boot(SyncGuardTestingModule.forRoot({ ...distinctKeyOptions, clock }));
      const heap = await measured(operationOf(name, module), async () => {
        clock.advance(ALL_OVER_MS);
        return restingHeapBytes();
      });
      expectNoGrowth(`${name} in memory, heap`, heap);
      await module.close();
    },
    AT_MOST_MS,
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

    it.each(distinctKeyFeatures)(
      '%s: neither the heap nor Redis grows with them, but for one fence counter a lock key',
      async (name) => {
        const module = await boot(SyncGuardModule.forRoot({ ...distinctKeyOptions, redis: server.url }));
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
      AT_MOST_MS,
    );
  });
});
