import { SyncGuardConfigError } from '../core/errors.js';
import { describe, integer, invalidOption, oneOf } from '../core/validate.js';
import { validateCluster, validateServer, validateUrl } from './redis.address.js';
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
  if (typeof redis === 'string') return validateUrl('redis', redis);
  if (isRedisClient(redis)) return validateClient(redis) as RedisConnectionOptions;
  if (typeof redis !== 'object' || redis === null || Array.isArray(redis))
    throw invalidOption('redis', 'a URL, ioredis options, an ioredis client or { nodes }', redis);
  if (isClusterOptions(redis)) {
    validateCluster(redis);
    refuseStringNumbers(redis.options);
  } else {
    validateServer(redis);
    refuseStringNumbers(redis);
  }
  return redis;
}

/** Checks a client of the user. The error does not show a text, because it may be a URL with a password. */
export function validateClient(client: unknown): RedisClient {
  if (!isRedisClient(client))
    throw new SyncGuardConfigError(
      `client must be an ioredis Redis or Cluster, or have eval, got ${describe(client)}.`,
    );
  refuseOtherClients(client);
  refuseStringNumbers(client.options, 'pass `client.duplicate({ stringNumbers: false })`');
  return client;
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
