import { Cluster, Redis, type ClusterOptions, type RedisOptions } from 'ioredis';
import type { IoredisClient, RedisClient, RedisConnectionOptions } from './redis.client.js';

type ReconnectOnError = NonNullable<RedisOptions['reconnectOnError']>;

// A user's options may say otherwise.
const DEFAULTS = {
  connectionName: 'syncguard',
  // A primary that was replaced goes on taking writes for about 10 s: Sentinel says so at once, who listens.
  failoverDetector: true,
} satisfies RedisOptions;

// Our own connections re-send nothing and park nothing: a command whose caller has given up must not run
// later. (`maxRetriesPerRequest: 0` settles what is in flight as soon as the connection breaks.)
const REQUIRED = {
  enableOfflineQueue: false,
  autoResendUnfulfilledCommands: false,
  maxRetriesPerRequest: 0,
  lazyConnect: false,
  stringNumbers: false,
  reconnectOnError: (error) => isReadOnly(error),
  // A socket that does not close must not keep the process alive after the app.
  disconnectTimeout: 100,
} satisfies RedisOptions;

/** The server has become a replica: the address leads to the new primary, or will. */
const isReadOnly = (error: Error): boolean => /\bREADONLY\b/.test(error.message);

/** Opens a connection of our own; it connects at once, and goes on trying for as long as it takes. */
export function openConnection(redis: Exclude<RedisConnectionOptions, IoredisClient>): RedisClient {
  if (typeof redis === 'string') return openUrl(redis);
  if ('nodes' in redis) return new Cluster(redis.nodes, clusterOptions(redis.options));
  return new Redis(ownOptions(redis));
}

/** ioredis lets the first of its arguments win: what a URL's query says is no more than a default of ours. */
function openUrl(url: string): RedisClient {
  const Client = Redis as unknown as new (...options: (RedisOptions | string)[]) => Redis;
  return new Client(REQUIRED, url, DEFAULTS);
}

function ownOptions(options: RedisOptions): RedisOptions {
  const theirs: ReconnectOnError | null | undefined = options.reconnectOnError;
  return {
    ...DEFAULTS,
    ...options,
    ...REQUIRED,
    // `2` would send the command again.
    ...(theirs ? { reconnectOnError: (error) => Boolean(theirs(error)) || isReadOnly(error) } : {}),
  };
}

function clusterOptions(options: ClusterOptions = {}): ClusterOptions {
  return {
    // 16 times, as often as ioredis asks again by default, are less than the default deadline of a call: it ends with
    // what the Cluster said.
    retryDelayOnClusterDown: 50,
    ...options,
    enableOfflineQueue: false,
    lazyConnect: false,
    redisOptions: ownOptions(options.redisOptions ?? {}),
  };
}
