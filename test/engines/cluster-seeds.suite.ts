import 'reflect-metadata';
import type { NatMap } from 'ioredis';
import type { RedisConnection } from '../../lib/assembly/redis-connection.js';
import type { RedisConnectionOptions } from '../../lib/redis/redis.client.js';
import { RedisSubscriber } from '../../lib/redis/redis.subscriber.js';
import { ask } from '../support/engines/ask.js';
import { type RedisCluster, startRedisCluster } from '../support/engines/cluster.js';
import { crash, killClients, switchMaster } from '../support/engines/faults.js';
import { eventually } from '../support/eventually.js';
import { connectionsWith, IOREDIS_VERSIONS, type IORedisName } from '../support/ioredis-versions.js';
import type { RedisServer } from '../support/redis-server.js';
import { startTcpProxy, type TcpProxy } from '../support/tcp-proxy.js';

const MASTERS = 3;
/** A node that restarts serves nobody for 2 s of its own clock. */
const START_MS = 3_000;

interface Address {
  readonly host: string;
  readonly port: number;
}
const at = ({ host, port }: Address): { host: string; port: number } => ({ host, port });

/** The ways in which an app knows its Cluster. None of the listed addresses need be a master's. */
describe('a Cluster that is known by', () => {
  let cluster: RedisCluster;
  /** The masters and the replicas of the first day. */
  let first: { masters: RedisServer[]; replicas: RedisServer[] };
  /** One before each node. No node names it. */
  let proxies: TcpProxy[];
  const connections: RedisConnection[] = [];

  beforeAll(async () => {
    cluster = await startRedisCluster({ replicas: 1 });
    first = { masters: cluster.servers.slice(0, MASTERS), replicas: cluster.servers.slice(MASTERS) };
    proxies = await Promise.all(cluster.servers.map(({ port }) => startTcpProxy(port)));
  }, 60_000);
  afterEach(() => Promise.all(connections.splice(0).map((connection) => connection.close())));
  afterAll(async () => {
    await cluster.stop();
    await Promise.all(proxies.map((proxy) => proxy.stop()));
  });

  const natMap = (): NatMap =>
    Object.fromEntries(
      cluster.servers.map(({ host, port }, i) => [`${host}:${port}`, at(proxies[i] as TcpProxy)]),
    );
  const WAYS: [string, () => RedisConnectionOptions][] = [
    ['its masters of the first day', () => ({ nodes: first.masters.map(at) })],
    ['its replicas of the first day', () => ({ nodes: first.replicas.map(at) })],
    ['one node', () => ({ nodes: first.replicas.slice(0, 1).map(at) })],
    ['the address of a Service', () => ({ nodes: proxies.slice(0, 1).map(at) })],
    ['a natMap', () => ({ nodes: proxies.slice(0, 1).map(at), options: { natMap: natMap() } })],
    [
      'hostnames that dnsLookup leaves as they are',
      () => ({
        nodes: first.masters.map(({ port }) => ({ host: 'localhost', port })),
        options: { dnsLookup: (host, found) => found(null, host) },
      }),
    ],
    ['one URL', () => ({ nodes: [`redis://localhost:${first.masters[0]?.port}`] })],
    [
      'nodes whose options say lazyConnect',
      () => ({
        nodes: first.replicas.map(at),
        options: { lazyConnect: true, redisOptions: { lazyConnect: false } },
      }),
    ],
  ];

  const open = (version: IORedisName, redis: RedisConnectionOptions): RedisConnection => {
    const { RedisConnection } = connectionsWith(version);
    const connection = new RedisConnection({
      redis,
      keyPrefix: 'syncguard',
      commandTimeoutMs: 2_000,
      closeClient: false,
    });
    connections.push(connection);
    return connection;
  };
  const openAll = async (): Promise<void> => {
    for (const [, version] of IOREDIS_VERSIONS) for (const [, redis] of WAYS) open(version, redis());
    await untilUp();
  };
  /** Health writes to every master. */
  const untilUp = async (): Promise<void> => {
    await Promise.all(
      connections.map((connection) =>
        eventually(async () => expect(await connection.check()).toBeUndefined(), { intervalMs: 100 }),
      ),
    );
  };
  const cutAll = (): Promise<unknown> => Promise.all(cluster.servers.map(killClients));

  describe.each(IOREDIS_VERSIONS)('%s', (_, version) => {
    it.each(WAYS)('%s: a new process connects, and comes back when it was cut off', async (_way, redis) => {
      open(version, redis());
      await untilUp();
      await cutAll();
      await untilUp();
    });
  });

  it('what was listed has failed over, one after the other: running processes come back, new ones connect', async () => {
    await openAll();
    for (const master of first.masters) {
      await switchMaster(cluster, master);
      await cutAll();
      await untilUp();
    }
    expect(await cluster.masters()).toStrictEqual(first.replicas);
    await openAll();
    await cutAll();
    await untilUp();
  }, 60_000);

  it('an outage of all nodes: running processes come back', async () => {
    await openAll();
    const heals = await Promise.all(cluster.servers.map(crash));
    const faults = await Promise.all(connections.map((connection) => connection.check()));
    for (const fault of faults) expect(fault?.code).toMatch(/^(ServiceUnavailable|NetworkTimeout)$/);
    await Promise.all(heals.map((heal) => heal()));
    cluster.clock.advance(START_MS);
    await cluster.untilUp();
    await untilUp();
  }, 60_000);

  it('a node that has left it, and answers: what waits for messages moves to another', async () => {
    const nodes = cluster.nodes as Address[];
    const { runner } = open('ioredis', { nodes });
    await untilUp();
    let heard = 0;
    const events = {
      onMessage: () => heard++,
      onListening: () => {},
      onSilence: () => {},
      isNeeded: () => true,
    };
    const subscriber = new RedisSubscriber(runner.client, ['syncguard/test'], events);
    try {
      await eventually(async () => expect(await subscriber.open()).toBe(true));
      const node = await subscribed();
      await switchMaster(cluster, node);
      await leave(node);
      const other = cluster.servers.find((server) => server !== node) as RedisServer;
      await eventually(async () => {
        await ask(other, 'PUBLISH', 'syncguard/test', 'it');
        expect(heard).toBeGreaterThan(0);
      });
    } finally {
      subscriber.close();
    }
  }, 60_000);

  async function subscribed(): Promise<RedisServer> {
    for (const server of cluster.servers)
      if ((await ask(server, 'PUBSUB', 'NUMSUB', 'syncguard/test')).includes(1 as never)) return server;
    throw new Error('No node has the subscriber.');
  }

  /** A replica is told to go by all others, and forgets them. */
  async function leave(replica: RedisServer): Promise<void> {
    await cluster.untilAgreed();
    const id = await ask(replica, 'CLUSTER', 'MYID');
    for (const server of cluster.servers) if (server !== replica) await ask(server, 'CLUSTER', 'FORGET', id);
    await ask(replica, 'CLUSTER', 'RESET');
  }
});
