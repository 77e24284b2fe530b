const OLDEST_VERSION = [6, 2] as const;

/**
 * What in a server's INFO endangers a promise of ours, each with its code and what to do. (INFO and not
 * CONFIG, which is often forbidden.)
 */
export function serverWarnings(info: string): string[] {
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
  const policy = facts.get('maxmemory_policy') ?? '';
  if (facts.get('maxmemory') !== '0' && /^allkeys/.test(policy))
    warnings.push(
      `REDIS_EVICTION: maxmemory-policy is ${policy}, so a full server may drop locks and fence counters; use noeviction.`,
    );
  return warnings;
}

function isOlder(version: string): boolean {
  const [major, minor] = version.split('.').map(Number);
  if (major === undefined || minor === undefined || Number.isNaN(major) || Number.isNaN(minor)) return false;
  return major < OLDEST_VERSION[0] || (major === OLDEST_VERSION[0] && minor < OLDEST_VERSION[1]);
}
