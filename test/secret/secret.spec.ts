import { inspect } from 'node:util';
import { type Redis } from 'ioredis';
import { ScriptRunner } from '../../lib/script/script-runner.js';
import { MemorySecretBackend } from '../../lib/secret/memory/secret.memory-backend.js';
import type { SecretEntry } from '../../lib/secret/memory/secret.entry.js';
import { SecretError } from '../../lib/secret/secret.errors.js';
import { resolveSecretDefaults } from '../../lib/secret/secret.options.js';
import { RedisSecretBackend } from '../../lib/secret/redis/secret.redis-backend.js';
import { secretScripts } from '../../lib/secret/redis/secret.scripts.js';
import { SecretService } from '../../lib/secret/secret.service.js';
import { eventually } from '../support/eventually.js';
import { startRedisServer } from '../support/redis-server.js';
import { onEachClient } from '../support/on-each-client.js';
import { freshRedis } from '../support/redis.js';
import { startTcpProxy, type TcpProxy } from '../support/tcp-proxy.js';
import { describeSecrets, type SecretsUnderTest, shown } from './secret.contract.js';

describeSecrets('memory', async () => {
  let offsetMs = 0;
  const backends: MemorySecretBackend[] = [];
  return {
    backend() {
      const backend = new MemorySecretBackend({ now: () => Date.now() + offsetMs });
      backends.push(backend);
      return backend;
    },
    advance: (ms) => (offsetMs += ms),
    contents: async () =>
      backends
        .flatMap((backend) => [...backend['entries']])
        .map(([tag, entry]) => `${tag} ${JSON.stringify(entry)} ${entry.content?.payload.toString()}\n`)
        .join(''),
  };
});

describe('MemorySecretBackend', () => {
  const secretsOn = (
    tombstoneMs: number,
    clock?: { now(): number },
  ): [SecretService, Map<string, SecretEntry>] => {
    const backend = new MemorySecretBackend(clock);
    return [new SecretService(backend, resolveSecretDefaults({ tombstoneMs })), backend['entries']];
  };
  const payloadsOf = (entries: Map<string, SecretEntry>): number =>
    [...entries.values()].filter(({ content }) => content).length;

  it('forgets payloads at their deadlines, then tombstones, though nothing is asked of it', async () => {
    jest.useFakeTimers();
    try {
      const [secrets, entries] = secretsOn(300);
      await secrets.create({ payload: 'p', ttlMs: 30 });
      const leased = await secrets.create({ payload: 'p', views: 1, ttlMs: 3_600_000 });
      await secrets.view(leased.id, { leaseMs: 30 });
      const failed = await secrets.create({ payload: 'p', views: 9, maxFailures: 1 });
      await secrets.view(failed.id, { leaseMs: 30 });
      await secrets.create({ payload: 'kept', views: 1 });
      await jest.advanceTimersByTimeAsync(40);
      expect(payloadsOf(entries)).toBe(1);
      expect(entries.size).toBe(4);
      await jest.advanceTimersByTimeAsync(310);
      expect(entries.size).toBe(2);
    } finally {
      jest.useRealTimers();
    }
  });

  it('looks again, at leisure, where its clock is not that of the timers', async () => {
    let nowMs = 0;
    let looks = 0;
    const [secrets, entries] = secretsOn(0, { now: () => (looks++, nowMs) });
    await secrets.create({ payload: 'p', ttlMs: 5 });
    await eventually(() => expect(looks).toBeGreaterThan(4));
    const before = looks;
    nowMs = 5;
    await eventually(() => expect(entries.size).toBe(0));
    expect(looks - before).toBeLessThan(10);
  });

  it('keeps no process alive', async () => {
    const backend = new MemorySecretBackend();
    await new SecretService(backend, resolveSecretDefaults()).create({ payload: 'p', ttlMs: 3_600_000 });
    expect([...backend['timers'].values()].map((timer) => timer.hasRef())).toStrictEqual([false]);
  });
});

/** Every key and value on the server. */
async function contentsOf(client: Redis): Promise<string> {
  const keys = await client.keys('*');
  const values = await Promise.all(keys.map(async (key) => client.hgetall(key)));
  return keys.map((key, i) => `${key} ${JSON.stringify(values[i])}\n`).join('');
}

onEachClient(describeSecrets, (client, server): SecretsUnderTest => {
  const admin = server.client();
  const runner = new ScriptRunner(client, 2_000);
  return {
    backend: () => new RedisSecretBackend(runner, 'syncguard'),
    advance: (ms) => server.clock.advance(ms),
    contents: () => contentsOf(admin),
  };
});

describe('SecretService on Redis', () => {
  let proxy: TcpProxy;
  let admin: Redis;
  let client: Redis;
  let backend: RedisSecretBackend;
  let secrets: SecretService;

  beforeEach(async () => {
    const redis = await freshRedis();
    proxy = await startTcpProxy(redis.port);
    admin = redis.client();
    // The default of most apps: commands without an answer are sent again after a lost connection.
    client = redis.client({ port: proxy.port, retryStrategy: () => 5 });
    const runner = new ScriptRunner(client, 5_000);
    // The first call of a script that the server does not have takes a second round trip.
    await Promise.all(secretScripts.map(({ lua }) => admin.script('LOAD', lua)));
    const options = resolveSecretDefaults();
    backend = new RedisSecretBackend(runner, 'app');
    secrets = new SecretService(backend, options);
    await client.ping();
  });
  afterEach(async () => {
    client.disconnect();
    await proxy.stop();
  });

  /** The server runs the command and its reply is lost, so the client sends it again. */
  async function cut<T>(call: () => Promise<T>): Promise<T> {
    await client.ping();
    proxy.cutAfterRequest();
    return call();
  }

  describe('a command that the client sends again after its reply was lost', () => {
    it('creates one secret', async () => {
      const { id, receipt, expiresAtMs } = await cut(() =>
        secrets.create({ payload: 'p', views: 2, ttlMs: 60_000 }),
      );
      expect(await secrets.status(receipt)).toMatchObject({
        state: 'live',
        viewsRemaining: 2,
        expiresAtMs,
      });
      expect((await secrets.peek(id)).ok).toBe(true);
    });

    it('costs one view, and gives the payload', async () => {
      const { id } = await secrets.create({ payload: 'p', views: 3 });
      expect(await cut(() => secrets.view(id))).toMatchObject({
        payload: 'p',
        viewsRemaining: 2,
        replayed: true,
      });
      expect(await secrets.peek(id)).toMatchObject({ viewsRemaining: 2 });
    });

    it('tells that the last view was its own', async () => {
      const { id } = await secrets.create({ payload: 'p', views: 1 });
      expect(await cut(() => secrets.view(id))).toStrictEqual({ ok: false, reason: 'burned', own: true });
    });

    it('loses no payload on lease', async () => {
      const { id } = await secrets.create({ payload: 'p', views: 1 });
      const secret = await cut(() => secrets.view(id, { leaseMs: 60_000 }));
      expect(secret).toMatchObject({ ok: true, payload: 'p', replayed: true });
      const { viewId } = shown(secret);
      expect(await cut(() => secrets.release(id, viewId!))).toMatchObject({ ok: true, viewsRemaining: 1 });
      const again = shown(await secrets.view(id, { leaseMs: 60_000 }));
      expect(await cut(() => secrets.confirm(id, again.viewId!))).toMatchObject({ ok: true, burned: true });
    });

    it('takes one try, whatever comes of it', async () => {
      const { id, receipt } = await secrets.create({ payload: 'p', ttlMs: 60_000, maxFailures: 2 });
      const one = shown(await cut(() => secrets.view(id, { leaseMs: 30_000 })));
      expect(await cut(() => secrets.release(id, one.viewId!))).toMatchObject({ failuresRemaining: 1 });
      const two = shown(await cut(() => secrets.view(id, { leaseMs: 30_000 })));
      expect(await secrets.view(id, { leaseMs: 30_000 })).toStrictEqual({ ok: false, reason: 'leased' });
      expect(await cut(() => secrets.confirm(id, two.viewId!))).toMatchObject({
        ok: true,
        failuresRemaining: 1,
      });
      const three = shown(await cut(() => secrets.view(id, { leaseMs: 30_000 })));
      expect(await cut(() => secrets.release(id, three.viewId!))).toMatchObject({ ok: true, burned: true });
      expect(await secrets.status(receipt)).toMatchObject({ ended: 'failures', viewsUsed: 1 });
    });

    it('counts one view where only time ends the secret', async () => {
      const { id } = await secrets.create({ payload: 'p', ttlMs: 60_000 });
      await cut(() => secrets.view(id));
      expect(await secrets.peek(id)).toMatchObject({ viewsUsed: 1 });
    });

    it('burns once, and says so even where a second burn finds nothing', async () => {
      const uniform = new SecretService(backend, { ...resolveSecretDefaults(), uniform: true });
      const { id } = await uniform.create({ payload: 'p', views: 1 });
      expect(await cut(() => uniform.burn(id))).toStrictEqual({ ok: true, leased: 0 });
      expect(await uniform.burn(id)).toStrictEqual({ ok: false, reason: 'not_found' });
    });
  });

  it('takes one round trip an operation, whatever comes of it', async () => {
    const created = await secrets.create({ payload: 'p', views: 2 });
    const { id, receipt } = created;
    const { viewId } = shown(await secrets.view(id, { leaseMs: 60_000 }));
    for (const call of [
      () => secrets.create({ payload: 'p', views: 1 }),
      () => secrets.peek(id),
      () => secrets.status(receipt),
      () => secrets.release(id, viewId!),
      () => secrets.view(id),
      () => secrets.view(id),
      () => secrets.confirm(id, viewId!),
      () => secrets.view(id),
      () => secrets.view('unknown'),
      () => secrets.peek('unknown'),
      () => secrets.burn(id),
    ]) {
      await client.ping();
      const { chunks } = proxy.sent;
      await call();
      expect([String(call), proxy.sent.chunks - chunks]).toStrictEqual([String(call), 1]);
    }
  });

  it('lets Redis itself drop the content when the last try lapses, and takes that back when one is settled', async () => {
    const { id, expiresAtMs } = await secrets.create({ payload: 'p', ttlMs: 60_000, maxFailures: 2 });
    const [content, record] = (await admin.keys('*')).sort() as [string, string];
    shown(await secrets.view(id, { leaseMs: 10_000 }));
    expect(await admin.pexpiretime(content)).toBe(expiresAtMs);
    const { viewId } = shown(await secrets.view(id, { leaseMs: 20_000 }));
    const lapsesAtMs = await admin.pexpiretime(content);
    expect(Math.abs(expiresAtMs! - 40_000 - lapsesAtMs)).toBeLessThan(10_000);
    expect(await admin.pexpiretime(record)).toBe(lapsesAtMs + 86_400_000);
    await secrets.confirm(id, viewId!);
    expect(await admin.pexpiretime(content)).toBe(expiresAtMs);
  });

  it('leaves what a newer version wrote as it is, and says so', async () => {
    const { id, receipt } = await secrets.create({ payload: 'p', views: 1, ttlMs: 60_000 });
    const [content, record] = (await admin.keys('*')).sort() as [string, string];
    await admin.hset(record, 'v', '2', 'opensAtMs', '4102444800000');
    const stored = () => Promise.all([content, record].map((key) => admin.hgetall(key)));
    const before = await stored();
    for (const call of [
      () => secrets.view(id),
      () => secrets.view(id, { leaseMs: 1_000 }),
      () => secrets.peek(id),
      () => secrets.burn(receipt),
      () => secrets.status(receipt),
      () => secrets.confirm(id, 'view-1'),
      () => secrets.release(id, 'view-1'),
      () => secrets.create({ id, payload: 'q', views: 1 }),
    ]) {
      const refused: unknown = await call().catch((error: unknown) => error);
      expect(refused).toBeInstanceOf(SecretError);
      expect(refused).toMatchObject({ code: 'ServiceUnavailable' });
      expect(String(refused)).toMatch(/newer version/);
      expect(await stored()).toStrictEqual(before);
    }
  });

  it('burns, shows, confirms and releases on a full server, which refuses only what makes new secrets', async () => {
    const of = (options: object): ReturnType<SecretService['create']> =>
      secrets.create({ payload: 'x'.repeat(1_000), views: 2, ttlMs: 60_000, ...options });
    const [burning, last, leasing, releasing, failing, timed] = [
      ...[await of({}), await of({ views: 1 }), await of({}), await of({})],
      ...[await of({ maxFailures: 1 }), await secrets.create({ payload: 'p', ttlMs: 60_000 })],
    ] as const;
    const leaseMs = 30_000;
    const lent = async ({ id }: { id: string }): Promise<string> =>
      shown(await secrets.view(id, { leaseMs })).viewId!;
    const [confirmed, released, failed] = [await lent(leasing), await lent(releasing), await lent(failing)];
    await admin.config('SET', 'maxmemory-policy', 'noeviction');
    await admin.config('SET', 'maxmemory', '1');
    try {
      await expect(of({})).rejects.toMatchObject({ code: 'ServiceUnavailable' });
      expect(await secrets.burn(burning.id)).toStrictEqual({ ok: true, leased: 0 });
      expect(await secrets.view(last.id)).toMatchObject({ ok: true, burned: true });
      expect(await secrets.confirm(leasing.id, confirmed)).toMatchObject({ ok: true, viewsRemaining: 1 });
      expect(await secrets.view(leasing.id, { leaseMs })).toMatchObject({ ok: true, viewsRemaining: 0 });
      expect(await secrets.release(releasing.id, released)).toMatchObject({ ok: true, viewsRemaining: 2 });
      expect(await secrets.release(failing.id, failed)).toMatchObject({ ok: true, burned: true });
      expect(await secrets.view(timed.id)).toMatchObject({ ok: true });
      expect(await secrets.status(burning.receipt)).toMatchObject({ state: 'burned', ended: 'burned' });
    } finally {
      await admin.config('SET', 'maxmemory', '0');
    }
  });

  it('lets Redis itself drop the content at the deadline, and the record a tombstone later', async () => {
    const { expiresAtMs } = await secrets.create({ payload: 'p', views: 2, ttlMs: 60_000 });
    const keys = (await admin.keys('*')).sort();
    expect(keys).toStrictEqual([
      expect.stringMatching(/^app\/secret:\{[\w-]{22}\}$/),
      expect.stringMatching(/^app\/secret:\{[\w-]{22}\}:record$/),
    ]);
    const [content, record] = keys as [string, string];
    expect(await admin.pexpiretime(content)).toBe(expiresAtMs);
    expect(await admin.pexpiretime(record)).toBe(expiresAtMs! + 86_400_000);
  });

  it('says of a meta that is no JSON that it cannot be read, and quotes none of it', async () => {
    const { id, receipt } = await secrets.create({ payload: 'p', views: 2, meta: { kind: 'key' } });
    await admin.hset((await admin.keys('*}'))[0]!, 'meta', 'their canary');
    for (const call of [() => secrets.peek(id), () => secrets.view(id)]) {
      const refused: unknown = await call().catch((error: unknown) => error);
      expect(refused).toBeInstanceOf(SecretError);
      expect(refused).toMatchObject({
        code: 'Internal',
        message: expect.stringMatching(/cannot be read/) as string,
      });
      expect(inspect(refused, { depth: 10 })).not.toContain('canary');
    }
    expect(await secrets.burn(receipt)).toMatchObject({ ok: true });
  });

  it('tells nothing of a secret whose content the server has dropped', async () => {
    const { id, receipt } = await secrets.create({ payload: 'p', views: 2 });
    await admin.del((await admin.keys('*}'))[0]!);
    const notFound = { ok: false, reason: 'not_found' };
    expect(await secrets.view(id)).toStrictEqual(notFound);
    expect(await secrets.peek(id)).toStrictEqual(notFound);
    expect(await secrets.burn(id)).toStrictEqual(notFound);
    expect(await secrets.status(receipt)).toStrictEqual(notFound);
  });

  it('takes back a secret that was made after its caller had given up', async () => {
    const server = await startRedisServer();
    try {
      const admin = server.client();
      const options = resolveSecretDefaults();
      const impatient = new ScriptRunner(server.client(), 50);
      const service = new SecretService(new RedisSecretBackend(impatient, 'app'), options);
      await service.peek('warm');
      server.pause();
      await expect(service.create({ payload: 'p', views: 1 })).rejects.toMatchObject({
        code: 'NetworkTimeout',
      });
      server.resume();
      await eventually(async () => {
        expect(await admin.info('commandstats')).toMatch(/cmdstat_unlink:calls=1/);
        expect(await admin.keys('*')).toStrictEqual([]);
      });
    } finally {
      server.resume();
      await server.stop();
    }
  });

  it('fails with a code while Redis is away', async () => {
    await proxy.refuse();
    await eventually(() => expect(client.status).not.toBe('ready'));
    const away = new ScriptRunner(client, 100);
    const options = resolveSecretDefaults();
    const service = new SecretService(new RedisSecretBackend(away, 'app'), options);
    await expect(service.view('id')).rejects.toThrow(SecretError);
    await expect(service.view('id')).rejects.toMatchObject({ code: 'ServiceUnavailable' });
  });
});
