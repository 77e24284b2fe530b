import type { LockBackend } from 'nestjs-syncguard';
import { createRedisBackend } from 'nestjs-syncguard';
import { hashKey } from '../../lib/core/keys.js';
import { hours } from '../../lib/core/time.js';
import { RedisLimitBackend } from '../../lib/limit/redis/limit.redis-backend.js';
import { slotOfKey } from '../../lib/redis/redis.slots.js';
import { ScriptRunner } from '../../lib/script/script-runner.js';
import { allBlocked } from '../limit/blocked.contract.js';
import { limiterOn, LOGIN } from '../limit/limit.contract.js';
import { granted } from '../lock/lock.contract.js';
import { allOf } from '../lock/lock-operations.contract.js';
import { ask } from '../support/engines/ask.js';
import { type RedisCluster, startRedisCluster } from '../support/engines/cluster.js';
import type { RedisServer } from '../support/redis-server.js';

const TTL_MS = 600_000;
const KEYS = Array.from({ length: 240 }, (_, i) => `order:${i}`).sort();

describe('a walk over the locks of a Cluster whose slots move', () => {
  let cluster: RedisCluster;
  let backend: LockBackend & Required<Pick<LockBackend, 'list'>>;
  /** In the order in which they are walked. */
  let masters: { id: string; server: RedisServer }[];

  beforeAll(async () => {
    cluster = await startRedisCluster();
  });
  afterAll(() => cluster.stop());
  beforeEach(async () => {
    await cluster.flush();
    backend = createRedisBackend(cluster.client(), { commandTimeoutMs: 10_000 }) as typeof backend;
    for (const key of KEYS) granted(await backend.acquire({ key, ttlMs: TTL_MS }));
    const named = cluster.servers.map(async (server) => ({
      ...{ id: await ask<string>(server, 'CLUSTER', 'MYID'), server },
    }));
    masters = (await Promise.all(named)).sort((a, b) => (a.id < b.id ? -1 : 1));
  });

  /** The slots of a master that have locks. */
  async function slotsOf(server: RedisServer): Promise<number[]> {
    const names = await ask<string[]>(server, 'KEYS', '*');
    return [...new Set(names.map(slotOfKey))];
  }

  /** Begins to move a slot, and moves its keys. Returns the function that ends it. */
  async function move(slot: number, from: number, to: number): Promise<() => Promise<void>> {
    const [source, target] = [masters[from], masters[to]] as [(typeof masters)[0], (typeof masters)[0]];
    await ask(target.server, 'CLUSTER', 'SETSLOT', slot, 'IMPORTING', source.id);
    await ask(source.server, 'CLUSTER', 'SETSLOT', slot, 'MIGRATING', target.id);
    const names = await ask<string[]>(source.server, 'CLUSTER', 'GETKEYSINSLOT', slot, 1_000);
    const { host, port } = target.server;
    if (names.length > 0) await ask(source.server, 'MIGRATE', host, port, '', 0, 5_000, 'KEYS', ...names);
    return async () => {
      for (const { server } of [target, source, ...masters])
        await ask(server, 'CLUSTER', 'SETSLOT', slot, 'NODE', target.id);
    };
  }

  /** Walks in small pages, and calls the function after each of them with the index of the node that is walked then. */
  async function walkWith(change: (node: number) => Promise<void>): Promise<string[]> {
    const keys = new Set<string>();
    let cursor: string | undefined;
    do {
      const page = await backend.list({ limit: 20, cursor });
      for (const { key } of page.items) keys.add(key);
      ({ cursor } = page);
      const node = masters.findIndex(({ id }) => cursor?.includes(id));
      if (node >= 0) await change(node);
    } while (cursor !== undefined);
    return [...keys].sort();
  }

  it('shows each lock where nothing moves', async () => {
    expect(await walkWith(async () => {})).toStrictEqual(KEYS);
  });

  it('shows each lock, also where slots move to a node that was walked before', async () => {
    let moved = 0;
    const seen = await walkWith(async (node) => {
      if (node !== 1 || moved > 0) return;
      for (const slot of (await slotsOf((masters[2] as (typeof masters)[0]).server)).slice(0, 30)) {
        await (
          await move(slot, 2, 0)
        )();
        moved++;
      }
    });
    expect(moved).toBe(30);
    expect(seen).toStrictEqual(KEYS);
  });

  it('shows each lock while a move has begun and does not end, and comes to an end', async () => {
    const ends: (() => Promise<void>)[] = [];
    const seen = await walkWith(async (node) => {
      if (node !== 1 || ends.length > 0) return;
      const slots = (await slotsOf((masters[2] as (typeof masters)[0]).server)).slice(0, 10);
      for (const slot of slots) ends.push(await move(slot, 2, 0));
    });
    for (const end of ends) await end();
    expect(ends).toHaveLength(10);
    expect(seen).toStrictEqual(KEYS);
  });

  it('shows each block, and ends one by its tag, also where slots move to a node that was walked before', async () => {
    await cluster.flush();
    const limiter = limiterOn(new RedisLimitBackend(new ScriptRunner(cluster.client(), 10_000), 'syncguard'));
    for (const key of KEYS) await limiter.block(key, LOGIN, hours(1));
    const tags = new Set<string>();
    let cursor: string | undefined;
    let moved = 0;
    do {
      const page = await limiter.blocked({ limit: 20, cursor });
      for (const { tag } of page.items) tags.add(tag);
      ({ cursor } = page);
      if (moved > 0 || masters.findIndex(({ id }) => cursor?.includes(id)) !== 1) continue;
      for (const slot of (await slotsOf((masters[2] as (typeof masters)[0]).server)).slice(0, 30)) {
        await (
          await move(slot, 2, 0)
        )();
        moved++;
      }
    } while (cursor !== undefined);
    expect(moved).toBe(30);
    expect([...tags].sort()).toStrictEqual(KEYS.map(hashKey).sort());
    for (const key of KEYS.slice(0, 3))
      expect(await limiter.unblock({ tag: hashKey(key) })).toStrictEqual({ unblocked: 1 });
    expect(new Set((await allBlocked(limiter)).map(({ tag }) => tag)).size).toBe(KEYS.length - 3);
  });

  it('refuses a cursor of a single server, and one that nobody has made', async () => {
    const id = (masters[0] as (typeof masters)[0]).id;
    for (const cursor of ['17', 'x', `0.${id}.0`, `99999999999999999999.${id}.0.0-5.`, `0.${id}.0.a.b`])
      await expect(backend.list({ cursor })).rejects.toMatchObject({ code: 'InvalidArgument' });
  });

  it('goes on from a node that has left', async () => {
    const gone = '0'.repeat(40);
    const first = await allOf(backend, { cursor: `5.${gone}.0.0-16383.` });
    expect([...new Set(first.map(({ key }) => key))].sort()).toStrictEqual(KEYS);
  });
});
