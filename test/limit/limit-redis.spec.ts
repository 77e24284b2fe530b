import type { BackendDenied, LimitCheck } from '../../lib/limit/limit.backend.js';
import { resolvePolicy } from '../../lib/limit/limit.policy.js';
import { RedisLimitBackend } from '../../lib/limit/redis/limit.redis-backend.js';
import type { LimitPolicy } from '../../lib/limit/policy.types.js';
import { forgiveScript } from '../../lib/limit/redis/limit.scripts.js';
import { createCallId } from '../../lib/limit/decisions.js';
import { ScriptRunner } from '../../lib/script/script-runner.js';
import { hours, minutes, seconds } from '../../lib/core/time.js';
import { commandsOf } from '../support/commands.js';
import { freshRedis, workerRedis } from '../support/redis.js';
import { type RedisServer, startRedisServer } from '../support/redis-server.js';
import { startTcpProxy } from '../support/tcp-proxy.js';
import { API, BULK, limiterOn, LOGIN } from './limit.contract.js';

const admin = workerRedis().client();
const backendOn = (client: unknown, prefix = 'syncguard'): RedisLimitBackend =>
  new RedisLimitBackend(new ScriptRunner(client as ScriptRunner['client'], 10_000), prefix);
const backend = backendOn(admin);
const limiter = limiterOn(backend);

const checkOf = (policy: LimitPolicy, key = 'ann'): LimitCheck => {
  const resolved = resolvePolicy(policy, { isStatic: true });
  return { policy: resolved, identity: `${resolved.name}\0${key}`, cost: 1 };
};
const keyOf = async (part: string): Promise<string> => {
  const [key] = await admin.keys(`*abuse_limiter:${part}:*`);
  if (!key) throw new Error(`no key of ${part}`);
  return key;
};
const memoryOf = async (keys: string[]): Promise<number> => {
  const sizes = await Promise.all(keys.map((key) => admin.memory('USAGE', key, 'SAMPLES', 0)));
  return sizes.reduce<number>((sum, size) => sum + (size ?? 0), 0);
};

beforeEach(freshRedis);

describe('the limiter’s keys', () => {
  it('live as long as they are needed', async () => {
    workerRedis().clock.hold();
    for (let i = 0; i < 5; i++) await limiter.check('ann', LOGIN);
    const ttl = async (part: string): Promise<number> => admin.pttl(await keyOf(part));
    expect(await ttl('attempts')).toBe(minutes(11)); // the longer window, and a minute for a clock that steps back
    expect(await ttl('block')).toBe(minutes(1));
    expect(await ttl('seq')).toBe(minutes(11)); // the longer window after the block has ended
  });

  it.each<[LimitPolicy['count'], number]>([
    ['attempt', 600], // Three windows. A million addresses at a limit of a few ms need no minute of memory.
    ['failure', 60_200], // A call in flight is known for a minute.
  ])('live for a few windows where these are short: %s', async (count, ttlMs) => {
    workerRedis().clock.hold();
    const policy = { name: 'fast', limit: 3, windowMs: 200, count } as const;
    await backend.check([checkOf(policy)], createCallId());
    expect(await admin.pttl(await keyOf('attempts'))).toBe(ttlMs);
  });

  it.each<LimitPolicy>([LOGIN, API, { ...LOGIN, count: 'failure' }, { ...API, count: 'failure' }, BULK])(
    'all have a TTL after any sequence of operations, also where PERSIST took it away: %j',
    async (policy) => {
      const check = checkOf(policy);
      const withoutTtl = async (): Promise<string[]> => {
        const keys = await admin.keys('*');
        const ttls = await Promise.all(keys.map((key) => admin.pttl(key)));
        return keys.filter((_, i) => (ttls[i] as number) < 0);
      };
      workerRedis().clock.hold();
      for (let round = 0; round < 120; round++) {
        const callId = createCallId();
        await backend.check([check], callId);
        if (round % 3 === 0 && policy !== BULK) await backend.confirm(check, callId);
        if (round % 5 === 0) await backend.withdraw(check, callId, round % 10 === 0);
        if (round % 7 === 0) await backend.forgive(check, 1, createCallId());
        if (round % 11 === 0) await backend.block(check, seconds(5), 'test');
        if (round % 13 === 0) await backend.unblock(check);
        if (round % 29 === 0) await backend.reset(check);
        expect(await withoutTtl()).toEqual([]);

        // What a forgiveness of a fixed window leaves is looked at by the next forgiveness, whose a block is by the next
        // block, and both by no check.
        for (const key of await admin.keys(policy === BULK ? '*:fixed:*' : '*:[abs]*:{*'))
          await admin.persist(key);
        await backend.check([check], createCallId());
        expect(await withoutTtl()).toEqual([]);
        workerRedis().clock.advance(seconds(7));
      }
    },
  );

  it('give a block that lost its TTL the whole of it again', async () => {
    workerRedis().clock.hold();
    const policy = { ...LOGIN, escalation: { factor: 10, maxBlockMs: hours(1), strikeTtlMs: hours(2) } };
    for (let i = 0; i < 5; i++) await limiter.check('ann', policy);
    await limiter.unblock('ann', policy);
    for (let i = 0; i < 5; i++) await limiter.check('ann', policy);
    await admin.persist(await keyOf('block'));
    expect(await limiter.check('ann', policy)).toMatchObject({ allowed: false, retryAfterSecs: 600 });
    expect(await admin.pttl(await keyOf('block'))).toBe(minutes(10));
  });

  it('of a fixed window are one, which lives until the window ends, and a block', async () => {
    workerRedis().clock.hold();
    for (let i = 0; i < 5; i++) await limiter.check('ann', BULK);
    expect(await admin.keys('*')).toEqual([
      expect.stringMatching(/^syncguard\/abuse_limiter:fixed:\{[\w-]{16}\}$/),
    ]);
    expect(await admin.pttl(await keyOf('fixed'))).toBe(seconds(10));
    workerRedis().clock.advance(seconds(4));
    await limiter.forgive('ann', BULK, 1);
    await limiter.check('ann', BULK);
    expect(await admin.pttl(await keyOf('fixed'))).toBe(seconds(6));
    expect(await admin.get(await keyOf('fixed'))).toBe('3');
    await admin.persist(await keyOf('fixed'));
    expect(await limiter.check('ann', BULK)).toMatchObject({ allowed: false, retryAfterSecs: 10 });
    expect(await admin.pttl(await keyOf('fixed'))).toBe(seconds(10)); // It had no end to go on to.
    await limiter.forgive('ann', BULK, 1);
    await admin.persist(await keyOf('fixed'));
    expect(await limiter.check('ann', BULK)).toMatchObject({ allowed: true, shortCount: 3 });
    expect(await admin.pttl(await keyOf('fixed'))).toBe(seconds(10));
  });

  it.each<[string, (key: string) => Promise<unknown>]>([
    ['a List', (key) => admin.rpush(key, 'theirs')],
    ['a text', (key) => admin.set(key, 'theirs', 'PX', 60_000)],
    ['a text without an end', (key) => admin.set(key, 'theirs')],
  ])('of a fixed window are not touched where its name has %s', async (_, write) => {
    await limiter.block('ann', BULK, 1_000);
    const key = await keyOf('fixed');
    await admin.flushall();
    await write(key);
    const before = await admin.dump(key);
    // Beside a limit that could be counted.
    await expect(limiter.check('ann', [API, BULK])).rejects.toMatchObject({ code: 'InvalidArgument' });
    await expect(limiter.peek('ann', BULK)).rejects.toMatchObject({ code: 'InvalidArgument' });
    await expect(limiter.check('ann', BULK)).rejects.toMatchObject({ code: 'InvalidArgument' });
    await expect(limiter.forgive('ann', BULK)).rejects.toMatchObject({ code: 'InvalidArgument' });
    expect(await admin.keys('*')).toEqual([key]);
    expect(await admin.dump(key)).toBe(before);
  });

  it.each(['block', 'seq'])('are refused where the text of %s is not ours', async (part) => {
    for (let i = 0; i < 5; i++) await limiter.check('ann', LOGIN);
    const key = await keyOf(part);
    await admin.flushall();
    await admin.set(key, 'theirs');
    await expect(limiter.check('ann', LOGIN)).rejects.toMatchObject({ code: 'InvalidArgument' });
    await admin.pexpire(key, 1000);
    await expect(limiter.check('ann', LOGIN)).rejects.toMatchObject({ code: 'InvalidArgument' });
  });
});

describe('under attack', () => {
  it('100,000 calls while blocked add no byte, and the wait never rises', async () => {
    const check = checkOf({
      name: 'attack',
      temp: { windowMs: minutes(1), threshold: 20, blockMs: hours(1) },
    });
    for (let i = 0; i < 20; i++) await backend.check([check], createCallId());
    const keys = await admin.keys('*');
    const before = await memoryOf(keys);
    let last = Infinity;
    let rises = 0;
    for (let sent = 0; sent < 100_000; sent += 1_000) {
      const decisions = await Promise.all(
        Array.from({ length: 1_000 }, () => backend.check([check], createCallId())),
      );
      for (const [decision] of decisions) {
        const { status, retryAfterMs } = decision as BackendDenied;
        if (status !== 'denied' || retryAfterMs > last) rises++;
        last = retryAfterMs;
      }
    }
    expect(rises).toBe(0);
    expect((await admin.keys('*')).sort()).toEqual(keys.sort());
    expect(await memoryOf(keys)).toBe(before);
    expect(before).toBeLessThan(1_024);
    console.log(`limiter, memory of a blocked identity before and after 100,000 calls: ${before} B`);
  }, 120_000);

  it('an identity with 100 attempts takes at most 2.4 kB', async () => {
    const check = checkOf({ name: 'hundred', limit: 1_000, windowMs: minutes(1) });
    for (let i = 0; i < 100; i++) await backend.check([check], createCallId());
    const bytes = await memoryOf(await admin.keys('*'));
    console.log(`limiter, memory of 100 attempts: ${bytes} B`);
    expect(bytes).toBeLessThanOrEqual(2_400);
  });

  it('an identity of a fixed window takes at most 200 bytes, whatever its limit', async () => {
    const sizes: Record<string, number> = {};
    for (const limit of [100, 1_000_000]) {
      await admin.flushall();
      const check = { ...checkOf({ ...BULK, limit }), cost: limit / 100 };
      for (let i = 0; i < 100; i++) await backend.check([check], createCallId());
      sizes[limit] = await memoryOf(await admin.keys('*'));
    }
    console.log(`limiter, memory of a fixed window by its limit: ${JSON.stringify(sizes)} B`);
    for (const size of Object.values(sizes)) expect(size).toBeLessThanOrEqual(200);
  });

  it('the set never holds more than the larger threshold and the cost of a call', async () => {
    const { clock } = workerRedis();
    clock.hold();
    const check = { ...checkOf(LOGIN), cost: 3 };
    for (let i = 0; i < 200; i++) {
      await backend.check([check], createCallId());
      if (i % 4 === 0) clock.advance(seconds(20));
      expect(await admin.zcard(await keyOf('attempts'))).toBeLessThanOrEqual(12 + 3);
    }
  });

  it('of 2,000 parallel calls at threshold 101 exactly 100 are let in, from several connections', async () => {
    const check = checkOf({
      name: 'parallel',
      temp: { windowMs: minutes(1), threshold: 101, blockMs: minutes(1) },
    });
    const backends = Array.from({ length: 4 }, () => backendOn(workerRedis().client()));
    const decisions = await Promise.all(
      Array.from({ length: 2_000 }, (_, i) =>
        (backends[i % 4] as RedisLimitBackend).check([check], createCallId()),
      ),
    );
    expect(decisions.filter(([decision]) => decision?.status === 'allowed')).toHaveLength(100);
  });
});

describe('what a check costs', () => {
  it('is one round trip of at most 8 commands when allowed, 3 when blocked, and 260 bytes', async () => {
    await using proxy = await startTcpProxy(workerRedis().port);
    const client = workerRedis().client({ port: proxy.port });
    const measured = backendOn(client);
    const check = checkOf(LOGIN);
    const once = (): Promise<unknown> => measured.check([check], createCallId());
    await once(); // the server learns the script
    await once();

    const sent = { ...proxy.sent };
    await once();
    const bytes = proxy.sent.bytes - sent.bytes;
    expect(proxy.sent.chunks - sent.chunks).toBe(1);
    const allowed = await commandsOf(client, once);
    const first = await commandsOf(client, () => measured.check([checkOf(LOGIN, 'bob')], createCallId()));
    await once();
    const blocked = await commandsOf(client, once);

    console.log(
      `limiter, commands allowed ${allowed.join(' ')}, blocked ${blocked.join(' ')}, ${bytes} B in`,
    );
    expect(allowed.length).toBeLessThanOrEqual(8);
    expect(first.length).toBeLessThanOrEqual(8);
    expect(blocked.length).toBeLessThanOrEqual(3);
    expect(bytes).toBeLessThanOrEqual(260);
  });

  it('is two commands within the script in a fixed window, three if denied, four if blocked', async () => {
    const check = checkOf({ ...BULK, limit: 2 });
    const once = (): Promise<unknown> => backend.check([check], createCallId());
    await once();
    const allowed = await commandsOf(admin, once);
    const denied = await commandsOf(admin, once);
    await backend.block(check, 60_000, 'spam');
    const blocked = await commandsOf(admin, once);
    console.log(`fixed window, commands ${JSON.stringify({ allowed, denied, blocked })}`);
    expect([allowed, denied, blocked].map(({ length }) => length)).toEqual([3, 4, 5]);
  });

  it('is one round trip for several limits of one call', async () => {
    await using proxy = await startTcpProxy(workerRedis().port);
    const measured = backendOn(workerRedis().client({ port: proxy.port }));
    const checks = [checkOf(LOGIN), checkOf(API), checkOf(BULK)];
    await measured.check(checks, createCallId());
    const { chunks } = proxy.sent;
    await measured.check(checks, createCallId());
    expect(proxy.sent.chunks - chunks).toBe(1);
  });
});

describe('faults of the server and the network', () => {
  it('a reply that is lost: the user’s client sends the call again, and it counts once', async () => {
    await using proxy = await startTcpProxy(workerRedis().port);
    const client = workerRedis().client({ port: proxy.port, retryStrategy: () => 10 });
    const resending = limiterOn(backendOn(client));
    await resending.check('ann', LOGIN);
    proxy.cutAfterRequest();
    expect(await resending.check('ann', LOGIN)).toMatchObject({ allowed: true, shortCount: 2 });
    proxy.cutAfterRequest();
    await resending.forgive('ann', LOGIN, 1);
    expect(await resending.peek('ann', LOGIN)).toMatchObject({ shortCount: 1 });

    await resending.check('ann', BULK);
    proxy.cutAfterRequest();
    await resending.forgive('ann', BULK, 1);
    expect(await resending.peek('ann', BULK)).toMatchObject({ shortCount: 0 });
    proxy.cutAfterRequest();
    // The named exception: a fixed window has no ids of calls.
    expect(await resending.check('ann', BULK)).toMatchObject({ allowed: true, shortCount: 2 });
  });

  it('a call in a fixed window is taken back from the window that has counted it, and from no other', async () => {
    const script = new ScriptRunner(admin, 10_000);
    await limiter.check('ann', BULK, { cost: 2 });
    const key = await keyOf('fixed');
    const keys = { attempts: `${key}:a`, window: key, block: `${key}:b`, penalties: `${key}:p` };
    const args = { amount: 2, shortWindowMs: seconds(10), penaltiesTtlMs: seconds(10) };
    // Its own window had less than 9 s left.
    await script.run(forgiveScript, keys, { ...args, callId: 'late0001', endsInMs: seconds(9) });
    expect(await limiter.peek('ann', BULK)).toMatchObject({ shortCount: 2 });
    await script.run(forgiveScript, keys, { ...args, callId: 'late0002', endsInMs: seconds(10) });
    expect(await limiter.peek('ann', BULK)).toMatchObject({ shortCount: 0 });
  });

  it('a fixed window of an older checkout is not read', async () => {
    await limiter.check('ann', BULK);
    const key = await keyOf('fixed');
    await admin.set(
      key.replace(':fixed:', ':window:'),
      `3 ${Date.now() + 60_000} earlier1  60000`,
      'PX',
      60_000,
    );
    expect(await limiter.check('ann', BULK)).toMatchObject({ allowed: true, shortCount: 2 });
  });

  it('a block by hand holds off calls whose function has raised the limit above what a log holds', async () => {
    const policy = { name: 'plan', limit: 100, windowMs: minutes(1) };
    const raised = { ...policy, limit: 50_000 };
    expect(await limiter.check('ann', raised)).toMatchObject({ allowed: true, remaining: 49_999 });
    await limiter.block('ann', policy, minutes(5));
    for (const each of [policy, raised])
      expect(await limiter.check('ann', each)).toMatchObject({ scope: 'manual', retryAfterSecs: 300 });
    expect(await limiter.reset('ann', policy)).toEqual({ blocked: true, attempts: 1 });
    expect(await limiter.check('ann', raised)).toMatchObject({ allowed: true, shortCount: 1 });
  });

  it('a reply that cannot be read is Internal, whatever onError says', async () => {
    const broken = limiterOn(backendOn({ eval: () => Promise.resolve(['no', 'such', 'shape']) }));
    for (const onError of ['closed', 'memory', 'open'] as const)
      await expect(broken.check('ann', { ...API, onError })).rejects.toMatchObject({ code: 'Internal' });
  });
});

describe('policies known at boot and those that come with a call', () => {
  it('make no more scripts than the server should keep', async () => {
    const own = backendOn(workerRedis().client());
    await admin.script('FLUSH');
    for (let i = 1; i <= 300; i++)
      await own.check([checkOf({ name: 'many', limit: 10, windowMs: i })], createCallId());
    const scripts = /number_of_cached_scripts:(\d+)/.exec(await admin.info('memory'))?.[1];
    expect(Number(scripts)).toBe(257);
  });
});

describe('a server that is full (noeviction)', () => {
  let server: RedisServer;
  beforeEach(async () => {
    server = await startRedisServer({ args: ['--maxmemory-policy', 'noeviction'] });
  });
  afterEach(() => server.stop());

  it.each<LimitPolicy>([
    LOGIN,
    API,
    { ...LOGIN, count: 'failure' },
    { ...API, count: 'failure' },
    { ...API, count: 'success' },
    BULK,
  ])('grows by no call, of new identities and of those that have attempts to forget: %j', async (policy) => {
    const client = server.client();
    const full = backendOn(client);
    const check = (key: string): Promise<unknown> =>
      full.check([checkOf(policy, key)], createCallId()).then(
        ([decision]) => decision?.status,
        (error: { code: string }) => error.code,
      );
    await Promise.all(Array.from({ length: 200 }, (_, i) => check(`old-${i}`)));
    // Attempts are forgotten now, and their keys are still there.
    server.clock.advance(checkOf(policy).policy.rules.tiers[0].windowMs + seconds(1));
    await client.config('SET', 'maxmemory', '1');
    const sizes = async (): Promise<(number | null)[]> =>
      Promise.all((await client.keys('*')).sort().map((key) => client.memory('USAGE', key)));
    const before = await sizes();
    const answers = await Promise.all([
      ...Array.from({ length: 2_000 }, (_, i) => check(`new-${i}`)),
      ...Array.from({ length: 200 }, (_, i) => check(`old-${i}`)),
    ]);
    expect(new Set(answers)).toEqual(new Set(['ServiceUnavailable']));
    const after = await sizes();
    expect(after.length).toBeLessThanOrEqual(before.length);
    await client.config('SET', 'maxmemory', '0');
    expect(await check('new-1')).toBe('allowed');
  });

  it('goes on answering who is blocked', async () => {
    const client = server.client();
    const full = limiterOn(backendOn(client));
    for (let i = 0; i < 5; i++) await full.check('ann', LOGIN);
    await client.config('SET', 'maxmemory', '1');
    const decision = await full.check('ann', LOGIN);
    expect(decision).toMatchObject({ allowed: false, scope: 'temp' });
    expect(decision).not.toHaveProperty('degraded');
    expect(await full.check('bob', LOGIN)).toMatchObject({ allowed: true, degraded: true });
  });

  it('goes on answering who is blocked in a fixed window, or has used it up', async () => {
    const client = server.client();
    const full = limiterOn(backendOn(client));
    await full.block('ann', BULK, minutes(5), 'spam');
    for (let i = 0; i < 3; i++) await full.check('bob', BULK);
    await client.config('SET', 'maxmemory', '1');
    const blocked = await full.check('ann', BULK);
    expect(blocked).toMatchObject({ allowed: false, scope: 'manual', reason: 'spam' });
    const denied = await full.check('bob', BULK);
    expect(denied).toMatchObject({ allowed: false, scope: 'temp', shortCount: 3 });
    for (const decision of [blocked, denied]) expect(decision).not.toHaveProperty('degraded');
    expect(await full.unblock('ann', BULK)).toEqual({ blocked: true, attempts: 0 });
  });
});
