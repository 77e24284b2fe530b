import type { Redis } from 'ioredis';
import { createRedisBackend, LockError, type LockBackend } from 'nestjs-syncguard';
import { FENCE_THRESHOLDS, makeStorageKey } from 'nestjs-syncguard/compat';
import { setImmediate as nextTurn } from 'node:timers/promises';
import { LockService } from '../../lib/lock/lock.service.js';
import { resolveOptions } from '../../lib/module/syncguard.options.js';
import { commandsOf } from '../support/commands.js';
import { eventually } from '../support/eventually.js';
import { freshRedis, workerRedis } from '../support/redis.js';
import { startTcpProxy } from '../support/tcp-proxy.js';
import { granted } from './lock.contract.js';

// A program that follows docs/wire-format.md by the letter: cjson, TIME, the index holding the full lock key.
const FOREIGN_ACQUIRE = `
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local held = redis.call('GET', KEYS[1])
if held and cjson.decode(held).expiresAtMs > now - 1000 then return 0 end
local fence = string.format('%015d', redis.call('INCR', KEYS[3]))
local data = cjson.encode({lockId=ARGV[1], expiresAtMs=now + ARGV[2], acquiredAtMs=now, key=ARGV[3], fence=fence})
redis.call('SET', KEYS[1], data, 'PX', ARGV[2])
redis.call('SET', KEYS[2], KEYS[1], 'PX', ARGV[2])
return {1, fence, now + ARGV[2]}`;

const FOREIGN_RELEASE = `
local lockKey = redis.call('GET', KEYS[1])
if not lockKey then return -1 end
local held = redis.call('GET', lockKey)
if not held then return -1 end
local data = cjson.decode(held)
if data.lockId ~= ARGV[1] then return 0 end
redis.call('DEL', lockKey, KEYS[1])
return 1`;

const FOREIGN_ID = 'foreign_lock_id_000001';
const TTL_MS = 30_000;

describe('the wire format of locks', () => {
  let client: Redis;
  let backend: LockBackend;

  beforeEach(async () => {
    client = (await freshRedis()).client();
    backend = createRedisBackend(client);
  });

  const take = async (key: string, ttlMs = TTL_MS) => granted(await backend.acquire({ key, ttlMs }));
  const foreignAcquire = (key: string, id = FOREIGN_ID): Promise<unknown> =>
    client.eval(
      FOREIGN_ACQUIRE,
      3,
      `syncguard:${key}`,
      `syncguard:id:${id}`,
      `syncguard:fence:syncguard:${key}`,
      id,
      TTL_MS,
      key,
    );

  it('ours is released by a script of another program', async () => {
    const { lockId } = await take('order:1');
    expect(await client.eval(FOREIGN_RELEASE, 1, `syncguard:id:${lockId}`, lockId)).toBe(1);
    expect(await backend.isLocked({ key: 'order:1' })).toBe(false);
  });

  it('a lock of another program is extended and released by ours', async () => {
    await foreignAcquire('order:1');
    expect((await backend.extend({ lockId: FOREIGN_ID, ttlMs: 60_000 })).ok).toBe(true);
    expect(await client.pttl('syncguard:order:1')).toBeGreaterThan(TTL_MS);
    expect(await backend.release({ lockId: FOREIGN_ID })).toStrictEqual({ ok: true });
    expect(await client.exists('syncguard:order:1')).toBe(0);
  });

  it('a mixed fleet on one key: never two inside, fences rise, everybody gets all its turns', async () => {
    const SECTIONS = 50;
    const fences: string[] = [];
    const shared = workerRedis().client();
    const section = async (fence: string): Promise<void> => {
      expect(await shared.incr('inside')).toBe(1);
      fences.push(fence);
      await shared.decr('inside');
    };
    const foreign = async (worker: number): Promise<void> => {
      for (let i = 0; i < SECTIONS; i++) {
        const id = `foreign_${worker}_${i}_`.padEnd(22, 'x');
        let grant: unknown;
        while (!Array.isArray(grant))
          if (!Array.isArray((grant = await foreignAcquire('hot', id)))) await nextTurn();
        await section(grant[1] as string);
        expect(await client.eval(FOREIGN_RELEASE, 1, `syncguard:id:${id}`, id)).toBe(1);
      }
    };
    const ours = async (locks: LockService): Promise<void> => {
      for (let i = 0; i < SECTIONS; i++)
        await locks.lock(({ fence }) => section(fence), {
          key: 'hot',
          timeoutMs: Infinity,
          retryDelayMs: 1,
        });
    };
    const service = (): LockService =>
      new LockService(createRedisBackend(workerRedis().client()), resolveOptions());
    await Promise.all([...[1, 2, 3].map(foreign), ...[service(), service(), service()].map(ours)]);
    expect(fences).toHaveLength(6 * SECTIONS);
    expect(fences).toStrictEqual([...new Set(fences)].sort());
  });

  it('a record with spaces in its JSON is understood', async () => {
    const record = {
      lockId: FOREIGN_ID,
      expiresAtMs: Date.now() + TTL_MS,
      acquiredAtMs: Date.now(),
      key: 'order:1',
      fence: '000000000000007',
    };
    await client.set('syncguard:order:1', JSON.stringify(record, null, 2), 'PX', TTL_MS);
    await client.set(`syncguard:id:${FOREIGN_ID}`, 'syncguard:order:1', 'PX', TTL_MS);
    expect((await backend.acquire({ key: 'order:1', ttlMs: TTL_MS })).ok).toBe(false);
    expect((await backend.extend({ lockId: FOREIGN_ID, ttlMs: 60_000 })).ok).toBe(true);
    expect(await backend.getByKeyRaw('order:1')).toMatchObject({
      lockId: FOREIGN_ID,
      fence: '000000000000007',
    });
    expect((await backend.release({ lockId: FOREIGN_ID })).ok).toBe(true);
  });

  it.each([
    'id:42',
    'id:order',
    `id:${FOREIGN_ID}x`,
    `id:${FOREIGN_ID.slice(1)}`,
    `id:${FOREIGN_ID.slice(1)}:`,
    `ID:${FOREIGN_ID}`,
    `a:id:${FOREIGN_ID}`,
    'fences:north',
    'a:fence:1',
  ])('a user key %s is plain, and excludes other programs', async (key) => {
    await take(key);
    expect(await foreignAcquire(key)).toBe(0);
    await client.flushall();
    await foreignAcquire(key);
    expect((await backend.acquire({ key, ttlMs: TTL_MS })).ok).toBe(false);
  });

  it.each(['grid', 'android', 'paid', 'app:grid', 'defence', 'defence:x', 'id:app', 'fenced'])(
    'the keyPrefix %s is fine: no record of it could be an index or a fence counter',
    async (keyPrefix) => {
      const prefixed = createRedisBackend(client, { keyPrefix });
      const { lockId } = granted(await prefixed.acquire({ key: 'order:1', ttlMs: TTL_MS }));
      expect((await client.keys('*')).sort()).toStrictEqual(
        [
          `${keyPrefix}:order:1`,
          `${keyPrefix}:id:${lockId}`,
          `${keyPrefix}:fence:${keyPrefix}:order:1`,
        ].sort(),
      );
    },
  );

  it.each(['id', 'fence', 'app:id', 'app:fence', 'app:fence:x', 'fence:app', 'id:', 'app:id::'])(
    'the keyPrefix %s is refused',
    (keyPrefix) => {
      expect(() => createRedisBackend(client, { keyPrefix })).toThrow(/may not have a part "fence", or "id"/);
    },
  );

  it.each([`id:${FOREIGN_ID}`, 'fence:syncguard:order:1'])(
    'a user key %s is hashed, and names nothing internal',
    async (key) => {
      const victim = await take('order:1');
      await take(key);
      expect(await client.get('syncguard:order:1')).toContain(victim.lockId);
      expect(await client.exists(`syncguard:${key}`)).toBe(key === 'fence:syncguard:order:1' ? 1 : 0);
      expect(await client.get('syncguard:fence:syncguard:order:1')).toMatch(/^\d+$/);
      expect((await client.keys('syncguard:??????????????????????')).length).toBe(1);
    },
  );

  it('a long key takes its hashed form, everywhere', async () => {
    const prefix = 'p'.repeat(100);
    const long = createRedisBackend(client, { keyPrefix: prefix });
    const key = '鍵'.repeat(170);
    const lock = granted(await long.acquire({ key, ttlMs: TTL_MS }));
    expect(await client.exists(makeStorageKey(prefix, key))).toBe(1);
    for (const name of await client.keys('*')) expect(Buffer.byteLength(name)).toBeLessThanOrEqual(1000);
    expect((await long.release({ lockId: lock.lockId })).ok).toBe(true);
  });

  describe('on a client with a keyPrefix', () => {
    it('release, extend and lookup by id find the prefixed record, and a foreign reader its name', async () => {
      const prefixed = createRedisBackend(workerRedis().client({ keyPrefix: 'app:' }));
      const { lockId } = granted(await prefixed.acquire({ key: 'order:1', ttlMs: TTL_MS }));
      expect(await client.get(`app:syncguard:id:${lockId}`)).toBe('app:syncguard:order:1');
      expect(await prefixed.lookup({ lockId })).not.toBeNull();
      expect((await prefixed.extend({ lockId, ttlMs: 60_000 })).ok).toBe(true);
      expect((await prefixed.release({ lockId })).ok).toBe(true);
      expect((await client.keys('*')).sort()).toStrictEqual([
        'app:syncguard/released:' + lockId, // For 10 s, so that a re-sent release knows itself.
        'app:syncguard:fence:syncguard:order:1',
      ]);
      expect(await client.pttl(`app:syncguard/released:${lockId}`)).toBeLessThanOrEqual(10_000);
    });
  });

  describe('fences survive the loss of their counter', () => {
    const later = async (lose: () => Promise<unknown>): Promise<[string, string]> => {
      const before = await take('order:1');
      await before.release();
      await lose();
      return [before.fence, (await take('order:1')).fence];
    };

    it.each<[string, () => Promise<unknown>]>([
      ['deleted', () => client.del('syncguard:fence:syncguard:order:1')],
      ['set back', () => client.set('syncguard:fence:syncguard:order:1', '5')],
      ['flushed', () => client.flushall()],
    ])('when it was %s', async (_, lose) => {
      // A moment passes between a grant and a failover; with none, 0.1 ms is what the clock can tell apart.
      const [before, after] = await later(async () => {
        workerRedis().clock.advance(0.1);
        return lose();
      });
      expect(after > before).toBe(true);
    });

    it('and differ on two primaries that both grant within one ms', async () => {
      const { clock } = workerRedis();
      clock.hold(Date.now() + 0.1);
      const one = await take('order:1');
      clock.advance(0.1);
      const other = createRedisBackend(workerRedis().client({ db: 1 }));
      const two = granted(await other.acquire({ key: 'order:1', ttlMs: TTL_MS }));
      expect(two.expiresAtMs).toBe(one.expiresAtMs);
      expect(two.fence > one.fence).toBe(true);
    });

    it('and lose a TTL that somebody put on it', async () => {
      await (await take('order:1')).release();
      await client.expire('syncguard:fence:syncguard:order:1', 100);
      await take('order:1');
      expect(await client.ttl('syncguard:fence:syncguard:order:1')).toBe(-1);
    });
  });

  describe('a fence counter near its end', () => {
    const setFence = (value: string): Promise<unknown> =>
      client.set('syncguard:fence:syncguard:order:1', value);

    it('warns once, with the key hashed', async () => {
      const warnings: string[] = [];
      const warned = createRedisBackend(client, { warn: (message) => warnings.push(message) });
      await setFence(FENCE_THRESHOLDS.WARN);
      for (let i = 0; i < 3; i++)
        await granted(await warned.acquire({ key: 'order:1', ttlMs: TTL_MS })).release();
      expect(warnings).toHaveLength(1);
      expect(warnings[0]).not.toContain('order:1');
    });

    it('refuses at the end, before a record is written', async () => {
      await setFence('899999999999999');
      expect((await take('order:1')).fence).toBe(FENCE_THRESHOLDS.MAX);
      await client.del('syncguard:order:1');
      await expect(backend.acquire({ key: 'order:1', ttlMs: TTL_MS })).rejects.toMatchObject({
        code: 'Internal',
      });
      expect(await client.exists('syncguard:order:1')).toBe(0);
      expect(await client.get('syncguard:fence:syncguard:order:1')).toBe('900000000000000');
    });
  });

  describe('something else under our names', () => {
    const attempt = (): Promise<LockError> =>
      backend.acquire({ key: 'order:1', ttlMs: TTL_MS }).then(
        () => Promise.reject(new Error('the lock was granted')),
        (error: unknown) => error as LockError,
      );

    it.each<[string, () => Promise<unknown>]>([
      ['a list as the record', () => client.rpush('syncguard:order:1', 'x')],
      ['text as the record', () => client.set('syncguard:order:1', 'mine')],
      ['JSON of another kind as the record', () => client.set('syncguard:order:1', '[1,2]')],
      ['a list as the fence', () => client.rpush('syncguard:fence:syncguard:order:1', 'x')],
      ['text as the fence', () => client.set('syncguard:fence:syncguard:order:1', '1e3')],
    ])('%s is an InvalidArgument that says what to do, and nothing is written', async (_, put) => {
      await put();
      const before = await client.keys('*');
      const error = await attempt();
      expect(error).toBeInstanceOf(LockError);
      expect(error.code).toBe('InvalidArgument');
      expect(error.message).toMatch(/Delete that key, or choose another/);
      expect(error.message).not.toContain('order:1');
      expect(await client.keys('*')).toStrictEqual(before);
    });

    it('is told by reads as well', async () => {
      await client.set('syncguard:order:1', 'mine');
      await expect(backend.lookup({ key: 'order:1' })).rejects.toMatchObject({ code: 'InvalidArgument' });
    });
  });

  it('a record that lost its TTL is contended until it is dead, then taken over', async () => {
    await take('order:1', 10_000);
    await client.persist('syncguard:order:1');
    expect((await backend.acquire({ key: 'order:1', ttlMs: TTL_MS })).ok).toBe(false);
    workerRedis().clock.advance(11_001);
    const next = await take('order:1');
    expect(await client.pttl('syncguard:order:1')).toBeGreaterThan(0);
    await next.release();
  });

  it('a dead record is released and extended as expired, and is gone then', async () => {
    for (const end of ['release', 'extend'] as const) {
      const lock = await take('order:1', 10_000);
      await client.persist('syncguard:order:1');
      await client.persist(`syncguard:id:${lock.lockId}`);
      workerRedis().clock.advance(11_001);
      const result = await (end === 'release'
        ? backend.release({ lockId: lock.lockId })
        : lock.extend(TTL_MS));
      expect(result).toStrictEqual({ ok: false });
      expect(await client.exists('syncguard:order:1', `syncguard:id:${lock.lockId}`)).toBe(0);
    }
  });

  describe('isLocked', () => {
    const leaveDead = async (ageMs: number): Promise<void> => {
      const { lockId } = await take('order:1', 10_000);
      await client.persist('syncguard:order:1');
      await client.persist(`syncguard:id:${lockId}`);
      workerRedis().clock.advance(10_000 + ageMs);
    };

    it('reads only, by default', async () => {
      await leaveDead(60_000);
      expect(await backend.isLocked({ key: 'order:1' })).toBe(false);
      expect(await client.exists('syncguard:order:1')).toBe(1);
    });

    it('cleans a record dead for over 2 s where it may, never the fence counter', async () => {
      const cleaning = createRedisBackend(client, { cleanupInIsLocked: true });
      await leaveDead(2_100);
      expect(await cleaning.isLocked({ key: 'order:1' })).toBe(false);
      await eventually(async () =>
        expect(await client.keys('*')).toStrictEqual(['syncguard:fence:syncguard:order:1']),
      );
    });

    it('leaves one alone that is dead for less', async () => {
      const cleaning = createRedisBackend(client, { cleanupInIsLocked: true });
      await leaveDead(1_500);
      expect(await cleaning.isLocked({ key: 'order:1' })).toBe(false);
      await cleaning.lookup({ key: 'order:1' });
      expect(await client.exists('syncguard:order:1')).toBe(1);
    });
  });

  it('a script is used first while ioredis has a pipeline that waits for another', async () => {
    await using proxy = await startTcpProxy(workerRedis().port);
    const pipelining = workerRedis().client({ port: proxy.port, enableAutoPipelining: true });
    await pipelining.ping();
    proxy.delay(50);
    const running = pipelining.get('a');
    await nextTurn();
    await nextTurn();
    const waiting = pipelining.get('b');
    const backend = createRedisBackend(pipelining, { commandTimeoutMs: 10_000 });
    const locks = Array.from({ length: 2 }, () => backend.acquire({ keys: ['a', 'b', 'c'], ttlMs: TTL_MS }));
    expect((await Promise.all(locks)).filter(({ ok }) => ok)).toHaveLength(1);
    expect(await Promise.all([running, waiting])).toStrictEqual([null, null]);
  });

  it.each([
    ['spec', ['order:1'], 10],
    ['slotted', ['order:1'], 10],
    ['spec', ['{a}:1', '{a}:2', '{a}:3'], 18],
    ['slotted', ['{a}:1', '{a}:2', '{a}:3'], 18],
  ] as const)(
    'in the layout %s an acquire of %j and its release are %i commands',
    async (keyLayout, keys, count) => {
      const locks = createRedisBackend(client, { keyLayout });
      const pair = async (names: string[]): Promise<void> => {
        await granted(await locks.acquire({ keys: names, ttlMs: TTL_MS })).release();
      };
      await pair(keys.map((key) => `{warm}:${key.replace(/[{}]/g, '')}`));
      expect(await commandsOf(client, () => pair([...keys]))).toHaveLength(count);
    },
  );

  it('a release that hands over, the claim, and the release of the last are 24 commands', async () => {
    const locks = new LockService(backend, resolveOptions());
    const turns = async (): Promise<string[]> => {
      const held = await take('order:1');
      const waiter = locks.lock(() => undefined, { key: 'order:1' });
      await eventually(async () => expect(await client.zcard('syncguard/queue:order:1')).toBe(1));
      return commandsOf(client, async () => {
        await held.release();
        await waiter;
      });
    };
    await turns(); // The process listens from now on.
    expect(await turns()).toHaveLength(24);
  });

  it('nor are they more inside another lock, which nobody waits for', async () => {
    const locks = new LockService(backend, resolveOptions());
    const inside = (): Promise<unknown> =>
      locks.lock(() => locks.lock(() => undefined, { key: 'order:2' }), { key: 'order:1' });
    await inside();
    expect(await commandsOf(client, inside)).toHaveLength(20);
  });
});

describe('an acquire that a Cluster client sends again after the next one got the lock', () => {
  const KEY = 'order:1';
  let locks: LockService;
  let other: LockBackend;
  let backend: LockBackend;
  let kept: Parameters<Redis['sendCommand']>[];
  let switchMaster: () => void;
  let sendAgain: () => Promise<unknown>;
  let keys: () => Promise<string[]>;
  /** What was sent to the master that has the keys now. */
  let sent: Promise<unknown>[];

  // The client knows a Cluster, and keeps what is sent until `sendAgain()`. After `switchMaster()` another master has the
  // keys, which gets what is sent from then on, and owes no reply to what was kept.
  beforeEach(async () => {
    const server = await freshRedis();
    const client = server.client();
    const send = client.sendCommand.bind(client);
    kept = [];
    sent = [];
    let isKeeping = true;
    client.sendCommand = (...call) => {
      if (!call[0].name.startsWith('eval')) return send(...call);
      if (!isKeeping) {
        sent.push(call[0].promise);
        return send(...call);
      }
      kept.push(call);
      return call[0].promise;
    };
    const slots = Array.from({ length: 16_384 }, () => ['old:1']);
    Object.assign(client, { isCluster: true, slots, nodes: () => [] });
    switchMaster = () => {
      isKeeping = false;
      slots.fill(['new:1']);
    };
    sendAgain = () => Promise.all(kept.map((each) => send(...each)));
    backend = createRedisBackend(client, { commandTimeoutMs: 100 });
    locks = new LockService(backend, resolveOptions());
    const admin = server.client();
    keys = async () => (await admin.keys('*')).filter((name) => !name.includes('fence'));
    other = createRedisBackend(admin, { keyLayout: 'slotted' });
  });

  const lock = async (body: () => unknown, minHoldMs = 0): Promise<unknown> => {
    const running = locks.lock(body, { key: KEY, minHoldMs });
    await eventually(() => expect(kept).toHaveLength(1));
    // What was sent later has failed as well, so the first attempt has.
    await expect(backend.isLocked({ key: 'other' })).rejects.toMatchObject({ code: 'NetworkTimeout' });
    switchMaster();
    return running;
  };
  const nothingIsLeft = (): Promise<void> =>
    eventually(async () => expect(await keys()).toStrictEqual([]), { timeoutMs: 5_000 });

  it('leaves no lock behind when it runs after the release', async () => {
    await lock(() => 1);
    await sendAgain();
    await nothingIsLeft();
  });

  it('leaves no lock behind when its connection was lost, and it runs after the first release', async () => {
    const acquiring = backend.acquire({ key: KEY, ttlMs: TTL_MS });
    await eventually(() => expect(kept).toHaveLength(1));
    switchMaster();
    const [[lost]] = kept as [Parameters<Redis['sendCommand']>];
    lost.reject(new Error('Connection is closed.'));
    await expect(acquiring).rejects.toMatchObject({ code: 'ServiceUnavailable' });
    await eventually(() => expect(sent).toHaveLength(1));
    expect(await sent[0]).toBe(-1); // There was nothing to release yet.
    // What stood in the buffer of the server.
    await workerRedis()
      .client()
      .call(lost.name, ...(lost.args as string[]));
    expect(await other.isLocked({ key: KEY })).toBe(true);
    await nothingIsLeft();
  });

  it('keeps a lock with minHoldMs no longer when it runs after the body', async () => {
    await lock(() => 1, 3_000);
    await sendAgain();
    const lefts = async (): Promise<number[]> =>
      Promise.all((await keys()).map((key) => workerRedis().client().pttl(key)));
    await eventually(async () => expect(Math.max(...(await lefts()))).toBeLessThanOrEqual(3_000));
    workerRedis().clock.advance(3_001);
    expect(await locks.isLocked({ key: KEY })).toBe(false);
  });

  it('leaves no waiter behind when somebody else has the lock by then', async () => {
    await lock(() => 1);
    const held = granted(await other.acquire({ key: KEY, ttlMs: TTL_MS }));
    await sendAgain();
    await eventually(async () =>
      expect((await keys()).filter((name) => name.includes('queue'))).toStrictEqual([]),
    );
    expect(await held.release()).toStrictEqual({ ok: true });
    await nothingIsLeft();
  });

  it('changes nothing while the body runs', async () => {
    await lock(async () => {
      await sendAgain();
      for (let i = 0; i < 10; i++) expect(await locks.isLocked({ key: KEY })).toBe(true);
    });
    await nothingIsLeft();
  });
});
