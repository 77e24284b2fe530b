import 'reflect-metadata';
import { Logger } from '@nestjs/common';
import { Test } from '@nestjs/testing';
import { SyncGuardHealthIndicator, SyncGuardModule } from 'nestjs-syncguard';
import type { RedisConnection } from '../../lib/assembly/redis-connection.js';
import { locksOn } from '../support/redis-backends.js';
import { slottedLayout } from '../../lib/lock/redis/lock.layout.js';
import { ask } from '../support/engines/ask.js';
import { type RedisCluster, startRedisCluster } from '../support/engines/cluster.js';
import { doublesDuring } from '../support/engines/doubles.js';
import { fillMemory, freeze, killClients, losePrimary, switchPrimary } from '../support/engines/faults.js';
import { type SentinelGroup, startSentinelGroup } from '../support/engines/sentinel.js';
import { codesAtBoot } from '../support/codes-at-boot.js';
import { eventually } from '../support/eventually.js';
import {
  connectionsWith,
  IOREDIS_VERSIONS,
  type IORedisName,
  ioredisOf,
} from '../support/ioredis-versions.js';
import type { LockContext } from '../../lib/lock/current-lock.js';
import { LockService } from '../../lib/lock/lock.service.js';
import { resolveOptions } from '../../lib/module/syncguard.options.js';
import { type RedisServer, startRedisServer } from '../support/redis-server.js';
import { startTcpProxy } from '../support/tcp-proxy.js';

const open = (version: IORedisName, redis: unknown): RedisConnection => {
  const { RedisConnection } = connectionsWith(version);
  return new RedisConnection({
    redis: redis as string,
    keyPrefix: 'syncguard',
    commandTimeoutMs: 1_000,
    closeClient: false,
  });
};

/** Who stays with the old primary is granted locks by it for all of the 2 s in which this is watched. */
const AT_ONCE_MS = 1_000;

describe('on Redis behind Sentinel', () => {
  let group: SentinelGroup;
  beforeAll(async () => {
    group = await startSentinelGroup();
  });
  afterAll(() => group.stop());

  describe.each(IOREDIS_VERSIONS)('%s', (_, version) => {
    const ownConnection = (): RedisConnection => open(version, group.options);

    it('a planned switch under load: both instances leave at once, and fences rise', async () => {
      await group.untilReplicated();
      for (const { firstAtMs, rises } of await doublesDuring(group, ownConnection, () =>
        switchPrimary(group),
      )) {
        expect(firstAtMs).toBeLessThan(AT_ONCE_MS);
        expect(rises).toBe(true);
      }
    });

    it('a frozen primary that resumes after its failover is not written to', async () => {
      await group.untilReplicated();
      const doubles = await doublesDuring(group, ownConnection, async () => {
        const { heal } = await losePrimary(group, freeze);
        await heal();
      });
      for (const { firstAtMs } of doubles) {
        expect(firstAtMs).toBeLessThan(AT_ONCE_MS);
      }
    });

    it('Sentinels that do not answer are passed over: by a new process, and by one that lost its connection', async () => {
      // Before the Sentinels, which would stop their work for 30 s if they stood still themselves.
      const proxies = await Promise.all(group.sentinels.map(({ port }) => startTcpProxy(port)));
      const sentinels = proxies.map(({ host, port }) => ({ host, port }));
      const connect = (): RedisConnection =>
        open(version, { ...group.options, sentinels, updateSentinels: false });
      const connections = [connect()];
      try {
        const [running] = connections as [RedisConnection];
        expect((await running.opened()).fault).toBeUndefined();
        for (const proxy of proxies.slice(0, 2)) proxy.halfOpen();
        running.runner.client.stream?.destroy();
        connections.push(connect());
        for (const connection of connections)
          await eventually(async () => expect(await connection.check()).toBeUndefined());
      } finally {
        await Promise.all(connections.map((connection) => connection.close()));
        await Promise.all(proxies.map((proxy) => proxy.stop()));
      }
    });

    it('a name that the Sentinels do not know is told as such', async () => {
      const connection = open(version, { ...group.options, name: 'other' });
      const { fault } = await connection.opened();
      await connection.close();
      expect(fault).toMatchObject({ code: 'ServiceUnavailable' });
      expect(fault?.message).toMatch(/The Sentinels know no primary of that name.*`name`/);
    });

    it("a user's client without a failoverDetector is warned of, by code", async () => {
      const { Redis } = ioredisOf(version);
      const client = (more: object) => group.track(new Redis({ ...group.options, ...more }));
      expect(await codesAtBoot(client({}))).toContain('REDIS_NO_FAILOVER_DETECTOR');
      expect(await codesAtBoot(client({ failoverDetector: true }))).not.toContain(
        'REDIS_NO_FAILOVER_DETECTOR',
      );
      expect(await codesAtBoot(group.options)).toStrictEqual([]);
      expect(await codesAtBoot({ ...group.options, failoverDetector: false })).toStrictEqual([
        'REDIS_NO_FAILOVER_DETECTOR',
      ]);
      expect(await codesAtBoot(client({}))).toContain('REDIS_NO_SENTINEL_TIMEOUT');
      expect(await codesAtBoot(client({ sentinelCommandTimeout: 1_000 }))).not.toContain(
        'REDIS_NO_SENTINEL_TIMEOUT',
      );
    });
  });
});

describe('on a Cluster', () => {
  let cluster: RedisCluster;
  beforeAll(async () => {
    cluster = await startRedisCluster();
  });
  afterAll(() => cluster.stop());

  describe.each(IOREDIS_VERSIONS)('%s', (_, version) => {
    const { Cluster: ClusterClient } = ioredisOf(version);
    const clients: [string, () => unknown][] = [
      ['our own', () => ({ nodes: cluster.nodes })],
      [
        "a user's",
        () =>
          cluster.track(
            new ClusterClient(cluster.nodes, { redisOptions: { disconnectTimeout: 100 } }).on(
              'error',
              () => {},
            ),
          ),
      ],
    ];

    it.each(clients)('health is down when one master refuses writes: %s', async (_name, redis) => {
      const connection = open(version, redis());
      expect((await connection.opened()).fault).toBeUndefined();
      for (const master of await cluster.masters()) {
        const heal = await fillMemory(master);
        expect((await connection.check())?.code).toBe('ServiceUnavailable');
        await heal();
        expect(await connection.check()).toBeUndefined();
      }
      await connection.close();
    });

    it.each(clients)(
      'a reply that a node lost counts as sent over a lost connection: %s',
      async (_name, redis) => {
        const connection = open(version, redis());
        await connection.opened();
        const { readiness } = connection.runner;
        const { epoch } = readiness;
        for (const master of await cluster.masters()) await killClients(master);
        await eventually(() => expect(readiness.epoch).toBeGreaterThan(epoch));
        await eventually(async () => expect(await connection.check()).toBeUndefined());
        await connection.close();
      },
    );
  });

  describe.each(IOREDIS_VERSIONS)('a master that comes back without its data, %s', (_, version) => {
    it('the holder of a lock on it learns that at once, though nobody calls', async () => {
      const connection = open(version, { nodes: cluster.nodes });
      expect((await connection.opened()).fault).toBeUndefined();
      const layout = slottedLayout('syncguard', connection.runner.client);
      const locks = new LockService(locksOn(connection.runner, layout), resolveOptions());
      connection.onBack(() => locks.renewAll());
      const body = async ({ signal }: LockContext): Promise<void> => {
        const master = await cluster.ownerOf(layout.recordOf('order:1'));
        await ask(master, 'FLUSHALL');
        await killClients(master);
        await eventually(() => expect(signal.aborted).toBe(true));
      };
      const running = locks.lock(body, { key: 'order:1', ttlMs: 600_000 });
      await Promise.allSettled([running]);
      await connection.close();
      await expect(running).rejects.toMatchObject({ code: 'LockLost' });
    });
  });

  describe.each(IOREDIS_VERSIONS)('a release whose reply is lost, %s', (_, version) => {
    const { Cluster: ClusterClient } = ioredisOf(version);

    it('is a release: the body has ended, and its result stays', async () => {
      await using node = await startRedisServer({ cluster: true });
      await using proxy = await startTcpProxy(node.port);
      const nodes = [{ host: proxy.host, port: proxy.port }];
      const options = { natMap: { [`${node.host}:${node.port}`]: { host: proxy.host, port: proxy.port } } };
      const theirs = node.track(new ClusterClient(nodes, options).on('error', () => {}));
      for (const redis of [{ nodes, options }, theirs]) {
        const connection = open(version, redis);
        try {
          expect((await connection.opened()).fault).toBeUndefined();
          const layout = slottedLayout('syncguard', connection.runner.client);
          const locks = new LockService(locksOn(connection.runner, layout), resolveOptions());
          const body = (): string => {
            proxy.cutAfterRequest();
            return 'paid';
          };
          expect(await locks.lock(body, { key: 'order:1' })).toBe('paid');
          await eventually(async () => expect(await locks.isLocked({ key: 'order:1' })).toBe(false));
        } finally {
          await connection.close();
        }
      }
    });
  });

  it('REDIS_EVICTION of one master is told, with its address', async () => {
    const [, master] = (await cluster.masters()) as [RedisServer, RedisServer];
    await ask(master, 'CONFIG', 'SET', 'maxmemory-policy', 'volatile-lru');
    const spy = jest.spyOn(Logger.prototype, 'warn').mockImplementation(() => {});
    const module = await Test.createTestingModule({
      imports: [SyncGuardModule.forRoot({ redis: { nodes: cluster.nodes } })],
    }).compile();
    const warnings = spy.mock.calls.map(([message]) => String(message));
    spy.mockRestore();
    expect(warnings).toStrictEqual([
      expect.stringMatching(new RegExp(`^REDIS_EVICTION: .*volatile-lru.*\\(127.0.0.1:${master.port}\\)$`)),
    ]);
    expect(await module.get(SyncGuardHealthIndicator).isHealthy()).toMatchObject({
      syncguard: { status: 'up' },
    });
    await module.close();
    await ask(master, 'CONFIG', 'SET', 'maxmemory-policy', 'noeviction');
  });
});
