import 'reflect-metadata';
import { Test, type TestingModule } from '@nestjs/testing';
import type { ClusterOptions } from 'ioredis';
import { createRedisBackend, LockService, SyncGuardModule, type SyncGuardOptions } from 'nestjs-syncguard';
import { granted } from '../lock/lock.contract.js';
import { describeLockQueue } from '../lock/lock-queue.contract.js';
import { type ClusterEngine, NEVER_MS, startClusterEngine } from '../support/engines/engine.js';
import { crash, freeze, loseMaster, switchMaster } from '../support/engines/faults.js';
import { eventually } from '../support/eventually.js';
import type { RedisServer } from '../support/redis-server.js';

const START_MS = 60_000;
const COMMAND_TIMEOUT_MS = 10_000;

async function namesOf({ cluster }: ClusterEngine): Promise<string[]> {
  const names: string[] = [];
  for (const master of await cluster.masters()) names.push(...(await master.client().keys('*')));
  return names.filter((name) => !/:fence:|\/released:/.test(name));
}

describe.each<[string, ClusterOptions]>([
  ['as it is', {}],
  ['with auto-pipelining', { enableAutoPipelining: true }],
])('a Cluster of 3 masters and 3 replicas, %s', (name, options) => {
  let engine: ClusterEngine;
  beforeAll(async () => {
    engine = await startClusterEngine({ nodeTimeoutMs: NEVER_MS });
  }, START_MS);
  afterAll(() => engine.stop());

  describeLockQueue(`a Cluster ${name}`, async () => {
    engine.closeClients();
    engine.clock.reset();
    await engine.flush();
    const backend = () =>
      createRedisBackend(engine.cluster.client(options), { commandTimeoutMs: COMMAND_TIMEOUT_MS });
    return {
      backends: [backend(), backend()],
      advance: (ms) => engine.clock.advance(ms),
      leftovers: () => namesOf(engine),
    };
  });
});

describe('a queue on a Cluster whose master changes', () => {
  let engine: ClusterEngine;
  const modules: TestingModule[] = [];
  beforeEach(async () => {
    engine = await startClusterEngine();
  }, START_MS);
  afterEach(async () => {
    await Promise.all(modules.splice(0).map((module) => module.close()));
    await engine.stop();
  });

  const KEYS = ['{t}:a', '{t}:b'];
  const WAITERS = 6;
  const BY_AGREEMENT = 'by agreement';

  /** The locks of an app of its own. */
  const appOn = async (redis: SyncGuardOptions['redis']): Promise<LockService> => {
    const imports = [SyncGuardModule.forRoot({ redis, lock: { timeoutMs: 90_000 } })];
    const module = await Test.createTestingModule({ imports }).compile();
    modules.push(await module.init());
    return module.get(LockService);
  };
  const theirs = (): SyncGuardOptions['redis'] => engine.cluster.client();
  const masterOfLocks = async (): Promise<RedisServer> => {
    const [name] = (await namesOf(engine)) as [string];
    return engine.cluster.ownerOf(name);
  };

  type Case = readonly [
    how: string,
    whose: string,
    redis: () => SyncGuardOptions['redis'],
    fail: () => Promise<unknown>,
  ];

  it.each<Case>([
    [
      BY_AGREEMENT,
      "a user's clients",
      theirs,
      async () => switchMaster(engine.cluster, await masterOfLocks()),
    ],
    [
      'as it is killed',
      "a user's clients",
      theirs,
      async () => loseMaster(engine.cluster, await masterOfLocks(), crash),
    ],
    [
      'as it freezes',
      'our own connections',
      () => ({ nodes: engine.cluster.nodes }),
      async () => loseMaster(engine.cluster, await masterOfLocks(), freeze),
    ],
    [
      'as it freezes',
      "a user's clients that close silent connections",
      () => engine.cluster.client({ redisOptions: { socketTimeout: 2_000 } }),
      async () => loseMaster(engine.cluster, await masterOfLocks(), freeze),
    ],
  ])(
    '%s, on %s: all that wait are served, and nothing is left',
    async (how, whose, redis, fail) => {
      const services = [await appOn(redis()), await appOn(redis())];
      const holder = await appOn(redis());
      const held = granted(await holder.acquire({ keys: KEYS, ttlMs: 60_000 }));
      const order: number[] = [];
      const fences = [held.fence];
      const waiters: Promise<unknown>[] = [];
      for (let i = 0; i < WAITERS; i++) {
        const body = ({ fence }: { fence: string }): void => {
          order.push(i);
          fences.push(fence);
        };
        waiters.push((services[i % 2] as LockService).lock(body, { keys: [KEYS[0] as string] }));
        await eventually(async () => {
          const [name = ''] = (await namesOf(engine)).filter((each) => each.includes('queue'));
          const owner = await engine.cluster.ownerOf(name);
          expect(await owner.client().zcard(name)).toBe(i + 1);
        });
      }
      await engine.cluster.untilReplicated();
      await fail();
      // One that was not answered in time may have run: then there is nothing left to release.
      await eventually(async () => void (await held.release()), { timeoutMs: 20_000 });
      const releasedMs = performance.now();
      await Promise.all(waiters);
      console.log(
        `${how}, on ${whose}: all served ${Math.round(performance.now() - releasedMs)} ms after the release`,
      );
      // A master that dies takes its last writes with it, and turns pass while a client looks for the new one: no order then.
      if (how !== BY_AGREEMENT) order.sort();
      expect(order).toStrictEqual([...Array(WAITERS).keys()]);
      expect(fences).toStrictEqual([...new Set(fences)].sort());
    },
    120_000,
  );
});
