import { RedisBudgetBackend } from '../budget/redis/budget.redis-backend.js';
import { RedisCounterBackend } from '../counter/redis/counter.redis-backend.js';
import { MemoryLimitBackend } from '../limit/memory/limit.memory-backend.js';
import { RedisLimitBackend } from '../limit/redis/limit.redis-backend.js';
import { RedisFenceBackend } from '../lock/redis/fence.redis-backend.js';
import type { RedisCapabilities } from '../lock/lock.types.js';
import type { ScriptRunner } from '../script/script-runner.js';
import { RedisSecretBackend } from '../secret/redis/secret.redis-backend.js';
import type { Backends } from './backends.js';
import { redisLocks } from './lock-backends.js';

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
  return {
    lock: redisLocks(runner, { keyPrefix, keyLayout, cleanupInIsLocked: lock.cleanupInIsLocked, warn }),
    fence: new RedisFenceBackend(runner, { keyPrefix, keyLayout }),
    limit: new RedisLimitBackend(runner, keyPrefix),
    limitFallback: new MemoryLimitBackend(),
    budget: new RedisBudgetBackend(runner, { keyPrefix, retentionMs: budget.retentionMs }),
    secret: new RedisSecretBackend(runner, { keyPrefix, tombstoneMs: secret.tombstoneMs }),
    counter: new RedisCounterBackend(runner, { keyPrefix }),
  };
}
