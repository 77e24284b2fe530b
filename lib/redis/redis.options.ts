import { SyncGuardConfigError } from '../core/errors.js';
import { describe, integer, invalidOption, knownOptions, oneOf } from '../core/validate.js';
import type { RedisClient, RedisConnectionOptions } from './redis.client.js';

/** Checks the longest time for one command to Redis, in ms. Default: 1,000. */
export const resolveCommandTimeout = (ms: unknown): number =>
  integer('commandTimeoutMs', ms ?? 1_000, 1, 600_000);

export const isRedisClient = (redis: unknown): redis is RedisClient =>
  typeof redis === 'object' &&
  redis !== null &&
  (typeof (redis as RedisClient).defineCommand === 'function' ||
    typeof (redis as RedisClient).eval === 'function');

const isClusterOptions = (redis: unknown): redis is Extract<RedisConnectionOptions, { nodes: unknown }> =>
  typeof redis === 'object' && redis !== null && 'nodes' in redis && !isRedisClient(redis);

export function resolveKeyLayout(
  layout: unknown,
  redis: RedisConnectionOptions | undefined,
): 'spec' | 'slotted' {
  const cluster = isClusterOptions(redis) || (isRedisClient(redis) && redis.isCluster === true);
  if (layout === undefined) return cluster ? 'slotted' : 'spec';
  const chosen = oneOf('keyLayout', layout, ['spec', 'slotted']);
  if (cluster && chosen === 'spec')
    throw new SyncGuardConfigError(`keyLayout must be "slotted" on a Redis Cluster, got "spec".`, {
      hint: 'The spec layout puts the keys of one lock into several slots, but a script can reach one slot only. Leave the option out.',
    });
  return chosen;
}

export function validateRedis(redis: unknown): RedisConnectionOptions {
  if (typeof redis === 'string') return validateUrl(redis);
  if (isRedisClient(redis)) {
    refuseOtherClients(redis);
    refuseStringNumbers(redis.options, 'pass `client.duplicate({ stringNumbers: false })`');
    return redis as RedisConnectionOptions;
  }
  if (isClusterOptions(redis)) {
    knownOptions('redis', redis, ['nodes', 'options']);
    if (!Array.isArray(redis.nodes) || redis.nodes.length === 0)
      throw invalidOption('redis.nodes', 'a list of at least one node', redis.nodes);
    refuseStringNumbers(redis.options);
    return redis;
  }
  if (typeof redis !== 'object' || redis === null || Array.isArray(redis))
    throw invalidOption('redis', 'a URL, ioredis options, an ioredis client or { nodes }', redis);
  const { host, port } = redis as { host?: unknown; port?: unknown };
  if (host !== undefined && typeof host !== 'string') throw invalidOption('redis.host', 'a string', host);
  if (port !== undefined) integer('redis.port', Number(port), 1, 65_535);
  refuseStringNumbers(redis);
  return redis;
}

/**
 * Refuses a client of the package `redis`. It is recognised by its methods: it has `evalSha` (`send_command` before
 * version 4) and no `defineCommand`.
 */
function refuseOtherClients(client: RedisClient & { evalSha?: unknown; send_command?: unknown }): void {
  if (typeof client.defineCommand === 'function') return;
  if (typeof client.evalSha !== 'function' && typeof client.send_command !== 'function') return;
  throw new SyncGuardConfigError('redis must not be a client of the package `redis` (node-redis).', {
    hint: 'SyncGuard uses ioredis. Pass a URL, the options of ioredis, or a client of ioredis.',
  });
}

function refuseStringNumbers(options: RedisClient['options'], instead = 'leave it out'): void {
  if (!options?.stringNumbers && !options?.redisOptions?.stringNumbers) return;
  throw new SyncGuardConfigError('redis must not have the option `stringNumbers`.', {
    hint: `It turns the integers in the replies of scripts into text. To correct this, ${instead}.`,
  });
}

/** Checks a URL. The errors never quote it, because it may contain a password. */
function validateUrl(url: string): string {
  const wrong = (what: string): SyncGuardConfigError =>
    new SyncGuardConfigError(`redis must be a URL like redis://user:password@host:6379/0, but ${what}.`, {
      hint: 'The value is not shown, because it may contain a password. "/" and "@" in a password must be percent-encoded.',
    });
  if (url.startsWith('/')) return url;
  if (url === '') throw wrong('it is empty; leave the option out for the memory backend');
  if (!URL.canParse(url)) throw wrong(`it cannot be parsed (${describe(url)})`);
  const { protocol, hostname, pathname } = new URL(url);
  if (protocol !== 'redis:' && protocol !== 'rediss:') throw wrong(`its scheme is "${protocol}//"`);
  if (hostname === '') throw wrong('it names no host');
  if (!/^\/?\d*$/.test(pathname)) throw wrong('its path is not a database number');
  return url;
}
