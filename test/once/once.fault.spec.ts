import type { Redis } from 'ioredis';
import { onceOn } from '../support/redis-backends.js';
import { onceScripts } from '../../lib/once/redis/once.scripts.js';
import type { OnceService } from '../../lib/once/once.service.js';
import { ScriptRunner } from '../../lib/script/script-runner.js';
import { eventually } from '../support/eventually.js';
import { freshRedis } from '../support/redis.js';
import { startTcpProxy, type TcpProxy } from '../support/tcp-proxy.js';
import { codeOf, heldBody, onceService } from './support.js';

describe('OnceService behind a network that breaks', () => {
  let proxy: TcpProxy;
  let client: Redis;
  let admin: Redis;
  let once: OnceService;
  beforeEach(async () => {
    const redis = await freshRedis();
    proxy = await startTcpProxy(redis.port);
    admin = redis.client();
    client = redis.client({ port: proxy.port, retryStrategy: () => 5 });
    await Promise.all(onceScripts.map(({ lua }) => admin.script('LOAD', lua)));
    once = onceService(onceOn(new ScriptRunner(client, 10_000), 'app'));
    await client.ping();
  });
  afterEach(async () => {
    client.disconnect();
    await proxy.stop();
  });

  it('takes two round trips a run, and one a replay, a refusal and a failure to claim', async () => {
    const trips = async (call: () => Promise<unknown>): Promise<number> => {
      await client.ping();
      const { chunks } = proxy.sent;
      await call().catch(() => {});
      return proxy.sent.chunks - chunks;
    };
    const run = (payload: unknown) => once.run(() => 'x', { key: 'k', payload });
    expect(await trips(() => run(1))).toBe(2);
    expect(await trips(() => run(1))).toBe(1);
    expect(await trips(() => run(2))).toBe(1);
    expect(await trips(() => once.run(() => Promise.reject(new Error('x')), { key: 'other' }))).toBe(2);
    expect(await trips(() => once.get('k'))).toBe(1);
    expect(await trips(() => once.forget('k'))).toBe(1);
  });

  it('runs once where the reply to the claim is lost', async () => {
    let runs = 0;
    proxy.cutAfterRequest();
    expect(await once.run(() => ++runs, { key: 'k' })).toMatchObject({ value: 1, attempt: 1 });
    expect(await once.run(() => ++runs, { key: 'k' })).toMatchObject({ value: 1, replayed: true });
  });

  it('keeps one result where the reply to its end is lost', async () => {
    const body = heldBody('x');
    const running = once.run(body.fn, { key: 'k' });
    await body.started;
    proxy.cutAfterRequest();
    body.end();
    expect(await running).toMatchObject({ value: 'x' });
    expect(await once.run(() => 'y', { key: 'k' })).toMatchObject({ value: 'x', replayed: true });
  });

  it('takes a claim back whose caller has given up, so that the next call runs', async () => {
    const leaving = new AbortController();
    await client.client('NO-EVICT', 'ON').catch(() => {});
    await admin.call('CLIENT', 'PAUSE', '300', 'ALL');
    const left = codeOf(once.run(() => 'x', { key: 'k', signal: leaving.signal }));
    setImmediate(() => leaving.abort());
    expect(await left).toBe('Aborted');
    await eventually(async () =>
      expect(await once.run(() => 'y', { key: 'k' })).toMatchObject({ attempt: 1 }),
    );
  });

  it('gives the answer though the end cannot be stored, and goes on until it is', async () => {
    const body = heldBody('x');
    const events: string[] = [];
    once = onceService(
      onceOn(new ScriptRunner(client, 300), 'app'),
      {},
      {
        emit: ({ type }) => void events.push(type),
      },
    );
    const running = once.run(body.fn, { key: 'k' });
    await body.started;
    await admin.call('CLIENT', 'PAUSE', '1500', 'ALL');
    body.end();
    expect(await running).toMatchObject({ value: 'x', replayed: false });
    expect(events).toContain('uncertain');
    await eventually(async () =>
      expect(await once.get('k').catch(() => null)).toMatchObject({ state: 'done' }),
    );
    expect((await once.run(() => 'y', { key: 'k' })).value).toBe('x');
  });

  it('renews and ends on a full server', async () => {
    const body = heldBody('x');
    const running = once.run(body.fn, { key: 'k', leaseMs: 3_000 });
    await body.started;
    await admin.config('SET', 'maxmemory', '1');
    try {
      const before = (await once.get('k'))!.expiresAtMs;
      await eventually(async () => expect((await once.get('k'))!.expiresAtMs).toBeGreaterThan(before));
      expect(await codeOf(once.run(() => 'y', { key: 'new' }))).toBe('ServiceUnavailable');
      body.end();
      await running;
      expect(await once.get('k')).toMatchObject({ state: 'done' });
    } finally {
      await admin.config('SET', 'maxmemory', '0');
    }
  });

  it('leaves what a newer version wrote as it is', async () => {
    await once.run(() => 'x', { key: 'k' });
    const [name] = (await admin.keys('*')) as [string];
    await admin.set(name, 'once2 something new', 'PX', 60_000);
    expect(await codeOf(once.run(() => 'y', { key: 'k' }))).toBe('ServiceUnavailable');
    expect(await codeOf(once.forget('k'))).toBe('ServiceUnavailable');
    expect(await admin.get(name)).toBe('once2 something new');
  });
});
