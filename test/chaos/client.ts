import { Cluster, type ClusterNode, Redis, type RedisOptions } from 'ioredis';
import { leaveReplica } from 'nestjs-syncguard';

const RECOMMENDED: RedisOptions = {
  socketTimeout: 2_000,
  reconnectOnError: leaveReplica(),
  failoverDetector: true,
  disconnectTimeout: 100,
};

/** A client as users make it, set up as docs/redis.md says. */
export function clientFor(address: object | string): Redis | Cluster {
  return open(address).on('error', () => {}); // Faults are the point.
}

function open(address: object | string): Redis | Cluster {
  if (typeof address === 'string') return new Redis(address, RECOMMENDED);
  if ('nodes' in address) {
    const { nodes } = address as { nodes: ClusterNode[] };
    return new Cluster(nodes, { redisOptions: RECOMMENDED });
  }
  return new Redis({ ...(address as RedisOptions), ...RECOMMENDED });
}
