import type { Cluster, Redis } from 'ioredis';
import { type RedisServer, type RedisServerOptions, startRedisServer } from '../redis-server.js';
import type { ServerClock } from '../server-clock.js';
import { ask } from './ask.js';
import { type RedisCluster, type RedisClusterOptions, startRedisCluster } from './cluster.js';
import { type SentinelGroup, type SentinelGroupOptions, startSentinelGroup } from './sentinel.js';

/** Whatever a suite stands on: one server, a Cluster, a primary behind Sentinels. */
export interface Engine {
  /** What users write as the module's option `redis`. */
  readonly address: object | string;
  /** All of its data servers follow it. */
  readonly clock: ServerClock;
  /** A client as users make it, closed with the engine. */
  client(): Redis | Cluster;
  closeClients(): void;
  /** The servers that take writes now. */
  primaries(): Promise<RedisServer[]>;
  flush(): Promise<void>;
  stop(): Promise<void>;
}

/** Ten years: nobody is taken for dead when a suite moves the clock. */
export const NEVER_MS = 315_360_000_000;

export type StartSingle = Pick<RedisServerOptions, 'args' | 'command'>;

export interface SingleEngine extends Engine {
  readonly server: RedisServer;
}

export async function startSingleEngine(options?: StartSingle): Promise<SingleEngine> {
  const server = await startRedisServer(options);
  return {
    ...{ server, address: server.url, clock: server.clock },
    client: () => server.client(),
    closeClients: () => server.closeClients(),
    primaries: async () => [server],
    flush: async () => void (await ask(server, 'FLUSHALL')),
    stop: () => server.stop(),
  };
}

export interface ClusterEngine extends Engine {
  readonly cluster: RedisCluster;
}

export async function startClusterEngine(options?: RedisClusterOptions): Promise<ClusterEngine> {
  const cluster = await startRedisCluster({ replicas: 1, ...options });
  return {
    ...{ cluster, address: { nodes: cluster.nodes }, clock: cluster.clock },
    client: () => cluster.client(),
    closeClients: () => cluster.closeClients(),
    primaries: () => cluster.masters(),
    flush: () => cluster.flush(),
    stop: () => cluster.stop(),
  };
}

export interface SentinelEngine extends Engine {
  readonly group: SentinelGroup;
}

export async function startSentinelEngine(options?: SentinelGroupOptions): Promise<SentinelEngine> {
  const group = await startSentinelGroup(options);
  return {
    ...{ group, address: group.options, clock: group.clock },
    client: () => group.client(),
    closeClients: () => group.closeClients(),
    primaries: async () => [await group.primary()],
    flush: () => group.flush(),
    stop: () => group.stop(),
  };
}
