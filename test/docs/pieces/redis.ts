import { Cluster, Redis } from 'ioredis';
import { leaveReplica } from 'nestjs-syncguard';

export const primary = () =>
  new Redis({
    host: 'redis.internal',
    socketTimeout: 2_000, // A connection whose other end has vanished is given up.
    reconnectOnError: leaveReplica(), // A primary that became a replica is left, once.
    // Behind Sentinel:
    sentinels: [{ host: 'sentinel-1', port: 26379 }],
    name: 'main',
    failoverDetector: true, // The old primary is left as soon as a Sentinel says so.
    sentinelCommandTimeout: 1_000, // A Sentinel that does not answer is passed over.
  });

export const cluster = (nodes: string[]) =>
  new Cluster(nodes, {
    slotsRefreshInterval: 2_000, // The new master is looked for also while nothing answers.
    redisOptions: { socketTimeout: 2_000 }, // A connection whose other end has vanished is given up.
  });
