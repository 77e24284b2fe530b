import { Logger } from '@nestjs/common';
import type { BudgetUnavailableError } from '../../lib/budget/budget.errors.js';
import { resolveBudgetDefaults } from '../../lib/budget/budget.options.js';
import { RedisBudgetBackend } from '../../lib/budget/redis/budget.redis-backend.js';
import { BudgetService } from '../../lib/budget/budget.service.js';
import type { BudgetLimit, Quarantined } from '../../lib/budget/budget.types.js';
import type { RedisClient } from '../../lib/redis/redis.client.js';
import { openConnection } from '../../lib/redis/redis.connect.js';
import { ScriptRunner } from '../../lib/script/script-runner.js';
import { eventually } from '../support/eventually.js';
import { closeClients, freshRedis, workerRedis } from '../support/redis.js';
import { startRedisServer } from '../support/redis-server.js';
import { startTcpProxy, type TcpProxy } from '../support/tcp-proxy.js';

const HOUR_MS = 3_600_000;
const LIFETIME: BudgetLimit[] = [{ scope: 'user', period: 'lifetime', limit: 100 }];

const serviceOn = (client: RedisClient, limits: BudgetLimit[] = LIFETIME, timeoutMs = 5_000): BudgetService =>
  new BudgetService(
    new RedisBudgetBackend(new ScriptRunner(client, timeoutMs), { keyPrefix: 'test', retentionMs: 900_000 }),
    resolveBudgetDefaults({ limits, reaper: false }),
  );

const direct = (limits?: BudgetLimit[]): BudgetService => serviceOn(workerRedis().client(), limits);

const keys = ['b', 'h', 'x', 'g'].map((name) => `test/budget:{default}:${name}`);

const balanceOf = async (budgets: BudgetService): Promise<string> => {
  const [balance] = await budgets.balance({ scope: 'user' });
  return `${balance?.committed}/${balance?.reserved}/${balance?.available}`;
};

beforeEach(async () => {
  closeClients();
  await freshRedis();
});

describe('a reply that is lost after the script ran', () => {
  let proxy: TcpProxy;
  let client: RedisClient;
  let far: BudgetService;
  let near: BudgetService;

  beforeEach(async () => {
    proxy = await startTcpProxy(workerRedis().port);
    client = openConnection({ host: proxy.host, port: proxy.port, retryStrategy: () => 20 });
    client.on?.('error', () => {});
    far = serviceOn(client);
    near = direct();
    await far.balance({ scope: 'user' });
  });

  afterEach(async () => {
    client.disconnect?.();
    await proxy.stop();
  });

  it('is asked for again by finalize, and counts once', async () => {
    await far.reserve({ scopes: ['user'], amount: 60, id: 'a' });
    proxy.cutAfterRequest();
    expect(await far.finalize({ id: 'a' }, 25)).toMatchObject({
      ok: true,
      committed: 25,
      released: 35,
      replayed: true,
    });
    expect(await balanceOf(near)).toBe('25/0/75');
  });

  it('of an outage after the body leaves its answer, and is counted when Redis is back', async () => {
    const warned = jest.spyOn(Logger.prototype, 'warn').mockImplementation(() => {});
    const answer = await far.run(
      async () => {
        await proxy.refuse();
        return 'the answer that was paid for';
      },
      { scopes: ['user'], amount: 60, id: 'a', actual: () => 25 },
    );
    expect(answer).toBe('the answer that was paid for');
    expect(warned.mock.calls.join()).toMatch(/could not be settled yet/);
    warned.mockRestore();
    expect(await balanceOf(near)).toBe('0/60/40');
    await proxy.restore();
    await eventually(async () => expect(await balanceOf(near)).toBe('25/0/75'));
  });

  const operations: [string, (budgets: BudgetService) => Promise<{ ok: boolean }>, string][] = [
    ['reserve', (budgets) => budgets.reserve({ scopes: ['user'], amount: 10, id: 'new' }), '40/10/50'],
    ['charge', (budgets) => budgets.charge({ scopes: ['user'], amount: 10, id: 'new' }), '50/0/50'],
    ['refund', (budgets) => budgets.refund({ id: 'spent' }, 10, 'r'), '30/0/70'],
    [
      'credit',
      (budgets) => budgets.credit({ scope: 'user', period: 'lifetime', amount: 10, id: 'k' }),
      '40/0/70',
    ],
  ];

  it.each(operations)(
    'leaves %s to be repeated with its id, and counts once',
    async (_, operation, after) => {
      await near.charge({ scopes: ['user'], amount: 40, id: 'spent' });
      proxy.cutAfterRequest();
      await expect(operation(far)).rejects.toMatchObject({
        name: 'BudgetUnavailableError',
        code: 'ServiceUnavailable',
      });
      expect(await balanceOf(near)).toBe(after);
      expect(await operation(far)).toMatchObject({ ok: true, replayed: true });
      expect(await balanceOf(near)).toBe(after);
      expect(await near.verify()).toMatchObject({ ok: true });
    },
  );

  it('does not leave a hold that nobody knows the id of', async () => {
    proxy.cutAfterRequest();
    await expect(far.reserve({ scopes: ['user'], amount: 60 })).rejects.toMatchObject({
      name: 'BudgetUnavailableError',
    });
    await eventually(async () => expect(await balanceOf(near)).toBe('0/0/100'));
    expect((await near.list()).records).toMatchObject([{ state: 'aborted', amount: 60 }]);
  });

  it('does not leave the job of a run pending, nor take the hold of who has it', async () => {
    const spec = { scopes: ['user'], amount: 60, id: 'job' };
    proxy.cutAfterRequest();
    await expect(far.run(() => fail('the body ran'), spec)).rejects.toMatchObject({
      name: 'BudgetUnavailableError',
    });
    await eventually(async () => expect(await near.get({ id: 'job' })).toMatchObject({ state: 'aborted' }));
    await near.reserve({ ...spec, renew: true });
    proxy.cutAfterRequest();
    await expect(far.run(() => fail('the body ran'), spec)).rejects.toMatchObject({
      name: 'BudgetUnavailableError',
    });
    await eventually(() => far.balance({ scope: 'user' }));
    expect(await near.get({ id: 'job' })).toMatchObject({ state: 'pending', generation: 2 });
    expect(await far.run(() => 'other', { ...spec, id: 'other', amount: 1 })).toBe('other');
  });

  it('spends two round trips on a reserve and its finalize', async () => {
    await far.reserve({ scopes: ['user'], amount: 1, id: 'warm' });
    await far.finalize({ id: 'warm' }, 1);
    const before = proxy.sent.chunks;
    for (let i = 0; i < 10; i++) {
      await far.reserve({ scopes: ['user'], amount: 1, id: `${i}` });
      await far.finalize({ id: `${i}` }, 1);
    }
    expect(proxy.sent.chunks - before).toBe(20);
  });
});

describe('a Redis that is away', () => {
  it('is told as such: never as exceeded, never as finalized', async () => {
    await using server = await startRedisServer();
    const client = openConnection({ host: server.host, port: server.port, retryStrategy: () => 50 });
    client.on?.('error', () => {});
    const budgets = serviceOn(client, LIFETIME, 150);
    const hold = await budgets.reserve({ scopes: ['user'], amount: 100 });
    expect(hold.ok).toBe(true);
    await server.kill();

    const calls: Record<string, () => Promise<unknown>> = {
      reserve: () => budgets.reserve({ scopes: ['user'], amount: 1, id: 'x' }),
      charge: () => budgets.charge({ scopes: ['user'], amount: 1, id: 'y' }),
      finalize: () => budgets.finalize({ id: 'a' }, 1),
      abort: () => budgets.abort({ id: 'a' }),
      balance: () => budgets.balance({ scope: 'user' }),
      run: () => budgets.run(() => fail('the body ran'), { scopes: ['user'], amount: 1, id: 'z' }),
    };
    for (const [name, call] of Object.entries(calls)) {
      const error = await call().then(
        () => fail(`${name} came through`),
        (reason: BudgetUnavailableError) => reason,
      );
      expect([name, error.name, error.code]).toEqual([name, 'BudgetUnavailableError', 'ServiceUnavailable']);
    }
    client.disconnect?.();
  });
});

describe('a full server', () => {
  it('refuses what needs memory, and lets every hold be extended and settled', async () => {
    await using server = await startRedisServer();
    const redis = server.client();
    const budgets = serviceOn(redis, [{ scope: 'user', period: { windowMs: HOUR_MS }, limit: 100 }]);
    for (const id of ['spent', 'given back', 'kept', 'late'])
      await budgets.reserve({ scopes: ['user'], amount: 10, id, ttlMs: id === 'late' ? 1 : HOUR_MS });
    await redis.config('SET', 'maxmemory', '1');
    const refused = {
      name: 'BudgetUnavailableError',
      code: 'ServiceUnavailable',
      context: { retryAfter: 1 },
    };
    await expect(budgets.reserve({ scopes: ['user'], amount: 1, id: 'new' })).rejects.toMatchObject(refused);
    await expect(budgets.charge({ scopes: ['user'], amount: 1, id: 'new' })).rejects.toMatchObject(refused);

    expect(await budgets.extend({ id: 'kept' }, 3 * HOUR_MS)).toMatchObject({ ok: true });
    expect(await budgets.finalize({ id: 'late' }, 3)).toMatchObject({ ok: true, late: true });
    expect(await budgets.finalize({ id: 'spent' }, 5)).toMatchObject({ ok: true });
    expect(await budgets.abort({ id: 'given back' })).toMatchObject({ ok: true });
    await expect(budgets.reserve({ scopes: ['user'], amount: 1, id: 'new' })).rejects.toMatchObject(refused);
    expect(await balanceOf(budgets)).toBe('8/10/82');
    expect(await budgets.verify()).toEqual({ ok: true, problems: [], quarantined: [] });
  });
});

describe('the keys of a root', () => {
  const windowed: BudgetLimit[] = [{ scope: 'user', period: { windowMs: HOUR_MS }, limit: 100 }];
  const ttls = (): Promise<number[]> => {
    const redis = workerRedis().client();
    return Promise.all(keys.map((key) => redis.pttl(key)));
  };

  it('end together after the last window, and are moved forward only', async () => {
    workerRedis().clock.set(Date.parse('2027-01-01T00:10:00Z'));
    const budgets = direct(windowed);
    await budgets.charge({ scopes: ['user'], amount: 1, id: 'a' });
    const first = await ttls();
    for (const ttl of first) expect(ttl).toBeGreaterThan(50 * 60_000 + 900_000);

    await budgets.reserve({ scopes: ['user'], amount: 1, id: 'b', ttlMs: 20 * HOUR_MS });
    const second = await ttls();
    for (const ttl of second) expect(ttl).toBeGreaterThan(20 * HOUR_MS + 900_000);
    await budgets.abort({ id: 'b' });
    await budgets.charge({ scopes: ['user'], amount: 1, id: 'c' });
    for (const ttl of await ttls()) expect(ttl).toBeGreaterThan(20 * HOUR_MS + 900_000);

    workerRedis().clock.advance(40 * HOUR_MS);
    expect(
      await workerRedis()
        .client()
        .exists(...keys),
    ).toBe(0);
    expect(await balanceOf(budgets)).toBe('0/0/100');
  });

  it.each<[string, (budgets: BudgetService) => Promise<unknown>]>([
    ['a lifetime is counted', () => direct().charge({ scopes: ['user'], amount: 1, id: 'lifetime' })],
    [
      'a limit is set',
      (budgets) => budgets.setLimit({ scope: 'user', period: { windowMs: HOUR_MS }, limit: 5 }),
    ],
  ])('stay once %s', async (_, operation) => {
    const budgets = direct(windowed);
    await budgets.charge({ scopes: ['user'], amount: 1, id: 'a' });
    await operation(budgets);
    await budgets.reserve({ scopes: ['user'], amount: 1, id: 'b' });
    expect(await ttls()).toEqual([-1, -1, -1, -1]);
  });

  it.each<[string, string, string]>([
    ['a counter', 'test/budget:{default}:b', 'c|user|lifetime|0'],
    ['a record', 'test/budget:{default}:h', 'o|a'],
  ])('fail before anything is written when %s was not written by us', async (_, key, field) => {
    const redis = workerRedis().client();
    await redis.hset(key, field, 'foreign');
    await expect(direct().reserve({ scopes: ['user'], amount: 1, id: 'a' })).rejects.toMatchObject({
      code: 'Internal',
      hint: expect.stringMatching(/Do not delete the key.*repair: true/) as string,
    });
    expect(await redis.keys('*')).toEqual([key]);
    expect(await redis.hgetall(key)).toEqual({ [field]: 'foreign' });
  });
});

describe('a record that cannot be read', () => {
  const [counters = '', records = '', pending = ''] = keys;
  const UNKNOWN = 'three words only';
  const COUNTER = 'c|user|lifetime|0';
  const two: BudgetLimit[] = [...LIFETIME, { scope: 'org', period: 'lifetime', limit: 100 }];
  let logged: jest.SpyInstance;
  let set: BudgetUnderTest;
  let redis: ReturnType<ReturnType<typeof workerRedis>['client']>;
  interface BudgetUnderTest {
    budgets: BudgetService;
    told: [root: string, records: readonly Quarantined[]][];
  }

  const open = (): BudgetUnderTest => {
    const told: BudgetUnderTest['told'] = [];
    const budgets = new BudgetService(
      new RedisBudgetBackend(new ScriptRunner(workerRedis().client(), 5_000), {
        keyPrefix: 'test',
        retentionMs: 900_000,
      }),
      resolveBudgetDefaults({ limits: two, reaper: false }),
      { onQuarantined: (root, list) => told.push([root, list]) },
    );
    return { budgets, told };
  };

  /** A hold of each kind, which expires in a minute, and one that stays. */
  beforeEach(async () => {
    logged = jest.spyOn(Logger.prototype, 'error').mockImplementation(() => {});
    redis = workerRedis().client();
    set = open();
    await set.budgets.reserve({ scopes: ['user'], amount: 40, id: 'bad', ttlMs: 60_000 });
    await set.budgets.reserve({ scopes: ['user'], amount: 7, id: 'good', ttlMs: 60_000 });
    await set.budgets.reserve({ scopes: ['user'], amount: 3, id: 'stays', ttlMs: HOUR_MS });
  });
  afterEach(() => logged.mockRestore());

  const expectQuarantined = async (field: string, text: string, reserved: number | null): Promise<void> => {
    const { budgets, told } = set;
    expect(await redis.hget(records, `q|o|bad`)).toBe(text);
    expect(await budgets.verify()).toMatchObject({
      ok: false,
      problems: [expect.stringContaining('I2: reserved is 43, but the pending holds add up to 3')],
      quarantined: [{ field, reserved }],
    });
    await budgets.reap();
    await budgets.reap();
    expect(told).toEqual([['default', [{ field, reserved }]]]);
    expect(logged.mock.calls).toEqual([
      [
        expect.stringMatching(
          reserved === null ? /^BUDGET_RECORD_UNREADABLE:.*unknown amount/ : /keeps 40 reserved\./,
        ),
      ],
    ]);
  };

  it.each([
    ['record', 0, null],
    ['fixed part', 14, 40],
  ])(
    'whose %s is foreign is set aside when it is due, byte for byte, and stops nobody',
    async (_, wordsLeft, reserved) => {
      const { budgets } = set;
      const words = String(await redis.hget(records, 'o|bad')).split(' ', wordsLeft);
      const before = [...words, UNKNOWN].join(' ');
      await redis.hset(records, 'o|bad', before);
      await expect(budgets.finalize({ id: 'bad' }, 1)).rejects.toMatchObject({ code: 'Internal' });
      expect((await budgets.list()).records.map(({ id }) => id).sort()).toEqual(['good', 'stays']);
      workerRedis().clock.advance(60_001);
      expect(await budgets.reserve({ scopes: ['user'], amount: 50, id: 'new' })).toMatchObject({ ok: true });
      expect(await budgets.abort({ id: 'new' })).toMatchObject({ ok: true });
      expect(await balanceOf(budgets)).toBe('0/43/57');
      expect(await budgets.get({ id: 'good' })).toMatchObject({ state: 'expired' });
      await expectQuarantined('o|bad', before, reserved);

      expect(await budgets.verify('default', { repair: true })).toEqual({
        ok: true,
        problems: [],
        quarantined: [],
      });
      expect(await balanceOf(budgets)).toBe('0/3/97');
      expect(await budgets.reserve({ scopes: ['user'], amount: 97, id: 'bad' })).toMatchObject({ ok: true });
    },
  );

  it('among ended ones does not stop the reaper', async () => {
    const { budgets } = set;
    await budgets.finalize({ id: 'bad' }, 4);
    await budgets.finalize({ id: 'good' }, 5);
    await redis.hset(records, 'o|bad', UNKNOWN);
    workerRedis().clock.advance(900_001);
    expect(await budgets.reap()).toMatchObject({ purged: 1 });
    await budgets.reap();
    expect(set.told).toEqual([['default', [{ field: 'o|bad', reserved: null }]]]);
    expect(await balanceOf(budgets)).toBe('9/3/88');
  });

  it('whose counter is foreign expires all the same, and only that scope waits for a repair', async () => {
    const { budgets } = set;
    await budgets.reserve({ scopes: ['org', 'user'], amount: 20, id: 'both', ttlMs: 60_000 });
    await redis.hset(counters, COUNTER, UNKNOWN);
    workerRedis().clock.advance(60_001);
    expect(await budgets.reserve({ scopes: ['org'], amount: 100, id: 'new' })).toMatchObject({ ok: true });
    await expect(budgets.balance({ scope: 'user' })).rejects.toMatchObject({ code: 'Internal' });
    expect(await redis.hget(counters, COUNTER)).toBe(UNKNOWN);
    expect(await budgets.verify()).toMatchObject({
      ok: false,
      quarantined: [{ field: COUNTER, reserved: null }],
    });
    expect(await budgets.verify('default', { repair: true })).toMatchObject({ ok: true });
    expect(await balanceOf(budgets)).toBe('0/3/97');
  });

  it.each([
    ['record', records, 'o|bad', '2 p h and more'],
    ['counter', counters, COUNTER, '2 7 7'],
  ])('because a newer version has written its %s stays in its place', async (what, key, field, text) => {
    const { budgets } = set;
    const before = (await redis.hget(key, field)) ?? '';
    await redis.hset(key, field, text);
    const newer = { code: 'ServiceUnavailable', message: expect.stringMatching(/newer version/) as string };
    await expect(budgets.finalize({ id: 'bad' }, 1)).rejects.toMatchObject(newer);
    await expect(budgets.verify()).rejects.toMatchObject(newer);
    await expect(budgets.verify('default', { repair: true })).rejects.toMatchObject(newer);
    workerRedis().clock.advance(60_001);
    expect(await budgets.reserve({ scopes: ['org'], amount: 100, id: 'new' })).toMatchObject({ ok: true });
    expect(await budgets.reap()).toMatchObject({ expired: what === 'record' ? ['good'] : [] });
    expect(await redis.hget(key, field)).toBe(text);
    const dueMs = Number(await redis.zscore(pending, 'bad'));
    expect(dueMs - workerRedis().clock.now()).toBeGreaterThan(30_000);

    await redis.hset(key, field, before);
    workerRedis().clock.advance(60_001);
    expect(await balanceOf(budgets)).toBe('0/3/97');
    expect(await budgets.verify()).toMatchObject({ ok: true });
    expect(set.told).toEqual([]);
  });

  it('is none where a checkout before has noted a limit of setLimit without its credits', async () => {
    const { budgets } = set;
    await budgets.setLimit({ scope: 'user', period: 'lifetime', limit: 500 });
    const sums = (await redis.hget(counters, COUNTER)) ?? '';
    await redis.hset(counters, COUNTER, `${sums}=500`);
    expect(await budgets.verify()).toEqual({ ok: true, problems: [], quarantined: [] });
    expect(await budgets.charge({ scopes: ['user'], amount: 1, id: 'next' })).toMatchObject({ ok: true });
  });

  it('of a newer version is not purged, whether it has ended or a counter of it has', async () => {
    const { budgets } = set;
    await budgets.charge({ scopes: ['user'], amount: 1, id: 'old' });
    const before = (await redis.hget(counters, COUNTER)) ?? '';
    await redis.hset(counters, COUNTER, '2 7 7');
    workerRedis().clock.advance(900_001);
    expect(await budgets.reap()).toMatchObject({ purged: 0 });
    await redis.hset(counters, COUNTER, before);
    workerRedis().clock.advance(60_001);
    expect((await budgets.reap()).purged).toBeGreaterThan(0);
    expect(await budgets.verify()).toMatchObject({ ok: true });
  });
});

describe('a Cluster', () => {
  it('serves budgets of any root', async () => {
    await using server = await startRedisServer({ cluster: true });
    const cluster = server.cluster();
    const budgets = serviceOn(cluster);
    for (const root of ['a', 'b', '{x}y', 'r'.repeat(300)]) {
      const hold = await budgets.reserve({ root, scopes: ['user'], amount: 60 });
      expect(hold).toMatchObject({ ok: true, root });
      if (hold.ok) expect(await budgets.finalize(hold, 50)).toMatchObject({ ok: true });
      expect(await budgets.verify(root)).toEqual({ ok: true, problems: [], quarantined: [] });
    }
  });
});

describe('verify', () => {
  it('finds what does not add up', async () => {
    const budgets = direct();
    await budgets.reserve({ scopes: ['user'], amount: 10, id: 'a' });
    await budgets.charge({ scopes: ['user'], amount: 5, id: 'b' });
    expect(await budgets.verify()).toEqual({ ok: true, problems: [], quarantined: [] });
    const redis = workerRedis().client();
    await redis.hset(keys[0] as string, 'c|user|lifetime|0', '1 6 11 0 0 0');
    await redis.zrem(keys[2] as string, 'a');
    const { ok, problems } = await budgets.verify();
    expect(ok).toBe(false);
    expect(problems.map((problem) => problem.slice(0, 2)).sort()).toEqual(['I2', 'I3', 'I5']);
  });
});

/** Throws, because the mocked function should not have been called. */
function fail(what: string): never {
  throw new Error(what);
}
