import type { Cluster, Redis } from 'ioredis';
import { createFenceGuard } from '../../lib/assembly/lock-backends.js';
import { fenceScripts } from '../../lib/lock/redis/fence.scripts.js';
import { onEachClient } from '../support/on-each-client.js';
import { freshRedis } from '../support/redis.js';
import { type RedisServer, startRedisServer } from '../support/redis-server.js';
import { startTcpProxy } from '../support/tcp-proxy.js';
import { describeFences } from './fence.contract.js';

const write = { resource: 'order:7', fence: '000000000000007', lockId: 'A'.repeat(22) };
const later = { resource: 'order:7', fence: '000000000000008', lockId: 'B'.repeat(22) };
const set = { key: 'order:7', value: 'new' };

describeFences('memory', async () => createFenceGuard());
onEachClient(describeFences, (client) => createFenceGuard(client));

describe('a Cluster', () => {
  let server: RedisServer;
  beforeAll(async () => {
    server = await startRedisServer({ cluster: true });
  });
  afterAll(() => server.stop());
  const cluster = (keyPrefix?: string): Cluster => server.cluster({ keyPrefix });

  it('refuses a key in another slot, and says what to do', async () => {
    const fences = createFenceGuard(cluster());
    await expect(fences.apply({ ...write, set: { ...set, key: 'elsewhere' } })).rejects.toMatchObject({
      code: 'InvalidArgument',
      message: expect.stringMatching(/slot of the resource.*same text in braces/s) as string,
    });
    const tagged = { ...write, resource: '{order:7}', set: { ...set, key: '{order:7}:state' } };
    expect(await fences.apply(tagged)).toEqual({ ok: true });
  });

  it('sees the keyPrefix of the client, which is part of the slot', async () => {
    await server.client().flushall();
    const fences = createFenceGuard(cluster('app:'));
    await expect(fences.apply({ ...write, set })).rejects.toMatchObject({ code: 'InvalidArgument' });
    expect(await fences.apply({ ...write, set: { ...set, key: 'x:{order:7}' } })).toEqual({ ok: true });
    expect(await server.client().get('app:x:{order:7}')).toBe('new');
  });
});

describe('FenceGuard on Redis', () => {
  let client: Redis;
  beforeEach(async () => {
    client = (await freshRedis()).client();
  });

  it('takes the slotted layout at its word on one server', async () => {
    const fences = createFenceGuard(client, { keyLayout: 'slotted' });
    const elsewhere = { ...write, set: { ...set, key: 'elsewhere' } };
    await expect(fences.apply(elsewhere)).rejects.toMatchObject({ code: 'InvalidArgument' });
    expect(await createFenceGuard(client).apply(elsewhere)).toEqual({ ok: true });
  });

  it('writes under the very name, keeps its TTL, and never lets the last fence expire', async () => {
    await client.set('order:7', 'old', 'PX', 60_000);
    expect(await createFenceGuard(client).apply({ ...write, set })).toEqual({ ok: true });
    expect(await client.get('order:7')).toBe('new');
    expect(await client.pttl('order:7')).toBeGreaterThan(0);
    const [guard = ''] = await client.keys('syncguard/fenced:*');
    expect(guard).toMatch(/^syncguard\/fenced:\{order:7\}:[\w-]{22}$/);
    expect([await client.get(guard), await client.pttl(guard)]).toEqual([write.fence + write.lockId, -1]);
  });

  it.each([
    ['the key to set', 'order:7'],
    ['the last fence', undefined],
  ])('leaves what another program has under %s as it was', async (_, name) => {
    const fences = createFenceGuard(client);
    await fences.apply(write);
    const key = name ?? (await client.keys('syncguard/*'))[0] ?? '';
    for (const theirs of [
      () => client.rpush(key, 'theirs'),
      ...(name ? [] : [() => client.set(key, 'theirs')]),
    ]) {
      await client.del(key);
      await theirs();
      const before = await client.dump(key);
      await expect(fences.apply({ ...later, set })).rejects.toMatchObject({
        name: 'LockError',
        code: 'InvalidArgument',
      });
      expect(await client.dump(key)).toBe(before);
    }
    if (name) expect(await fences.apply({ ...write })).toEqual({ ok: true }); // The later fence was not noted.
  });

  it('answers a call that is sent again after its reply was lost, in one round trip', async () => {
    const redis = await freshRedis();
    const proxy = await startTcpProxy(redis.port);
    const viaProxy = redis.client({ port: proxy.port, retryStrategy: () => 5 });
    await Promise.all(fenceScripts.map(({ lua }) => client.script('LOAD', lua)));
    const fences = createFenceGuard(viaProxy, { commandTimeoutMs: 10_000 });
    await viaProxy.ping();
    const { chunks } = proxy.sent;
    await fences.apply({ ...write, set });
    expect(proxy.sent.chunks - chunks).toBe(1);
    proxy.cutAfterRequest();
    expect(await fences.apply({ ...write, set: { ...set, value: 'again' } })).toEqual({ ok: true });
    expect(await client.get('order:7')).toBe('again');
    viaProxy.disconnect();
    await proxy.stop();
  });
});
