import { leavesReplica } from './leave-replica.js';
import type { RedisClient } from './redis.client.js';

const OLDEST_VERSION = [6, 2] as const;

/** The INFO of one server. `info` is undefined if INFO is forbidden or was not answered in time. */
export interface ServerInfo {
  readonly address: string;
  readonly info: string | undefined;
}

/**
 * Returns a warning for each risk that the INFO of the servers shows, and one for servers without INFO. A warning
 * begins with its code and ends with a remedy. On a Cluster the addresses follow. INFO is read because CONFIG is often
 * forbidden.
 */
export function serverWarnings(servers: readonly ServerInfo[], isCluster: boolean): string[] {
  const addresses = new Map<string, string[]>();
  for (const { address, info } of servers)
    for (const warning of info === undefined ? [NOT_CHECKED] : warningsOf(info, isCluster))
      addresses.set(warning, [...(addresses.get(warning) ?? []), address]);
  return [...addresses].map(([warning, at]) => (isCluster ? `${warning} (${at.join(', ')})` : warning));
}

/**
 * Returns warnings about options of a client that put a guarantee at risk. For `own` connections it checks only the options
 * for Sentinel, which a user may turn off. The other risks are handled when we open a connection (`redis.connect.ts`,
 * `redis.hang-watch.ts`).
 */
export function clientWarnings(client: RedisClient, { own = false } = {}): string[] {
  const { options } = client;
  if (!options) return []; // A mock client has no options.
  const connection = client.isCluster ? options.redisOptions : options;
  return textsOf(
    options.sentinels && !options.failoverDetector && NO_FAILOVER_DETECTOR,
    options.sentinels && !options.sentinelCommandTimeout && NO_SENTINEL_TIMEOUT,
    !own && !connection?.socketTimeout && NO_SOCKET_TIMEOUT,
    !own && !client.isCluster && !leavesReplica(options.reconnectOnError) && NO_RECONNECT_ON_ERROR,
  );
}

/** Returns the warning about commands of our scripts that the ACL forbids. */
export const aclWarning = (commands: readonly string[]): string =>
  `REDIS_ACL: ${commands.join(', ')}: the ACL forbids commands of our scripts, so calls fail and health is down. Allow \`${commands.map((each) => `+${each.toLowerCase()}`).join(' ')}\`.`;

export const NO_PUBSUB =
  'REDIS_NO_PUBSUB: the ACL forbids PUBLISH or SUBSCRIBE, so no message can wake a call that waits for a lock, or for the answer of another call. Such calls try again five times a second. Allow `+publish +subscribe &PREFIX/*`, where PREFIX is the option `keyPrefix`.';
const NO_FAILOVER_DETECTOR =
  'REDIS_NO_FAILOVER_DETECTOR: the Sentinel client does not have `failoverDetector: true`. For about 10 s after a failover it may still write to the old primary, so locks may be granted twice and budgets overspent. Set the option.';
const NO_SENTINEL_TIMEOUT =
  'REDIS_NO_SENTINEL_TIMEOUT: the Sentinel client has no `sentinelCommandTimeout`, so it waits for ever for a Sentinel that does not answer, and asks no other. Set it to about 1000 ms.';
const NO_SOCKET_TIMEOUT =
  'REDIS_NO_SOCKET_TIMEOUT: the client has no `socketTimeout`, so it never closes a connection whose server has vanished. Set it to about 2000 ms.';
const NO_RECONNECT_ON_ERROR =
  'REDIS_NO_RECONNECT_ON_ERROR: the client would stay connected to a primary that has become a replica. Set `reconnectOnError: leaveReplica()`, from nestjs-syncguard.';
const NOT_CHECKED =
  'REDIS_NOT_CHECKED: the server refused the command INFO or did not answer it, so its version, role and eviction policy are unknown. Allow the command INFO.';

function warningsOf(info: string, isCluster: boolean): string[] {
  const facts = new Map(info.split(/\r?\n/).map((line) => line.split(':', 2) as [string, string]));
  const version = facts.get('redis_version') ?? '';
  const policy = facts.get('maxmemory_policy') ?? 'noeviction';
  return textsOf(
    isOlder(version) &&
      `REDIS_TOO_OLD: the server is Redis ${version}. SyncGuard needs ${OLDEST_VERSION.join('.')} or newer.`,
    facts.get('role') === 'slave' &&
      'REDIS_REPLICA: the server is a replica and refuses writes. Connect to the primary, or through Sentinel.',
    facts.get('redis_mode') === 'cluster' &&
      !isCluster &&
      'REDIS_CLUSTER_NODE: the server is a node of a Cluster, and the client knows only this node. Pass `redis: { nodes: [...] }` or an ioredis `Cluster`.',
    policy !== 'noeviction' &&
      `REDIS_EVICTION: maxmemory-policy is ${policy}, so a full server deletes locks, budgets, blocks and secrets. Use noeviction.`,
  );
}

/** Returns the warnings for what is the case: the others are falsy. */
const textsOf = (...warnings: unknown[]): string[] => warnings.filter((each) => typeof each === 'string');

/** A version that cannot be read is not older. */
function isOlder(version: string): boolean {
  const [major = NaN, minor = NaN] = version.split('.').map(Number);
  return major < OLDEST_VERSION[0] || (major === OLDEST_VERSION[0] && minor < OLDEST_VERSION[1]);
}
