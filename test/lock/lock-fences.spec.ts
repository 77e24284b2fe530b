import type { Redis } from 'ioredis';
import { createFenceGuard, createRedisBackend, type LockBackend, type LockHandle } from 'nestjs-syncguard';
import { createHash } from 'node:crypto';
import { acquireKeysFor } from '../../lib/lock/redis/acquire-keys.script.js';
import { keyArgsOf, type LockLayout, slottedLayout } from '../../lib/lock/redis/lock.layout.js';
import { locksOn } from '../support/redis-backends.js';
import { ScriptRunner } from '../../lib/script/script-runner.js';
import { eventually } from '../support/eventually.js';
import { freshRedis, workerRedis } from '../support/redis.js';
import { granted } from './lock.contract.js';

const TTL_MS = 30_000;
const tagOf = (key: string): string => createHash('sha256').update(key).digest('base64url').slice(0, 3);

/** Two keys without braces whose hashes begin alike, so that they share a tag. */
function keysOfOneTag(): [string, string] {
  const byTag = new Map<string, string>();
  for (let i = 0; ; i++) {
    const other = byTag.get(tagOf(`order:${i}`));
    if (other !== undefined) return [other, `order:${i}`];
    byTag.set(tagOf(`order:${i}`), `order:${i}`);
  }
}

describe('fence counters', () => {
  let client: Redis;
  let locks: LockBackend;
  beforeEach(async () => {
    client = (await freshRedis()).client();
    locks = createRedisBackend(client, { keyLayout: 'slotted' });
  });

  const take = async (key: string, backend = locks): Promise<LockHandle> =>
    granted(await backend.acquire({ key, ttlMs: TTL_MS }));
  const takeAll = async (keys: string[]): Promise<LockHandle> =>
    granted(await locks.acquire({ keys, ttlMs: TTL_MS }));
  /** The fences of these keys, each locked and released, one after the other. */
  async function fencesOf(keys: string[], backend = locks): Promise<string[]> {
    const fences = [];
    for (const key of keys) {
      const lock = await take(key, backend);
      await lock.release();
      fences.push(lock.fence);
    }
    return fences;
  }
  function expectRising(fences: readonly string[]): void {
    expect(fences).toEqual([...new Set(fences)].sort());
  }
  /** A call that waits for a key of a backend, with its attempts. */
  async function waiting(key: string, backend: LockBackend): Promise<() => Promise<LockHandle>> {
    const turn = backend.takeTurn?.({ pollMs: TTL_MS });
    const attempt = () => backend.acquire({ key, ttlMs: TTL_MS, turn });
    expect((await attempt()).ok).toBe(false);
    return async () => {
      let lock = await attempt();
      await eventually(async () => expect((lock = lock.ok ? lock : await attempt()).ok).toBe(true));
      return granted(lock);
    };
  }

  describe('in the slotted layout', () => {
    it('are one for all keys of a tag: nothing else stays of 300 keys', async () => {
      await fencesOf(Array.from({ length: 300 }, (_, i) => `{webhook}:${i}`));
      expect(await client.keys('*')).toEqual([`syncguard:{${tagOf('webhook')}}:fence:all`]);
      expect(await client.ttl(`syncguard:{${tagOf('webhook')}}:fence:all`)).toBe(-1);
    });

    it('are at most 64 ^ 3, also of keys without braces', async () => {
      const keys = Array.from({ length: 1_000 }, (_, i) => `order:${i}`);
      const [one, two] = keysOfOneTag();
      await fencesOf([...keys, one, two]);
      const names = new Set([...keys, one, two].map((key) => `syncguard:{${tagOf(key)}}:fence:all`));
      expect((await client.keys('*')).sort()).toEqual([...names].sort());
      expect(tagOf(one)).toBe(tagOf(two));
    });

    it('let keys of one tag be held side by side, and each has fences that rise', async () => {
      const [one, two] = keysOfOneTag();
      workerRedis().clock.hold();
      const [first, second] = [await take(one), await take(two)];
      expect(await client.keys('*:fence:*')).toHaveLength(1);
      await first.release();
      await second.release();
      expectRising([first.fence, second.fence, ...(await fencesOf([one, two, two, one]))]);
    });

    it('go on from the clock when they are lost, also while many keys share them', async () => {
      const keys = ['{a}:1', '{a}:2', '{a}:3'];
      const before = await fencesOf([...keys, ...keys]);
      workerRedis().clock.advance(0.1);
      await client.del(`syncguard:{${tagOf('a')}}:fence:all`);
      expectRising([...before, ...(await fencesOf([...keys, ...keys]))]);
      await client.set(`syncguard:{${tagOf('a')}}:fence:all`, '5');
      workerRedis().clock.advance(0.1);
      expectRising([...before, ...(await fencesOf(keys))]);
    });

    it('rise where the clock is set back', async () => {
      const before = await fencesOf(['{a}:1', '{a}:2']);
      workerRedis().clock.advance(-60_000);
      expectRising([...before, ...(await fencesOf(['{a}:2', '{a}:1']))]);
    });

    it('are not set back by a claim: another key of the tag has had fences meanwhile', async () => {
      workerRedis().clock.hold();
      const held = await take('{a}:1');
      const claim = await waiting('{a}:1', locks);
      await held.release();
      const others = await fencesOf(['{a}:2', '{a}:2', '{a}:2']);
      const claimed = await claim();
      expectRising([held.fence, claimed.fence, ...others, ...(await fencesOf(['{a}:2', '{a}:3']))]);
      await claimed.release();
      expectRising([...others, ...(await fencesOf(['{a}:1']))]);
    });

    it('are not set back by an acquire of several keys that is sent again', async () => {
      workerRedis().clock.hold();
      const [layout, runner] = [slottedLayout('syncguard', client), new ScriptRunner(client, 10_000)];
      const keys = ['{a}:1', '{a}:2'];
      const lockId = layout.createLockId(keys);
      const args = {
        ...{
          lockId,
          ttlMs: TTL_MS,
          channel: 'syncguard/wake:',
          countsAll: '1',
          process: '',
          ticket: '',
          nested: '',
          queueMs: '',
        },
        ...{ keeps: '', keysJson: `,"keys":${JSON.stringify(keys)}` },
        ...keyArgsOf(keys),
      };
      const send = () => runner.run(acquireKeysFor(2), layout.keysOf(keys, lockId), args);
      const first = await send();
      const others = await fencesOf(['{a}:3', '{a}:3']);
      expect(await send()).toEqual(first);
      expectRising([...others, ...(await fencesOf(['{a}:3']))]);
    });

    it('give several keys of one grant one fence, above all that any of them has had, as a FenceGuard needs', async () => {
      const guard = createFenceGuard(client, { keyLayout: 'slotted' });
      const write = (resource: string, { fence, lockId }: LockHandle) =>
        guard.apply({ resource, fence, lockId });
      workerRedis().clock.hold();
      const late = await take('{a}:1');
      await late.release();
      const both = await takeAll(['{a}:2', '{a}:1']);
      expect(both.fences).toEqual({ '{a}:1': both.fence, '{a}:2': both.fence });
      expectRising([late.fence, both.fence]);
      for (const key of ['{a}:1', '{a}:2']) expect(await write(key, both)).toEqual({ ok: true });
      expect(await write('{a}:1', late)).toEqual({ ok: false, lastFence: both.fence });
      await both.release();
      const [one, two] = [await take('{a}:1'), await take('{a}:2')];
      expect([await write('{a}:2', two), await write('{a}:1', one)]).toEqual([{ ok: true }, { ok: true }]);
      expect(await write('{a}:2', both)).toEqual({ ok: false, lastFence: two.fence });
    });
  });

  describe('of the version before, which had one for each key', () => {
    let before: LockBackend;
    beforeEach(() => {
      const redis = workerRedis().client();
      const slotted = slottedLayout('syncguard', redis);
      const oldNameOf = (key: string): string =>
        `syncguard:{${tagOf('a')}}:fence:syncguard:{${tagOf('a')}}:${key}`;
      const layout: LockLayout = {
        ...slotted,
        keysOf: (keys, lockId) =>
          Object.assign(slotted.keysOf(keys, lockId), { fenceCounter: oldNameOf(keys[0] as string) }),
      };
      before = locksOn(new ScriptRunner(redis, 10_000), layout);
    });
    afterEach(() => before.flush?.());

    it('and those of this one give a key fences that rise, in turns', async () => {
      const fences: string[] = [];
      for (let i = 0; i < 30; i++) {
        fences.push(...(await fencesOf(['{a}:1'], i % 2 === 0 ? before : locks)));
        if (i % 5 === 0) fences.push(...(await fencesOf(['{a}:1'], i % 2 === 0 ? before : locks)));
        workerRedis().clock.advance(0.1);
      }
      expect(await client.keys('*:fence:*')).toHaveLength(2);
      expectRising(fences);
    });

    it.each([
      ['the version before hands over to this one', true],
      ['this version hands over to the one before', false],
    ])('and where %s', async (_, isOldFirst) => {
      const [from, to] = isOldFirst ? [before, locks] : [locks, before];
      workerRedis().clock.hold();
      const held = await take('{a}:1', from);
      const claim = await waiting('{a}:1', to);
      await held.release();
      const claimed = await claim();
      await claimed.release();
      expectRising([held.fence, claimed.fence, ...(await fencesOf(['{a}:1', '{a}:1'], to))]);
    });
  });

  it('of the spec layout stay one for each key', async () => {
    await fencesOf(['{a}:1', '{a}:2'], createRedisBackend(client));
    expect((await client.keys('*')).sort()).toEqual(
      ['{a}:1', '{a}:2'].map((key) => `syncguard:fence:syncguard:${key}`),
    );
  });
});
