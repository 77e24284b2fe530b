import { hashKey } from '../../lib/core/keys.js';
import { hours, minutes } from '../../lib/core/time.js';
import { MemoryLimitBackend } from '../../lib/limit/memory/limit.memory-backend.js';
import { RedisLimitBackend } from '../../lib/limit/redis/limit.redis-backend.js';
import { ScriptRunner } from '../../lib/script/script-runner.js';
import { onEachClient } from '../support/on-each-client.js';
import { freshRedis } from '../support/redis.js';
import { allBlocked, describeBlocked, inOrder } from './blocked.contract.js';
import { BULK, type LimitHarness, limiterOn, LOGIN } from './limit.contract.js';

describeBlocked('memory', async () => {
  let nowMs = Date.now();
  return { backend: new MemoryLimitBackend({ now: () => nowMs }), advance: (ms) => (nowMs += ms) };
});

describe('10,000 blocks', () => {
  it.each([
    ['memory', async () => new MemoryLimitBackend()],
    [
      'Redis',
      async () => new RedisLimitBackend(new ScriptRunner((await freshRedis()).client(), 10_000), 'test'),
    ],
  ])(
    'are all on the list, and one of them is ended by its tag, on %s',
    async (_, backend) => {
      const limiter = limiterOn(await backend());
      const keys = Array.from({ length: 10_000 }, (_each, i) => `k${i}`);
      while (keys.length > 0)
        await Promise.all(keys.splice(0, 500).map((key) => limiter.block(key, BULK, hours(1))));
      const items = await allBlocked(limiter, { limit: 1_000 });
      expect(new Set(items.map(({ tag }) => tag)).size).toBe(10_000);
      expect(await limiter.unblock({ tag: hashKey('k7777') })).toStrictEqual({ unblocked: 1 });
      expect(await limiter.peek('k7777', BULK)).toMatchObject({ allowed: true });
      expect(await limiter.peek('k7778', BULK)).toMatchObject({ allowed: false });
    },
    180_000, // On a machine that is busy with much else it took a minute.
  );
});

onEachClient(describeBlocked, (client, { clock }): LimitHarness => {
  clock.hold();
  return {
    backend: new RedisLimitBackend(new ScriptRunner(client, 10_000), 'a[b]*?'),
    advance: (ms) => clock.advance(ms),
  };
});

const PREFIX = 'syncguard/abuse_limiter';

describe('blocks on Redis', () => {
  const setUp = async () => {
    const redis = await freshRedis();
    const client = redis.client();
    return {
      client,
      limiter: limiterOn(new RedisLimitBackend(new ScriptRunner(client, 10_000), 'syncguard')),
    };
  };
  /** Leaves what an older version has left: blocks, and nobody who says whose they are. */
  const forgetWhose = async ({ client }: Awaited<ReturnType<typeof setUp>>): Promise<void> => {
    for (const name of await client.keys('*:whose:*')) await client.del(name);
  };

  it('that an older version has set have the tag of their keys, and no policy', async () => {
    const app = await setUp();
    const { client, limiter } = app;
    await limiter.block('ann', LOGIN, hours(1), 'spam');
    await limiter.block('ann', BULK, hours(1));
    await forgetWhose(app);
    const tags = (await client.keys('*')).map((name) => /\{(.{16})\}$/.exec(name)?.[1] as string);
    const items = await allBlocked(limiter);
    expect(items.map(({ tag }) => tag).sort()).toStrictEqual(tags.sort());
    for (const item of items) expect(item).not.toHaveProperty('policy');
    expect(await allBlocked(limiter, { policy: 'login' })).toStrictEqual([]);
    expect(await limiter.unblock({ tag: hashKey('ann') })).toStrictEqual({ unblocked: 0 });
    expect(await limiter.unblock({ tag: tags[0] as string, policy: 'login' })).toStrictEqual({
      unblocked: 0,
    });
    for (const tag of tags) expect(await limiter.unblock({ tag })).toStrictEqual({ unblocked: 1 });
    expect(await client.keys(`${PREFIX}:block:*`)).toStrictEqual([]);
  });

  it('look to an older version as its own do', async () => {
    const { client, limiter } = await setUp();
    for (let i = 0; i < 5; i++) await limiter.check('ann', LOGIN);
    for (let i = 0; i < 4; i++) await limiter.check('ann', { ...BULK, blockMs: minutes(1) });
    const [block] = await client.keys(`${PREFIX}:block:*`);
    const [window] = await client.keys(`${PREFIX}:fixed:*`);
    expect(await client.get(block as string)).toBe('temp 5 5 60000');
    expect(await client.get(window as string)).toMatch(/^temp 4 4 60000 {2}\d{13} \d{13} 0$/);
  });

  it('are shown beside what other programs keep under such names, and leave it as it is', async () => {
    const { client, limiter } = await setUp();
    await client.rpush(`${PREFIX}:block:{aaaaaaaaaaaaaaaa}`, 'theirs');
    await client.set(`${PREFIX}:block:{bbbbbbbbbbbbbbbb}`, 'theirs', 'PX', 60_000);
    await client.hset(`${PREFIX}:fixed:{cccccccccccccccc}`, 'theirs', 1);
    await client.set(`${PREFIX}:fixed:{dddddddddddddddd}`, 'theirs');
    await client.set(`${PREFIX}:bogus:{x}`, 'theirs');
    await limiter.block('ann', LOGIN, hours(1));
    const [whose] = await client.keys(`${PREFIX}:whose:*`);
    expect(inOrder(await allBlocked(limiter))).toStrictEqual([`login ${hashKey('ann')} manual`]);
    await client.del(whose as string);
    await client.rpush(whose as string, 'theirs');
    const [item] = await allBlocked(limiter);
    expect(item).toMatchObject({ scope: 'manual', tag: whose?.slice(-17, -1) });
    for (const letter of 'abcd')
      expect(await limiter.unblock({ tag: letter.repeat(16) })).toStrictEqual({ unblocked: 0 });
    expect(await client.keys(`${PREFIX}:*:{????????????????}`)).toHaveLength(6);
  });

  it('without an end are in force, and so on the list', async () => {
    const { client, limiter } = await setUp();
    await limiter.block('ann', LOGIN, hours(1));
    for (const name of await client.keys('*')) await client.persist(name);
    const [item] = await allBlocked(limiter);
    expect(item?.endsAtMs).toBeGreaterThan(Date.now() + hours(1) - 30_000);
  });

  it('are all gone from the denials that a process remembers', async () => {
    const { client } = await setUp();
    const backend = new RedisLimitBackend(new ScriptRunner(client, 10_000), 'syncguard');
    const limiter = limiterOn(backend, { denyCacheMs: 60_000 });
    for (let i = 0; i < 6; i++) await limiter.check('ann', LOGIN);
    expect(limiter.decisions.denyCache.size).toBe(1);
    await limiter.unblock({ tag: hashKey('ann') });
    expect(limiter.decisions.denyCache.size).toBe(0);
    expect(await limiter.check('ann', LOGIN)).toMatchObject({ allowed: true });
  });

  it('refuse a cursor that no walk has made', async () => {
    const { limiter } = await setUp();
    for (const cursor of ['x', '0 0', '-1', '99999999999999999999', `0.${'a'.repeat(40)}.0.0-5.`, '*'])
      await expect(limiter.blocked({ cursor })).rejects.toMatchObject({ code: 'InvalidArgument' });
  });
});
