import { setTimeout as sleep } from 'node:timers/promises';
import { createServer, type Server, type Socket } from 'node:net';
import { once } from 'node:events';
import type { AddressInfo } from 'node:net';
import type { Redis, RedisOptions } from 'ioredis';
import { createRedisBackend, leaveReplica, SyncGuardModule } from 'nestjs-syncguard';
import type { RedisConnection } from '../../lib/assembly/redis-connection.js';
import { codesAtBoot } from '../support/codes-at-boot.js';
import { eventually } from '../support/eventually.js';
import {
  connectionsWith,
  IOREDIS_VERSIONS,
  type IORedisName,
  ioredisOf,
} from '../support/ioredis-versions.js';
import { type RedisServer, startRedisServer } from '../support/redis-server.js';
import { startTcpProxy, type TcpProxy } from '../support/tcp-proxy.js';

const TIMEOUT_MS = 300;
/** How long a connection that hangs is kept after that. */
const PATIENCE_MS = 1_000;

describe.each(IOREDIS_VERSIONS)('connections, %s', (_, version: IORedisName) => {
  let server: RedisServer;
  let proxy: TcpProxy;
  const connections: RedisConnection[] = [];
  beforeAll(async () => {
    server = await startRedisServer();
  });
  afterAll(() => server.stop());
  beforeEach(async () => {
    proxy = await startTcpProxy(server.port);
    await server.client().flushall();
    await server.client().config('RESETSTAT');
  });
  afterEach(async () => {
    await Promise.all(connections.splice(0).map((connection) => connection.close()));
    server.closeClients();
    await proxy.stop();
  });

  const open = (redis: unknown, commandTimeoutMs = TIMEOUT_MS): RedisConnection => {
    const { RedisConnection } = connectionsWith(version);
    const connection = new RedisConnection({
      redis: redis as string,
      keyPrefix: 'syncguard',
      commandTimeoutMs,
      closeClient: false,
    });
    connections.push(connection);
    return connection;
  };
  /** A client as users make it. */
  const theirs = (options: RedisOptions = {}): Redis => {
    const { Redis } = ioredisOf(version);
    return server.track(
      new Redis({ port: server.port, disconnectTimeout: 100, ...options }).on('error', () => {}),
    );
  };
  const codeOf = async (connection: RedisConnection): Promise<string> =>
    (await connection.check())?.code ?? 'up';
  const clientDatabases = async (): Promise<string[]> =>
    String(await server.client().call('CLIENT', 'LIST', 'TYPE', 'normal'))
      .split('\n')
      .flatMap((line) => / db=([1-9]\d*)/.exec(line)?.[1] ?? []);
  const clientNames = async (): Promise<string[]> =>
    String(await server.client().call('CLIENT', 'LIST'))
      .split('\n')
      .map((line) => / name=(\S*)/.exec(line)?.[1] ?? '')
      .filter((name) => name !== '');

  describe('a connection that hangs', () => {
    it('is let go, and all works again over the next, without being restored', async () => {
      const connection = open(proxy.url);
      expect((await connection.opened()).fault).toBeUndefined();
      proxy.halfOpen();
      expect(await codeOf(connection)).toBe('NetworkTimeout');
      // What is connected anew finds a network that works; the old connection stays dead.
      await eventually(() => expect(connection.runner.readiness.epoch).toBe(1));
      await proxy.restore();
      await eventually(async () => expect(await codeOf(connection)).toBe('up'));
    });

    it('is let go in its greeting too', async () => {
      proxy.halfOpen();
      const connection = open(proxy.url);
      expect((await connection.opened()).fault?.code).toBe('ServiceUnavailable');
      await eventually(() => expect(connection.runner.readiness.epoch).toBeGreaterThan(0));
    });

    it('is not let go while it is idle, or slow, or answers with errors', async () => {
      const connection = open(proxy.url);
      await connection.opened();
      await sleep(PATIENCE_MS + 2 * TIMEOUT_MS);
      expect(await codeOf(connection)).toBe('up');
      proxy.delay(TIMEOUT_MS); // Twice the timeout there and back: each call times out, each answer comes.
      for (let i = 0; i < 6; i++) expect(await codeOf(connection)).toBe('NetworkTimeout');
      await proxy.restore();
      await eventually(async () => expect(await codeOf(connection)).toBe('up'));
      expect(connection.runner.readiness.epoch).toBe(0);
    });

    it('is not let go twice: what a lost connection owed does not close the next', async () => {
      const connection = open(proxy.url);
      await connection.opened();
      proxy.halfOpen();
      const waiting = codeOf(connection);
      await proxy.refuse();
      await proxy.restore();
      expect(await waiting).toBe('ServiceUnavailable');
      await eventually(async () => expect(await codeOf(connection)).toBe('up'));
      const { epoch } = connection.runner.readiness;
      await sleep(PATIENCE_MS + 2 * TIMEOUT_MS);
      expect(await codeOf(connection)).toBe('up');
      expect(connection.runner.readiness.epoch).toBe(epoch);
    });
  });

  describe('a primary that becomes a replica under a living connection', () => {
    // By name the address leads to the new primary: here, to another server behind the same proxy.
    let next: RedisServer;
    beforeEach(async () => {
      next = await startRedisServer();
    });
    afterEach(async () => {
      await server.client().replicaof('NO', 'ONE');
      await next.stop();
    });

    it.each([
      ['a URL', () => proxy.url],
      ['options', () => ({ port: proxy.port, reconnectOnError: () => false as const })],
    ])('is left at once, by %s', async (_how, redis) => {
      const connection = open(redis());
      await connection.opened();
      await server.client().replicaof(next.host, next.port);
      proxy.leadTo(next.port);
      await eventually(async () => expect(await codeOf(connection)).toBe('up'));
      expect(await next.client().info('commandstats')).toContain('cmdstat_set:');
    });

    it.each([
      ['a connection of our own', () => open(proxy.url, 3_000)],
      ["a user's client", () => open(theirs({ port: proxy.port, reconnectOnError: leaveReplica() }), 3_000)],
    ])('is left once, by all the calls that it refuses: %s', async (_whose, openIt) => {
      const connection = openIt();
      await connection.opened();
      const stream = connection.runner.client.stream as unknown as Socket;
      const before = stream.listenerCount('close');
      await server.client().replicaof(next.host, next.port);
      const codes = await Promise.all(Array.from({ length: 20 }, () => codeOf(connection)));
      expect(new Set(codes)).toStrictEqual(new Set(['ServiceUnavailable']));
      // Each time that ioredis is told to leave, it listens for the end of the socket once more.
      expect(stream.listenerCount('close')).toBeLessThanOrEqual(before + 1);
    });
  });

  describe('a database that the server does not have', () => {
    it.each([
      ['a URL', () => `redis://127.0.0.1:${server.port}/99`, true],
      ['options', () => ({ port: server.port, db: 99 }), true],
      ["a user's client", () => theirs({ db: 99 }), true],
      ["a user's client that was connected before", () => theirs({ db: 99 }), false],
    ])('is not replaced by database 0: %s', async (_how, given, early) => {
      const redis = given();
      if (!early) await (redis as Redis).ping();
      const connection = open(redis);
      const { fault } = await connection.opened();
      expect(fault).toMatchObject({ code: 'ServiceUnavailable' });
      expect(fault?.message).toMatch(/has no database with that number.*databases/);
      expect(await codeOf(connection)).toBe('ServiceUnavailable');
      expect(await server.client().info('commandstats')).not.toContain('cmdstat_set:');
    });

    it('does not stand in the way of one that it has', async () => {
      for (const redis of [`redis://127.0.0.1:${server.port}/3`, theirs({ db: 3 })])
        expect((await open(redis).opened()).fault).toBeUndefined();
      expect(await clientDatabases()).toStrictEqual(['3', '3']);
    });

    it('is noticed on a connection that comes later', async () => {
      const small = await startRedisServer({ args: ['--databases', '16'] });
      await using through = await startTcpProxy(small.port);
      const connection = open({ port: through.port, db: 9 });
      expect((await connection.opened()).fault).toBeUndefined();
      await using smaller = await startRedisServer({ args: ['--databases', '4'] });
      through.leadTo(smaller.port);
      await through.refuse();
      await through.restore();
      await eventually(async () => expect((await connection.check())?.message).toMatch(/no database/));
      through.leadTo(small.port);
      await through.refuse();
      await through.restore();
      await eventually(async () => expect(await codeOf(connection)).toBe('up'));
      await small.stop();
    });
  });

  it('`nodes` that are none of a Cluster are told as such', async () => {
    const { fault } = await open({ nodes: [{ port: server.port }] }).opened();
    expect(fault).toMatchObject({ code: 'ServiceUnavailable' });
    expect(fault?.message).toMatch(/are no nodes of a Redis Cluster.*`redis: \{ host, port \}`/);
  });

  it('keeps the name that it is given, and is called syncguard without one', async () => {
    const { port } = server;
    for (const redis of [
      { port, connectionName: 'orders' },
      `redis://127.0.0.1:${port}?connectionName=pays`,
      { port },
    ])
      await open(redis).opened();
    expect((await clientNames()).sort()).toStrictEqual(['orders', 'pays', 'syncguard']);
  });

  it('a URL does not bring back what would turn integers into text, or run a call twice', async () => {
    const connection = open(
      `redis://127.0.0.1:${server.port}?stringNumbers=true&enableOfflineQueue=true&autoResendUnfulfilledCommands=true`,
    );
    expect((await connection.opened()).fault).toBeUndefined();
    expect(connection.runner.client.options).toMatchObject({
      stringNumbers: false,
      enableOfflineQueue: false,
      autoResendUnfulfilledCommands: false,
    });
  });

  describe('TLS', () => {
    it('to a port that speaks none: the advice is about TLS', async () => {
      const { fault } = await open(`rediss://127.0.0.1:${server.port}`).opened();
      expect(fault).toMatchObject({ code: 'ServiceUnavailable' });
      expect(fault?.message).toMatch(/cannot be reached.*leads to the TLS port/);
    });

    it('that fails: the error says that it is TLS, and why', async () => {
      const plain = createServer((socket) => socket.on('error', () => {}).end('-ERR what?\r\n'));
      plain.listen(0, '127.0.0.1');
      await once(plain, 'listening');
      const connection = open(`rediss://127.0.0.1:${(plain.address() as AddressInfo).port}`);
      await connection.opened();
      await eventually(async () => {
        const fault = await connection.check();
        expect(fault).toMatchObject({ code: 'ServiceUnavailable' });
        expect(fault?.message).toMatch(/The TLS connection to Redis cannot be made.*TLS port/);
        expect((fault?.cause as Error).message).toMatch(/wrong version number|packet length/);
      });
      plain.close();
    });

    describe('while it is being connected', () => {
      let silent: Server;
      const sockets = new Set<Socket>();
      beforeEach(async () => {
        silent = createServer((socket) => socket.on('error', () => {}).on('data', () => sockets.add(socket)));
        silent.listen(0, '127.0.0.1');
        await once(silent, 'listening');
      });
      afterEach(() => {
        for (const socket of sockets) socket.destroy();
        silent.close();
      });

      it('closes without a word on the console: ioredis prints errors that nobody listens to', async () => {
        const connection = open(`rediss://127.0.0.1:${(silent.address() as AddressInfo).port}`);
        await eventually(() => expect(sockets.size).toBe(1));
        const client = connection.runner.client as Redis;
        const emitted = jest.spyOn(client, 'emit');
        await connection.close();
        await eventually(() => expect(client.status).toBe('end'));
        await eventually(() => expect(emitted).toHaveBeenCalledWith('error', expect.anything()));
        expect(client.listenerCount('error')).toBe(1);
      });
    });
  });

  it.each([
    ['MOVED', 'MOVED 3999 127.0.0.1:7001'],
    ['ASK', 'ASK 3999 127.0.0.1:7001'],
    ['TRYAGAIN', 'TRYAGAIN Multiple keys request during rehashing of slot'],
    ['CROSSSLOT', "CROSSSLOT Keys in request don't hash to the same slot"],
  ])('%s is ServiceUnavailable', async (_code, message) => {
    const client = theirs();
    await client.ping();
    const error = Object.assign(new Error(message), { name: 'ReplyError' });
    const backend = createRedisBackend({ status: 'ready', eval: () => Promise.reject(error) });
    await expect(backend.isLocked({ key: 'order:1' })).rejects.toMatchObject({ code: 'ServiceUnavailable' });
  });

  it('stringNumbers is refused wherever it can be said', () => {
    const { port } = server;
    for (const redis of [
      { port, stringNumbers: true },
      { nodes: [{ port }], options: { redisOptions: { stringNumbers: true } } },
      theirs({ stringNumbers: true }),
    ])
      expect(() => SyncGuardModule.forRoot({ redis })).toThrow(/stringNumbers/);
  });

  describe('health', () => {
    it.each([
      ['OOM', ['maxmemory', '1'], ['maxmemory', '0']],
      ['NOREPLICAS', ['min-replicas-to-write', '1'], ['min-replicas-to-write', '0']],
    ])('is down while the server answers %s', async (_error, [name, value], [, healed]) => {
      const admin = server.client();
      for (const redis of [server.url, theirs()]) {
        const connection = open(redis);
        expect((await connection.opened()).fault).toBeUndefined();
        await admin.config('SET', name as string, value as string);
        expect(await codeOf(connection)).toBe('ServiceUnavailable');
        await admin.config('SET', name as string, healed as string);
        expect(await codeOf(connection)).toBe('up');
      }
    });

    it('is down on a replica', async () => {
      const connections = [open(server.url), open(theirs())];
      for (const connection of connections) await connection.opened();
      await server.client().replicaof('127.0.0.1', '1');
      for (const connection of connections) expect(await codeOf(connection)).toBe('ServiceUnavailable');
      await server.client().replicaof('NO', 'ONE');
    });

    it('leaves nothing behind', async () => {
      await open(server.url).opened();
      expect(await server.client().dbsize()).toBe(0);
    });
  });
});

describe('the boot warns, by code', () => {
  it.each(['allkeys-lru', 'volatile-lru', 'volatile-ttl', 'allkeys-random'])(
    'REDIS_EVICTION of %s, with maxmemory and without',
    async (policy) => {
      await using server = await startRedisServer({ args: ['--maxmemory-policy', policy] });
      expect(await codesAtBoot(server.url)).toStrictEqual(['REDIS_EVICTION']);
      await server.client().config('SET', 'maxmemory', '100mb');
      expect(await codesAtBoot(server.url)).toStrictEqual(['REDIS_EVICTION']);
    },
  );

  it('nothing of a server that keeps what it is given', async () => {
    await using server = await startRedisServer({ args: ['--maxmemory', '100mb'] });
    expect(await codesAtBoot(server.url)).toStrictEqual([]);
  });

  describe.each(IOREDIS_VERSIONS)("of a user's client, %s", (_, version: IORedisName) => {
    const { Redis } = ioredisOf(version);
    const WELL = {
      socketTimeout: 2_000,
      reconnectOnError: leaveReplica(),
      failoverDetector: true,
    };

    it('what it leaves out', async () => {
      await using server = await startRedisServer();
      const codesOf = (options: RedisOptions): Promise<string[]> =>
        codesAtBoot(server.track(new Redis({ port: server.port, ...options })));
      expect(await codesOf({})).toStrictEqual(['REDIS_NO_SOCKET_TIMEOUT', 'REDIS_NO_RECONNECT_ON_ERROR']);
      expect(await codesOf({ ...WELL, socketTimeout: undefined })).toStrictEqual(['REDIS_NO_SOCKET_TIMEOUT']);
      expect(await codesOf({ ...WELL, reconnectOnError: () => false })).toStrictEqual([
        'REDIS_NO_RECONNECT_ON_ERROR',
      ]);
      // The function that makes one is none: ioredis takes what it returns for a no.
      expect(await codesOf({ ...WELL, reconnectOnError: leaveReplica as never })).toStrictEqual([
        'REDIS_NO_RECONNECT_ON_ERROR',
      ]);
      expect(await codesOf({ ...WELL, reconnectOnError: () => 2 })).toStrictEqual([]);
      expect(await codesOf(WELL)).toStrictEqual([]);
      expect(await codesOf(WELL)).toStrictEqual([]); // A second app over the same options, at the same time.
    });
  });

  it('REDIS_CLUSTER_NODE of a client that knows one node of a Cluster', async () => {
    await using server = await startRedisServer({ cluster: true });
    expect(await codesAtBoot(server.url)).toContain('REDIS_CLUSTER_NODE');
  });

  it('REDIS_NOT_CHECKED where INFO is refused', async () => {
    await using server = await startRedisServer();
    await server.client().call('ACL', 'SETUSER', 'app', 'on', '>x', '~*', '&*', '+@all', '-info');
    jest.spyOn(console, 'warn').mockImplementation(() => {}); // ioredis says so as well.
    expect(await codesAtBoot(`redis://app:x@127.0.0.1:${server.port}`)).toContain('REDIS_NOT_CHECKED');
    jest.restoreAllMocks();
  });
});
