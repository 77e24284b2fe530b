import type { Cluster, ClusterOptions } from 'ioredis';
import { createRedisBackend } from 'nestjs-syncguard';
import { LockService } from '../../lib/lock/lock.service.js';
import { resolveOptions } from '../../lib/module/syncguard.options.js';
import { granted } from '../contract/lock.contract.js';
import { describeLockQueue } from '../contract/lock-queue.contract.js';
import { type ClusterEngine, NEVER_MS, startClusterEngine } from '../support/engines/engine.js';
import { crash, loseMaster, switchMaster } from '../support/engines/faults.js';
import { eventually } from '../support/eventually.js';

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
  beforeEach(async () => {
    engine = await startClusterEngine();
  }, START_MS);
  afterEach(() => engine.stop());

  const KEYS = ['{t}:a', '{t}:b'];
  const WAITERS = 6;

  const service = (client: Cluster): LockService =>
    new LockService(createRedisBackend(client), resolveOptions({ lock: { timeoutMs: 90_000 } }));
  const masterOfLocks = async () => {
    const [name] = (await namesOf(engine)) as [string];
    return engine.cluster.ownerOf(name);
  };

  it.each<[string, () => Promise<unknown>]>([
    ['by agreement', async () => switchMaster(engine.cluster, await masterOfLocks())],
    ['as it is killed', async () => loseMaster(engine.cluster, await masterOfLocks(), crash)],
  ])(
    '%s: all that wait are served, in order, and nothing is left',
    async (_, fail) => {
      const client = () => engine.cluster.client();
      const services = [service(client()), service(client())];
      const held = granted(await createRedisBackend(client()).acquire({ keys: KEYS, ttlMs: 60_000 }));
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
      await Promise.all(waiters);
      expect(order).toStrictEqual([...Array(WAITERS).keys()]);
      expect(fences).toStrictEqual([...new Set(fences)].sort());
    },
    120_000,
  );
});
