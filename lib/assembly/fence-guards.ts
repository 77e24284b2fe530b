import { knownOptions } from '../core/validate.js';
import { FenceGuard } from '../lock/fence-guard.js';
import { MemoryFenceBackend } from '../lock/memory/fence.memory-backend.js';
import { RedisFenceBackend } from '../lock/redis/fence.redis-backend.js';
import type {
  EvalClient,
  IoredisClient,
  RedisClient,
  RedisConnectionOptions,
} from '../redis/redis.client.js';
import { validateKeyPrefix } from '../redis/redis.keys.js';
import { resolveCommandTimeout, resolveKeyLayout, validateRedis } from '../redis/redis.options.js';
import { ScriptRunner } from '../script/script-runner.js';
import type { RedisBackendConfig } from './lock-backends.js';

/** Options of {@link createFenceGuard}. They mean the same as in {@link createRedisBackend}. */
export type FenceGuardConfig = Pick<RedisBackendConfig, 'keyPrefix' | 'keyLayout' | 'commandTimeoutMs'>;

/**
 * Creates a {@link FenceGuard} without Nest, for a program that writes with a fence.
 *
 * @param client - an ioredis `Redis` or `Cluster`, or a client that has only `eval`. The caller closes it. Undefined: the
 *   guard works in the memory of this process, for tests.
 * @throws SyncGuardConfigError when an option is malformed
 * @example
 * const fences = createFenceGuard(redis);
 * const { ok } = await fences.apply({ resource: 'order:7', fence, lockId });
 */
export function createFenceGuard(
  client?: IoredisClient | EvalClient,
  config: FenceGuardConfig = {},
): FenceGuard {
  knownOptions('config', config, ['keyPrefix', 'keyLayout', 'commandTimeoutMs']);
  const keyPrefix = validateKeyPrefix(config.keyPrefix ?? 'syncguard');
  if (client === undefined) return new FenceGuard(new MemoryFenceBackend(), { keyPrefix });
  const redis = validateRedis(client) as RedisConnectionOptions & RedisClient;
  const runner = new ScriptRunner(redis, resolveCommandTimeout(config.commandTimeoutMs));
  const keyLayout = resolveKeyLayout(config.keyLayout, redis);
  return new FenceGuard(new RedisFenceBackend(runner, { keyPrefix, keyLayout }), { keyPrefix });
}
