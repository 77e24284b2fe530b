import 'reflect-metadata';
import type { Cluster, ClusterOptions } from 'ioredis';
import { BudgetService, CounterService, LockService, SecretService } from 'nestjs-syncguard';
import type { RedisConnection } from '../../lib/assembly/redis-connection.js';
import { redisBackends } from '../../lib/assembly/redis-backends.js';
import { toRedisFault } from '../../lib/redis/redis.errors.js';
import { resolveOptions } from '../../lib/module/syncguard.options.js';
import { slottedLayout } from '../../lib/lock/redis/lock.layout.js';
import { AbuseLimiterService } from '../../lib/limit/abuse-limiter.service.js';
import { hashTag } from '../../lib/redis/redis.keys.js';
import { ask } from '../support/engines/ask.js';
import { type RedisCluster, startRedisCluster } from '../support/engines/cluster.js';
import { eventually } from '../support/eventually.js';
import {
  connectionsWith,
  IOREDIS_VERSIONS,
  type IORedisName,
  ioredisOf,
} from '../support/ioredis-versions.js';
import type { RedisServer } from '../support/redis-server.js';
import { startTcpProxy, type TcpProxy } from '../support/tcp-proxy.js';

const budget = {
  limits: [{ scope: 'org', period: 'lifetime' as const, limit: 100 }],
  reaper: false as const,
};
const POLICY = { name: 'api', limit: 5, windowMs: 600_000, onError: 'closed' as const };

describe('on a Cluster of three masters', () => {
  let cluster: RedisCluster;
  /** One before each node: clients know the nodes by their proxies only. */
  let proxies: TcpProxy[];
  let options: ClusterOptions;
  beforeAll(async () => {
    cluster = await startRedisCluster();
    proxies = await Promise.all(cluster.servers.map(({ port }) => startTcpProxy(port)));
    await announceProxies();
    options = { slotsRefreshTimeout: 5_000, redisOptions: { disconnectTimeout: 100 } };
  });
  afterAll(async () => {
    await cluster.stop();
    await Promise.all(proxies.map((proxy) => proxy.stop()));
  });
  afterEach(async () => {
    await Promise.all(proxies.map((proxy) => proxy.restore()));
    cluster.closeClients();
    await cluster.flush();
  });

  /**
   * The nodes name their proxies to clients. A `natMap` would not do: ioredis follows a MOVED to an address that is not
   * in it by asking any node.
   */
  async function announceProxies(): Promise<void> {
    const ports = proxies.map(({ port }) => port);
    for (const [i, server] of cluster.servers.entries())
      await ask(server, 'CONFIG', 'SET', 'cluster-announce-port', ports[i] as number);
    await eventually(async () => {
      for (const server of cluster.servers) {
        const ranges = await ask<[number, number, [string, number]][]>(server, 'CLUSTER', 'SLOTS');
        expect(new Set(ranges.map(([, , [, port]]) => port))).toStrictEqual(new Set(ports));
      }
    });
  }

  const nodes = (): { host: string; port: number }[] => proxies.map(({ host, port }) => ({ host, port }));
  const theirs = (version: IORedisName): Cluster =>
    cluster.track(new (ioredisOf(version).Cluster)(nodes(), options).on('error', () => {}));

  describe.each(IOREDIS_VERSIONS)('%s', (_, version) => {
    const connections: [string, () => unknown][] = [
      ['our own connections', () => ({ nodes: nodes(), options })],
      ["a user's client", () => theirs(version)],
    ];

    let connection: RedisConnection | undefined;
    afterEach(() => connection?.close());

    async function boot(redis: unknown, commandTimeoutMs = 10_000) {
      const { RedisConnection } = connectionsWith(version);
      const resolved = resolveOptions({
        ...{ redis: redis as string, budget, commandTimeoutMs },
        limit: { commandTimeoutMs },
      });
      connection = new RedisConnection({ ...resolved, redis: redis as string });
      expect((await connection.opened()).fault).toBeUndefined();
      const backends = redisBackends(connection.runner, resolved, () => {});
      return {
        connection,
        locks: new LockService(backends.lock, resolved),
        budgets: new BudgetService(backends.budget, resolved.budget),
        secrets: new SecretService(backends.secret, resolved.secret),
        counters: new CounterService(backends.counter),
        limiter: new AbuseLimiterService(backends.limit, backends.limit, resolved),
      };
    }

    /** The server runs it, and the connection is lost in place of its reply; whichever node it goes to. */
    async function losingItsReply<T>(call: () => Promise<T>): Promise<T> {
      const [first, ...others] = proxies;
      first?.cutAfterRequest(...others);
      const result = call();
      await Promise.allSettled([result]);
      await Promise.all(proxies.map((proxy) => proxy.restore()));
      return result;
    }

    it.each(connections)('what a node ran without its reply is done once: %s', async (_name, redis) => {
      const { locks, budgets, secrets, counters, limiter } = await boot(redis());

      const lock = await losingItsReply(() => locks.acquire({ key: 'order:1', ttlMs: 60_000 }));
      if (!lock.ok) throw new Error('It was granted to this very call.');
      expect(await locks.lookup({ lockId: lock.lockId })).toMatchObject({ fence: lock.fence });
      expect(await losingItsReply(() => lock.extend(60_000))).toMatchObject({ ok: true });
      expect(await losingItsReply(() => lock.release())).toStrictEqual({ ok: true });
      expect(await locks.isLocked({ key: 'order:1' })).toBe(false);

      const hold = await losingItsReply(() => budgets.reserve({ scopes: ['org'], amount: 7 }));
      if (!hold.ok) throw new Error('There is room for it.');
      expect(await budgets.balance({ scope: 'org' })).toMatchObject([{ reserved: 7, committed: 0 }]);
      expect(await losingItsReply(() => budgets.finalize(hold, 5))).toMatchObject({ ok: true, committed: 5 });
      expect(
        await losingItsReply(() => budgets.charge({ scopes: ['org'], amount: 3, id: 'one' })),
      ).toMatchObject({ ok: true });
      expect(await budgets.balance({ scope: 'org' })).toMatchObject([{ reserved: 0, committed: 8 }]);

      const { id, receipt } = await losingItsReply(() =>
        secrets.create({ payload: 'it', views: 2, ttlMs: 60_000 }),
      );
      expect(await losingItsReply(() => secrets.view(id))).toMatchObject({
        ...{ ok: true, payload: 'it', viewsRemaining: 1 },
      });
      expect(await secrets.status(receipt)).toMatchObject({ viewsUsed: 1, viewsRemaining: 1 });

      const counted = (): Promise<unknown> => counters.increment('it', { max: 5, windowMs: 60_000 });
      expect(await losingItsReply(counted)).toMatchObject({ ok: true, count: 1 });
      expect(await counters.peek('it')).toMatchObject({ count: 1 });
      expect(await losingItsReply(() => limiter.check('ada', POLICY))).toMatchObject({
        ...{ allowed: true, shortCount: 1 },
      });
    });

    it.each(connections)(
      'a grant whose reply was lost, and that is not asked for again in time, is undone: %s',
      async (_name, redis) => {
        options.retryDelayOnFailover = 3_000; // Longer than the call's deadline.
        const { locks } = await boot(redis(), 500);
        delete options.retryDelayOnFailover;
        const acquired = losingItsReply(() => locks.acquire({ key: 'order:1', ttlMs: 600_000 }));
        await expect(acquired).rejects.toMatchObject({ code: 'NetworkTimeout' });
        expect(await fencesOf('order:1')).toBe(1);
        await eventually(async () => expect(await locks.isLocked({ key: 'order:1' })).toBe(false));
      },
    );

    describe('health and calls say ServiceUnavailable', () => {
      it.each(connections)('while a slot is served by nobody (CLUSTERDOWN): %s', async (_name, redis) => {
        const { locks, connection } = await boot(redis());
        const master = await cluster.ownerOf(0);
        await ask(master, 'CLUSTER', 'DELSLOTS', 0);
        try {
          // A slot that is missing takes all others with it, on this node at once.
          await eventually(async () =>
            expect(await ask(master, 'CLUSTER', 'INFO')).toContain('cluster_state:fail'),
          );
          expect(await connection.check()).toMatchObject({
            code: 'ServiceUnavailable',
            cause: { message: expect.stringMatching(/CLUSTERDOWN|MOVED/) as unknown },
          });
        } finally {
          await ask(master, 'CLUSTER', 'ADDSLOTS', 0);
          await cluster.untilUp();
        }
        await eventually(async () => expect(await connection.check()).toBeUndefined());
        expect(await locks.acquire({ key: 'order:1', ttlMs: 1_000 })).toMatchObject({ ok: true });
      });

      it.each(connections)(
        'while two nodes send each other what they are asked (Too many Cluster redirections): %s',
        async (_name, redis) => {
          options.maxRedirections = 4;
          const { locks, connection } = await boot(redis());
          delete options.maxRedirections;
          const heal = await sendInCircles(connection, 'order:1');
          try {
            await expect(locks.acquire({ key: 'order:1', ttlMs: 1_000 })).rejects.toMatchObject({
              code: 'ServiceUnavailable',
              cause: { message: expect.stringContaining('Too many Cluster redirections') as unknown },
            });
          } finally {
            await heal();
          }
          await eventually(async () =>
            expect(await locks.acquire({ key: 'order:1', ttlMs: 1_000 })).toMatchObject({ ok: true }),
          );
        },
      );
    });

    it('a fault names what the last node said, not how often it was asked', () => {
      const last = (said: string): Error => new Error(`Too many Cluster redirections. Last error: ${said}`);
      expect(toRedisFault(last('ReplyError: CLUSTERDOWN Hash slot not served'))).toMatchObject({
        message: expect.stringContaining('Redis refuses writes at the moment') as unknown,
      });
      expect(toRedisFault(last('ReplyError: MOVED 7 127.0.0.1:1'))).toMatchObject({
        message: expect.stringContaining('is moving that key') as unknown,
      });
    });

    it('our own connections need no listed address that is a master: a Service in front of it will do', async () => {
      const [{ host, port }] = cluster.servers as [RedisServer]; // The nodes name their proxies.
      const { locks, connection } = await boot({ nodes: [{ host, port }], options });
      for (const proxy of proxies) await proxy.refuse();
      expect(await connection.check()).toMatchObject({ code: 'ServiceUnavailable' });
      for (const proxy of proxies) await proxy.restore();
      await eventually(async () => expect(await connection.check()).toBeUndefined());
      expect(await locks.acquire({ key: 'order:1', ttlMs: 1_000 })).toMatchObject({ ok: true });
    });

    it('our own connections have tried again as often as they do before a call is given up', () => {
      const { RedisConnection } = connectionsWith(version);
      const resolved = resolveOptions();
      connection = new RedisConnection({ ...resolved, redis: { nodes: nodes() } });
      const { maxRedirections, retryDelayOnClusterDown } = connection.runner.client
        .options as Required<ClusterOptions>;
      expect(maxRedirections * retryDelayOnClusterDown).toBeLessThan(resolved.commandTimeoutMs);
    });

    /** The owner of a lock's slot believes that another node has it, and that one believes the opposite. */
    async function sendInCircles({ runner }: RedisConnection, key: string): Promise<() => Promise<void>> {
      const record = slottedLayout('syncguard', runner.client).recordOf(key);
      const slot = Number(await ask(cluster.servers[0] as RedisServer, 'CLUSTER', 'KEYSLOT', record));
      const owner = await cluster.ownerOf(slot);
      const other = cluster.servers.find((server) => server !== owner) as RedisServer;
      const [ownerId, otherId] = [await ask(owner, 'CLUSTER', 'MYID'), await ask(other, 'CLUSTER', 'MYID')];
      const say = (server: RedisServer, id: string): Promise<unknown> =>
        ask(server, 'CLUSTER', 'SETSLOT', slot, 'NODE', id);
      await say(owner, otherId);
      return async () => {
        for (const server of cluster.servers) await say(server, ownerId);
        await cluster.untilUp();
      };
    }

    async function fencesOf(key: string): Promise<number> {
      const found = await Promise.all(
        cluster.servers.map((server) => ask<string[]>(server, 'KEYS', '*fence*')),
      );
      return found.flat().filter((each) => each.includes(`{${hashTag(key, 3)}}`)).length;
    }
  });
});
