import { RedisBudgetBackend } from '../budget/budget.redis-backend.js';
import { RedisCounterBackend } from '../limit/counter.redis-backend.js';
import { MemoryLimitBackend } from '../limit/limit.memory-backend.js';
import { RedisLimitBackend } from '../limit/limit.redis-backend.js';
import type { LockBackend } from '../lock/lock.backend.js';
import { slottedLayout, specLayout } from '../lock/lock.layout.js';
import { RedisLockBackend } from '../lock/lock.redis-backend.js';
import type { RedisCapabilities } from '../lock/lock.types.js';
import type { RedisClient } from '../redis/redis.client.js';
import { ScriptRunner } from '../script/script-runner.js';
import { RedisSecretBackend } from '../secret/secret.redis-backend.js';
import { resolveOptions, type SyncGuardOptions } from '../syncguard.options.js';
import { invalidOption, knownOptions } from '../validate.js';
import type { Backends } from './backends.js';

export interface RedisBackendsConfig {
  readonly keyPrefix: string;
  readonly keyLayout: 'spec' | 'slotted';
  readonly lock: { readonly cleanupInIsLocked: boolean };
  readonly budget: { readonly retentionMs: number };
  readonly secret: { readonly tombstoneMs: number };
}

export function redisBackends(
  runner: ScriptRunner,
  { keyPrefix, keyLayout, lock, budget, secret }: RedisBackendsConfig,
  warn: (message: string) => void,
): Backends<RedisCapabilities> {
  const layout = keyLayout === 'spec' ? specLayout(keyPrefix) : slottedLayout(keyPrefix, runner.client);
  return {
    lock: new RedisLockBackend(runner, layout, { cleanupInIsLocked: lock.cleanupInIsLocked, warn }),
    limit: new RedisLimitBackend(runner, keyPrefix),
    limitFallback: new MemoryLimitBackend(),
    budget: new RedisBudgetBackend(runner, { keyPrefix, retentionMs: budget.retentionMs }),
    secret: new RedisSecretBackend(runner, { keyPrefix, tombstoneMs: secret.tombstoneMs }),
    counter: new RedisCounterBackend(runner, { keyPrefix }),
  };
}

export interface RedisBackendConfig extends Pick<
  SyncGuardOptions,
  'keyPrefix' | 'keyLayout' | 'commandTimeoutMs'
> {
  /** See `LockDefaults.cleanupInIsLocked`. Default: false. */
  cleanupInIsLocked?: boolean;
  /** Where warnings go. Default: `process.emitWarning`. */
  warn?: (message: string) => void;
}

/**
 * Creates a lock backend on Redis, without Nest.
 *
 * @param client - an ioredis `Redis` or `Cluster`. The caller closes it.
 * @throws SyncGuardConfigError when an option is malformed
 * @example
 * const locks = createRedisBackend(new Redis());
 * const lock = await locks.acquire({ key: 'order:7', ttlMs: 30_000 });
 * if (lock.ok) await lock.release();
 */
export function createRedisBackend(
  client: RedisClient,
  config: RedisBackendConfig = {},
): LockBackend<RedisCapabilities> {
  knownOptions('config', config, ['keyPrefix', 'keyLayout', 'commandTimeoutMs', 'cleanupInIsLocked', 'warn']);
  const {
    cleanupInIsLocked,
    warn = (message) => process.emitWarning(message, 'SyncGuardWarning'),
    ...rest
  } = config;
  if (typeof warn !== 'function') throw invalidOption('config.warn', 'a function', warn);
  const options = resolveOptions({
    ...rest,
    redis: client as SyncGuardOptions['redis'],
    lock: { cleanupInIsLocked },
  });
  return redisBackends(new ScriptRunner(client, options.commandTimeoutMs), options, warn).lock;
}
