import { Cluster, Redis, type ClusterOptions, type RedisOptions } from 'ioredis';
import type { RedisClient, RedisConnectionOptions } from './redis.client.js';

// Our own connections re-send nothing and park nothing: a command whose caller has given up must not run
// later. (`maxRetriesPerRequest: 0` settles what is in flight as soon as the connection breaks.)
const OWN_CONNECTION = {
  connectionName: 'syncguard',
  enableOfflineQueue: false,
  autoResendUnfulfilledCommands: false,
  maxRetriesPerRequest: 0,
  // A socket that does not close must not keep the process alive after the app.
  disconnectTimeout: 100,
} satisfies RedisOptions;

/** Opens a connection of our own; it connects at once, and goes on trying for as long as it takes. */
export function openConnection(redis: Exclude<RedisConnectionOptions, Redis | Cluster>): RedisClient {
  if (typeof redis === 'string') return new Redis(redis, OWN_CONNECTION);
  if ('nodes' in redis) return new Cluster(redis.nodes, clusterOptions(redis.options));
  return new Redis({ ...redis, ...OWN_CONNECTION, lazyConnect: false });
}

function clusterOptions(options: ClusterOptions = {}): ClusterOptions {
  return {
    ...options,
    enableOfflineQueue: false,
    lazyConnect: false,
    redisOptions: { ...options.redisOptions, ...OWN_CONNECTION },
  };
}
