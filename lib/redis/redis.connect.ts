import { Cluster, Redis, type ClusterOptions, type RedisOptions } from 'ioredis';
import { leaveReplica } from './leave-replica.js';
import type { IoredisClient, RedisClient, RedisConnectionOptions } from './redis.client.js';

type ReconnectOnError = NonNullable<RedisOptions['reconnectOnError']>;

// The options of the user take precedence over these.
const DEFAULTS = {
  connectionName: 'syncguard',
  // After a failover the old primary accepts writes for about 10 s. With this option the client hears of the failover
  // from Sentinel at once.
  failoverDetector: true,
} satisfies RedisOptions;

// Our own connections neither queue nor re-send commands, since a command must not run after its caller has
// given up. `maxRetriesPerRequest: 0` rejects pending commands as soon as the connection breaks.
const REQUIRED = {
  enableOfflineQueue: false,
  autoResendUnfulfilledCommands: false,
  maxRetriesPerRequest: 0,
  lazyConnect: false,
  stringNumbers: false,
  // A socket that does not close must not keep the process alive.
  disconnectTimeout: 100,
} satisfies RedisOptions;

/** Opens a connection of our own. It connects at once, and retries until it succeeds. */
export function openConnection(redis: Exclude<RedisConnectionOptions, IoredisClient>): RedisClient {
  if (typeof redis === 'string') return openUrl(redis);
  if ('nodes' in redis) return new Cluster(redis.nodes, clusterOptions(redis.options));
  return new Redis(ownOptions(redis));
}

/** In ioredis the first argument takes precedence, so the options in the query of the URL come before our defaults. */
function openUrl(url: string): RedisClient {
  const Client = Redis as unknown as new (...options: (RedisOptions | string)[]) => Redis;
  return new Client({ ...REQUIRED, reconnectOnError: leaveReplica() }, url, DEFAULTS);
}

function ownOptions(options: RedisOptions): RedisOptions {
  const theirs: ReconnectOnError | null | undefined = options.reconnectOnError;
  const leaves = leaveReplica();
  return {
    ...DEFAULTS,
    ...options,
    ...REQUIRED,
    // A boolean, because the value `2` would make ioredis send the command again.
    reconnectOnError: (error) => Boolean(theirs?.(error)) || leaves(error),
  };
}

function clusterOptions(options: ClusterOptions = {}): ClusterOptions {
  return {
    // ioredis repeats a command 16 times by default while the Cluster is down. With this pause in between, that takes
    // less than the default `commandTimeoutMs`. So the call fails with the error of the Cluster and not with a timeout.
    retryDelayOnClusterDown: 50,
    ...options,
    enableOfflineQueue: false,
    lazyConnect: false,
    redisOptions: ownOptions(options.redisOptions ?? {}),
  };
}
