import 'reflect-metadata';
import { Test, type TestingModule } from '@nestjs/testing';
import type { Cluster, ClusterOptions } from 'ioredis';
import { createRedisBackend, LockService, SyncGuardModule, type SyncGuardOptions } from 'nestjs-syncguard';
import { granted } from '../contract/lock.contract.js';
import { describeLockQueue } from '../contract/lock-queue.contract.js';
import { type ClusterEngine, NEVER_MS, startClusterEngine } from '../support/engines/engine.js';
import { crash, freeze, loseMaster, switchMaster } from '../support/engines/faults.js';
import { eventually } from '../support/eventually.js';
import { IOREDIS_VERSIONS, ioredisOf } from '../support/ioredis-versions.js';
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

  /** The locks of an app of its own. */
  const appOn = async (redis: SyncGuardOptions['redis']): Promise<LockService> => {
    const imports = [SyncGuardModule.forRoot({ redis, lock: { timeoutMs: 90_000 } })];
    const module = await Test.createTestingModule({ imports }).compile();
    modules.push(await module.init());
    return module.get(LockService);
  };
  /** What an app may be given: each as the page on Redis says. */
  const CONNECTIONS: [string, () => SyncGuardOptions['redis']][] = [
    ['our own connections', () => ({ nodes: engine.cluster.nodes })],
    ...IOREDIS_VERSIONS.map(([version, name]): [string, () => Cluster] => [
      `clients of a user's own, ${version}`,
      () => {
        const { Cluster } = ioredisOf(name);
        const client = new Cluster(engine.cluster.nodes, { redisOptions: { socketTimeout: 2_000 } });
        return engine.cluster.track(client.on('error', () => {}));
      },
    ]),
  ];
  const masterOfLocks = async (): Promise<RedisServer> => {
    const [name] = (await namesOf(engine)) as [string];
    return engine.cluster.ownerOf(name);
  };
  const FAULTS: [string, () => Promise<unknown>][] = [
    ['by agreement', async () => switchMaster(engine.cluster, await masterOfLocks())],
    ['as it is killed', async () => loseMaster(engine.cluster, await masterOfLocks(), crash)],
    ['as it is frozen', async () => loseMaster(engine.cluster, await masterOfLocks(), freeze)],
  ];

  it.each(
    FAULTS.flatMap(([how, fail]) => CONNECTIONS.map(([whose, redis]) => [how, whose, fail, redis] as const)),
  )(
    '%s, on %s: all that wait are served, in order, and nothing is left',
    async (_how, _whose, fail, redis) => {
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
        `${_how}, on ${_whose}: all served ${Math.round(performance.now() - releasedMs)} ms after the release`,
      );
      expect(order).toStrictEqual([...Array(WAITERS).keys()]);
      expect(fences).toStrictEqual([...new Set(fences)].sort());
    },
    120_000,
  );
});
