import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Cluster, type ClusterNode, type ClusterOptions } from 'ioredis';
import { eventually } from '../eventually.js';
import { type RedisServer, type RedisServerOptions, startRedisServer } from '../redis-server.js';
import { ServerClock } from '../server-clock.js';
import { ask, expectCopied, expectLinked, roleOf } from './ask.js';

export interface RedisClusterOptions extends Pick<RedisServerOptions, 'args' | 'command'> {
  /** 3 */
  masters?: number;
  /** Of each master: 0 */
  replicas?: number;
  /** After so long without an answer the others take a node for dead: 2 s; a suite that moves the clock wants more. */
  nodeTimeoutMs?: number;
}

const SLOTS = 16_384;
/** A node that just started refuses to serve for 2 s of its own clock. */
const START_MS = 3_000;
const PATIENCE = { timeoutMs: 20_000 };

/** A Redis Cluster of several nodes on loopback, which share a clock. */
export class RedisCluster {
  /** @internal Use startRedisCluster(). */
  constructor(
    readonly servers: readonly RedisServer[],
    readonly clock: ServerClock,
    private readonly folder: string,
  ) {}

  get nodes(): ClusterNode[] {
    return this.servers.map(({ host, port }) => ({ host, port }));
  }

  /** A client that is closed with the Cluster. */
  client(options: ClusterOptions = {}): Cluster {
    const cluster = new Cluster(this.nodes, {
      slotsRefreshTimeout: 5_000,
      ...options,
      redisOptions: { disconnectTimeout: 100, ...options.redisOptions },
    });
    return this.track(cluster.on('error', () => {}));
  }

  track<T extends { disconnect(): void }>(client: T): T {
    return this.first.track(client);
  }

  closeClients(): void {
    for (const server of this.servers) server.closeClients();
  }

  /** Those that own slots now, in the order of `servers`. */
  async masters(): Promise<RedisServer[]> {
    const roles = await Promise.all(this.servers.map(roleOf));
    return this.servers.filter((_, i) => roles[i] === 'master');
  }

  /** The replica of a master, well, linked and known to all: it can take over now. */
  async replicaOf(master: RedisServer): Promise<RedisServer> {
    await this.untilAgreed();
    const id = await ask(master, 'CLUSTER', 'MYID');
    return eventually(async () => {
      const lines = await ask<string[]>(master, 'CLUSTER', 'REPLICAS', id);
      const ports = lines.filter((line) => !line.includes('fail')).map(portOf);
      const replica = this.servers.find(({ port }) => ports.includes(port));
      if (!replica)
        throw new Error(
          `The master on port ${master.port} has no replica that is well:\n${lines.join('\n')}`,
        );
      await expectLinked(replica);
      return replica;
    }, PATIENCE);
  }

  /** The master of a slot or key. */
  async ownerOf(slotOrKey: number | string): Promise<RedisServer> {
    const key = String(slotOrKey);
    const slot =
      typeof slotOrKey === 'number' ? slotOrKey : Number(await ask(this.first, 'CLUSTER', 'KEYSLOT', key));
    for (const master of await this.masters())
      if (ownSlots(await ask(master, 'CLUSTER', 'NODES')).some(([from, to]) => from <= slot && slot <= to))
        return master;
    throw new Error(`Nobody owns slot ${slot}.`);
  }

  async flush(): Promise<void> {
    await Promise.all((await this.masters()).map((master) => ask(master, 'FLUSHALL')));
  }

  /** Every node sees all slots served. */
  async untilUp(servers: readonly RedisServer[] = this.servers): Promise<void> {
    await eventually(async () => {
      for (const server of servers) {
        const info = await ask(server, 'CLUSTER', 'INFO');
        if (!info.includes('cluster_state:ok'))
          throw new Error(`Node ${server.port} does not come up:\n${info}`);
      }
    }, PATIENCE);
  }

  /**
   * Every node says the same of roles and slots. Until then a switch can fail: masters refuse their vote to a replica
   * that they take for a master, and a replica claims the slots that it thinks its master has.
   */
  async untilAgreed(): Promise<void> {
    await eventually(async () => {
      const views = await Promise.all(
        this.servers.map(async (server) => rolesAndSlots(await ask(server, 'CLUSTER', 'NODES'))),
      );
      if (new Set(views).size > 1) throw new Error(`The nodes do not agree:\n${views.join('\n\n')}`);
    }, PATIENCE);
  }

  /** Copies every replica has: a failover that comes now loses nothing. */
  async untilReplicated(): Promise<void> {
    await eventually(async () => {
      for (const server of this.servers) {
        await expectLinked(server);
        const [role, , masterPort] = await ask<[string, string, number]>(server, 'ROLE');
        const master = role === 'slave' && this.servers.find(({ port }) => port === masterPort);
        if (master) await expectCopied(master, server);
      }
    }, PATIENCE);
  }

  async stop(): Promise<void> {
    await Promise.all(this.servers.map((server) => server.stop()));
    rmSync(this.folder, { recursive: true, force: true });
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.stop();
  }

  private get first(): RedisServer {
    return this.servers[0] as RedisServer;
  }
}

/** Of a line of CLUSTER NODES: `id host:port@bus flags ...` */
const portOf = (line: string): number => Number(/:(\d+)@/.exec(line)?.[1]);

/** The ranges that a node says are its own. */
const ownSlots = (nodes: string): [number, number][] => {
  const mine = nodes.split('\n').find((line) => line.includes('myself')) ?? '';
  return mine
    .split(' ')
    .slice(8)
    .filter((range) => /^\d/.test(range))
    .map((range) => range.split('-').map(Number))
    .map(([from = 0, to = from]) => [from, to]);
};

/** What CLUSTER NODES says of each node but its health: `id address flags master ping pong epoch link slots...` */
const rolesAndSlots = (nodes: string): string =>
  nodes
    .trim()
    .split('\n')
    .map((line) => line.split(' '))
    .map(([id, , flags = '', master, , , , , ...slots]) =>
      [id, /master|slave/.exec(flags)?.[0], master, ...slots.filter((slot) => /^\d/.test(slot))].join(' '),
    )
    .sort()
    .join('\n');

async function giveSlots(masters: readonly RedisServer[]): Promise<void> {
  const share = Math.ceil(SLOTS / masters.length);
  const slots = [...Array(SLOTS).keys()];
  await Promise.all(
    masters.map(async (master, i) => {
      await ask(master, 'CLUSTER', 'ADDSLOTS', ...slots.slice(i * share, (i + 1) * share));
      await ask(master, 'CLUSTER', 'SET-CONFIG-EPOCH', i + 1);
    }),
  );
}

async function introduce(servers: readonly RedisServer[]): Promise<void> {
  const [first, ...others] = servers as [RedisServer, ...RedisServer[]];
  for (const { host, port } of others) await ask(first, 'CLUSTER', 'MEET', host, port);
  await eventually(async () => {
    for (const server of servers) {
      const known = (await ask(server, 'CLUSTER', 'NODES'))
        .split('\n')
        .filter((line) => / connected/.test(line));
      if (known.length < servers.length) throw new Error(`Node ${server.port} knows ${known.length} nodes.`);
    }
  }, PATIENCE);
}

async function linkReplicas(
  masters: readonly RedisServer[],
  replicas: readonly RedisServer[],
): Promise<void> {
  const ids = await Promise.all(masters.map((master) => ask(master, 'CLUSTER', 'MYID')));
  await Promise.all(
    replicas.map((replica, i) => ask(replica, 'CLUSTER', 'REPLICATE', ids[i % ids.length] as string)),
  );
}

/**
 * Starts a Cluster and waits until it serves. `stop()` it, or let `await using` do so.
 *
 * @example await using cluster = await startRedisCluster({ replicas: 1 });
 */
export async function startRedisCluster({
  masters = 3,
  replicas = 0,
  nodeTimeoutMs = 2_000,
  args = [],
  command,
}: RedisClusterOptions = {}): Promise<RedisCluster> {
  const folder = mkdtempSync(join(tmpdir(), 'syncguard-cluster-'));
  const clock = ServerClock.create(join(folder, 'clock'));
  const nodeArgs = [
    ...['--cluster-enabled', 'yes', '--cluster-announce-ip', '127.0.0.1'],
    ...['--cluster-node-timeout', String(nodeTimeoutMs), '--repl-timeout', '1000000'],
    ...['--repl-diskless-sync', 'yes', '--repl-diskless-sync-delay', '0'],
    ...['--cluster-migration-barrier', '100'], // a replica stays with its master
    ...args,
  ];
  const started = await Promise.allSettled(
    Array.from({ length: masters * (1 + replicas) }, () =>
      startRedisServer({ args: nodeArgs, command, clock }),
    ),
  );
  const servers = started.flatMap((result) => (result.status === 'fulfilled' ? [result.value] : []));
  const cluster = new RedisCluster(servers, clock, folder);
  try {
    for (const result of started) if (result.status === 'rejected') throw result.reason;
    await giveSlots(servers.slice(0, masters));
    await introduce(servers);
    await linkReplicas(servers.slice(0, masters), servers.slice(masters));
    await cluster.untilReplicated();
    clock.advance(START_MS);
    await cluster.untilUp();
    clock.reset();
    return cluster;
  } catch (error) {
    await cluster.stop();
    throw error;
  }
}
