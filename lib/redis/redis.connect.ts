import { Cluster, Redis, type ClusterNode, type ClusterOptions, type RedisOptions } from 'ioredis';
import { leaveReplica } from './leave-replica.js';
import type { IoredisClient, RedisClient, RedisConnectionOptions } from './redis.client.js';

type ReconnectOnError = NonNullable<RedisOptions['reconnectOnError']>;

// The options of the user take precedence over these.
const DEFAULTS = { connectionName: 'syncguard' } satisfies RedisOptions;
const SERVER_DEFAULTS = {
  ...DEFAULTS,
  // After a failover the old primary accepts writes for about 10 s. With this option the client hears of the failover
  // from Sentinel at once.
  failoverDetector: true,
  // A Sentinel that does not answer is passed over. Without a limit it would be waited for, for ever.
  sentinelCommandTimeout: 1_000,
} satisfies RedisOptions;

// Our own connections do not re-send commands, since a command must not run after its caller has given up.
// `maxRetriesPerRequest: 0` rejects pending commands as soon as the connection breaks.
const REQUIRED = {
  autoResendUnfulfilledCommands: false,
  maxRetriesPerRequest: 0,
  stringNumbers: false,
  // A socket that does not close must not keep the process alive.
  disconnectTimeout: 100,
} satisfies RedisOptions;

/** Of a connection to one server, or of a Cluster as a whole: it connects at once, and keeps no command for later. */
const AT_ONCE = { enableOfflineQueue: false, lazyConnect: false };

// A node connects when it gets its first command. A Cluster without an offline queue refuses commands for a node that is
// still connecting, its own first one too. So it would never be ready unless a listed node is a master, which is
// connected by then.
const NODE_REQUIRED = { ...REQUIRED, lazyConnect: true } satisfies RedisOptions;

/** Opens a connection of our own. It connects at once, and retries until it succeeds. */
export function openConnection(redis: Exclude<RedisConnectionOptions, IoredisClient>): RedisClient {
  if (typeof redis === 'string') return openUrl(redis);
  if ('nodes' in redis) return new Cluster(redis.nodes, clusterOptions(redis.nodes, redis.options));
  return new Redis({ ...SERVER_DEFAULTS, ...redis, ...REQUIRED, ...AT_ONCE, ...leaving(redis) });
}

/** In ioredis the first argument takes precedence, so the options in the query of the URL come before our defaults. */
function openUrl(url: string): RedisClient {
  const Client = Redis as unknown as new (...options: (RedisOptions | string)[]) => Redis;
  return new Client({ ...REQUIRED, ...AT_ONCE, ...leaving() }, url, SERVER_DEFAULTS);
}

function leaving(options: RedisOptions = {}): Pick<RedisOptions, 'reconnectOnError'> {
  const theirs: ReconnectOnError | null | undefined = options.reconnectOnError;
  const leaves = leaveReplica();
  // A boolean, because the value `2` would make ioredis send the command again.
  return { reconnectOnError: (error) => Boolean(theirs?.(error)) || leaves(error) };
}

function clusterOptions(
  nodes: ClusterNode[],
  { redisOptions, ...options }: ClusterOptions = {},
): ClusterOptions {
  return {
    // ioredis repeats a command 16 times by default while the Cluster is down. With this pause in between, that takes
    // less than the default `commandTimeoutMs`. So the call fails with the error of the Cluster and not with a timeout.
    retryDelayOnClusterDown: 50,
    ...options,
    ...AT_ONCE,
    redisOptions: {
      ...DEFAULTS,
      ...optionsOfUrls(nodes),
      ...redisOptions,
      ...NODE_REQUIRED,
      ...leaving(redisOptions),
    },
  };
}

/**
 * What the URL of a node says of TLS and credentials is needed for the nodes that the Cluster names as well. ioredis
 * uses the credentials for this address only, and does not look for `rediss:`.
 */
function optionsOfUrls(nodes: ClusterNode[]): RedisOptions {
  const url = nodes.find((node): node is string => typeof node === 'string' && node.includes('://'));
  if (url === undefined) return {};
  const { protocol, username, password } = new URL(url);
  return {
    ...(protocol === 'rediss:' ? { tls: {} } : {}),
    ...(username ? { username: decodeURIComponent(username) } : {}),
    ...(password ? { password: decodeURIComponent(password) } : {}),
  };
}
