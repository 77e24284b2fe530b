import { type Redis } from 'ioredis';
import { MemoryCounterBackend } from '../../lib/counter/memory/counter.memory-backend.js';
import { RedisCounterBackend } from '../../lib/counter/redis/counter.redis-backend.js';
import { counterScripts } from '../../lib/counter/redis/counter.scripts.js';
import { CounterService } from '../../lib/counter/counter.service.js';
import { ScriptRunner } from '../../lib/script/script-runner.js';
import { onEachClient } from '../support/on-each-client.js';
import { freshRedis, workerRedis } from '../support/redis.js';
import { startTcpProxy, type TcpProxy } from '../support/tcp-proxy.js';
import { type CountersUnderTest, describeCounters } from './counter.contract.js';

const DAY_MS = 86_400_000;

describeCounters('memory', async () => {
  let nowMs = 1_800_000_000_000;
  return {
    backend: new MemoryCounterBackend({ now: () => nowMs }),
    advance: (ms) => (nowMs += ms),
  };
});

onEachClient(describeCounters, (client, server): CountersUnderTest => ({
  backend: new RedisCounterBackend(new ScriptRunner(client, 10_000), { keyPrefix: 'syncguard' }),
  advance: (ms) => server.clock.advance(ms),
}));

describe('CounterService on Redis', () => {
  let proxy: TcpProxy;
  let admin: Redis;
  let client: Redis;
  let counters: CounterService;
  const theKey = async (): Promise<string> => (await admin.keys('*'))[0] as string;

  beforeEach(async () => {
    const redis = await freshRedis();
    proxy = await startTcpProxy(redis.port);
    admin = redis.client();
    client = redis.client({ port: proxy.port, retryStrategy: () => 5 });
    const runner = new ScriptRunner(client, 5_000);
    // A server that does not know a script yet costs its first call a second trip.
    await Promise.all(counterScripts.map(({ lua }) => admin.script('LOAD', lua)));
    counters = new CounterService(new RedisCounterBackend(runner, { keyPrefix: 'app' }));
    await client.ping();
  });
  afterEach(async () => {
    client.disconnect();
    await proxy.stop();
  });

  it.each([undefined, 'request 7'])(
    'counts once what is sent again after its reply was lost (id: %s)',
    async (id) => {
      await counters.increment('k', { max: 5, windowMs: DAY_MS });
      await client.ping();
      proxy.cutAfterRequest();
      expect(await counters.increment('k', { max: 5, windowMs: DAY_MS, id })).toMatchObject({
        ok: true,
        count: 2,
      });
      expect(await counters.peek('k')).toMatchObject({ count: 2 });
    },
  );

  it('takes one round trip an operation', async () => {
    for (const call of [
      () => counters.increment('k', { max: 1, windowMs: DAY_MS }),
      () => counters.increment('k', { max: 1, windowMs: DAY_MS }),
      () => counters.peek('k'),
      () => counters.reset('k'),
    ]) {
      const { chunks } = proxy.sent;
      await call();
      expect([String(call), proxy.sent.chunks - chunks]).toStrictEqual([String(call), 1]);
    }
  });

  it('heals a key that has lost its TTL, with what is left of its window', async () => {
    await counters.increment('k', { max: 1, windowMs: DAY_MS });
    for (const ok of [false, true]) {
      await admin.persist(await theKey());
      workerRedis().clock.advance(DAY_MS / 4);
      expect((await counters.increment('k', { max: ok ? 2 : 1, windowMs: DAY_MS })).ok).toBe(ok);
    }
    const ttl = await admin.pttl(await theKey());
    expect(ttl).toBeLessThanOrEqual(DAY_MS / 2);
    expect(ttl).toBeGreaterThan(DAY_MS / 2 - 5_000);
  });

  it('lets a window end whose key has lost its TTL', async () => {
    await counters.increment('k', { max: 1, windowMs: DAY_MS });
    await admin.persist(await theKey());
    workerRedis().clock.advance(DAY_MS + 1);
    expect(await counters.peek('k')).toStrictEqual({ count: 0, resetMs: 0 });
    expect(await counters.increment('k', { max: 1, windowMs: DAY_MS })).toMatchObject({ ok: true, count: 1 });
    expect(await admin.pttl(await theKey())).toBeGreaterThan(0);
  });

  it.each([
    ['a String', (key: string) => admin.set(key, 'theirs')],
    ['a List', (key: string) => admin.rpush(key, 'theirs')],
    ['a Hash of others', (key: string) => admin.hset(key, 'theirs', '1')],
    ['a Hash whose count is no number', (key: string) => admin.hset(key, 'count', 'many', 'endsAt', '1')],
  ])('refuses %s under its name, and leaves it as it was', async (_, write) => {
    await counters.increment('k', { max: 1, windowMs: DAY_MS });
    const key = await theKey();
    await admin.del(key);
    await write(key);
    const before = await admin.dump(key);
    await expect(counters.increment('k', { max: 1, windowMs: DAY_MS })).rejects.toMatchObject({
      code: 'InvalidArgument',
    });
    expect(await admin.dump(key)).toBe(before);
  });

  it('never names a key by what the user wrote', async () => {
    await counters.increment('somebody@example.com', { max: 1, windowMs: DAY_MS, id: 'private' });
    const key = await theKey();
    expect(key).toMatch(/^app\/counter:\{[\w-]{22}\}$/);
    expect(JSON.stringify(await admin.hgetall(key))).not.toContain('private');
  });
});
