import type { RedisClient } from '../redis/redis.client.js';

const OLDEST_VERSION = [6, 2] as const;

/** What one server said of itself; no `info` where INFO is forbidden or did not come. */
export interface ServerInfo {
  readonly address: string;
  readonly info: string | undefined;
}

/**
 * What in the servers' INFO endangers a promise of ours, each with its code and what to do. (INFO and not
 * CONFIG, which is often forbidden.)
 */
export function serverWarnings(servers: readonly ServerInfo[], isCluster: boolean): string[] {
  const addresses = new Map<string, string[]>();
  for (const { address, info } of servers)
    for (const warning of info === undefined ? [NOT_CHECKED] : warningsOf(info, isCluster))
      addresses.set(warning, [...(addresses.get(warning) ?? []), address]);
  return [...addresses].map(([warning, at]) => (isCluster ? `${warning} (${at.join(', ')})` : warning));
}

/** What in the options of a client leaves a promise of ours open. Our own connections are without fault. */
export function clientWarnings(client: RedisClient, { own = false } = {}): string[] {
  const { options } = client;
  if (!options) return []; // A mock.
  const connection = client.isCluster ? options.redisOptions : options;
  const warnings: string[] = [];
  if (options.sentinels && !options.failoverDetector) warnings.push(NO_FAILOVER_DETECTOR);
  if (!own && !connection?.socketTimeout) warnings.push(NO_SOCKET_TIMEOUT);
  if (!own && !client.isCluster && !leavesReplicas(options.reconnectOnError))
    warnings.push(NO_RECONNECT_ON_ERROR);
  return warnings;
}

/** Asks the function itself: one that reconnects on other errors only does not help. */
function leavesReplicas(reconnectOnError: ((error: Error) => unknown) | null | undefined): boolean {
  try {
    return Boolean(reconnectOnError?.(new Error("READONLY You can't write against a read only replica.")));
  } catch {
    return false;
  }
}

const NO_FAILOVER_DETECTOR =
  'REDIS_NO_FAILOVER_DETECTOR: the Sentinel client has no `failoverDetector: true`, so that for about 10 s after a failover it may go on writing to the old primary: locks are granted twice, budgets overspent.';
const NO_SOCKET_TIMEOUT =
  'REDIS_NO_SOCKET_TIMEOUT: the client has no `socketTimeout`, so that it never gives up a connection whose other end has vanished; set one of about 2 s.';
const NO_RECONNECT_ON_ERROR =
  "REDIS_NO_RECONNECT_ON_ERROR: the client does not leave a primary that has become a replica; set `reconnectOnError: ({ message }) => message.includes('READONLY')`.";
const NOT_CHECKED =
  'REDIS_NOT_CHECKED: INFO is refused or did not come, so that version, role and eviction policy are not known; allow the command INFO.';

function warningsOf(info: string, isCluster: boolean): string[] {
  const facts = new Map(info.split(/\r?\n/).map((line) => line.split(':', 2) as [string, string]));
  const warnings: string[] = [];
  const version = facts.get('redis_version') ?? '';
  if (isOlder(version))
    warnings.push(
      `REDIS_TOO_OLD: the server is Redis ${version}; SyncGuard needs ${OLDEST_VERSION.join('.')} or newer.`,
    );
  if (facts.get('role') === 'slave')
    warnings.push(
      'REDIS_REPLICA: the server is a replica and takes no writes; connect to the primary, or through Sentinel.',
    );
  if (facts.get('redis_mode') === 'cluster' && !isCluster)
    warnings.push(
      'REDIS_CLUSTER_NODE: the server is a node of a Cluster, and the client knows only this one; pass `redis: { nodes: [...] }` or an ioredis `Cluster`.',
    );
  const policy = facts.get('maxmemory_policy') ?? 'noeviction';
  if (policy !== 'noeviction')
    warnings.push(
      `REDIS_EVICTION: maxmemory-policy is ${policy}, so that a full server drops locks, budgets, blocks and secrets; use noeviction.`,
    );
  return warnings;
}

function isOlder(version: string): boolean {
  const [major, minor] = version.split('.').map(Number);
  if (major === undefined || minor === undefined || Number.isNaN(major) || Number.isNaN(minor)) return false;
  return major < OLDEST_VERSION[0] || (major === OLDEST_VERSION[0] && minor < OLDEST_VERSION[1]);
}
