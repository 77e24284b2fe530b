import type { BudgetBackend } from '../budget/budget.backend.js';
import { MemoryBudgetBackend } from '../budget/memory/budget.memory-backend.js';
import { RedisBudgetBackend } from '../budget/redis/budget.redis-backend.js';
import type { Clock } from '../core/clock.js';
import type { CounterBackend } from '../counter/counter.backend.js';
import { MemoryCounterBackend } from '../counter/memory/counter.memory-backend.js';
import { RedisCounterBackend } from '../counter/redis/counter.redis-backend.js';
import type { LimitBackend } from '../limit/limit.backend.js';
import { MemoryLimitBackend } from '../limit/memory/limit.memory-backend.js';
import { RedisLimitBackend } from '../limit/redis/limit.redis-backend.js';
import type { FenceBackend } from '../lock/fence.backend.js';
import type { LockBackend } from '../lock/lock.backend.js';
import { MemoryFenceBackend } from '../lock/memory/fence.memory-backend.js';
import { MemoryLockBackend } from '../lock/memory/lock.memory-backend.js';
import { RedisFenceBackend } from '../lock/redis/fence.redis-backend.js';
import type { ScriptRunner } from '../script/script-runner.js';
import { MemorySecretBackend } from '../secret/memory/secret.memory-backend.js';
import { RedisSecretBackend } from '../secret/redis/secret.redis-backend.js';
import type { SecretBackend } from '../secret/secret.backend.js';
import { redisLocks } from './lock-backends.js';

/** The backends of all features. The services work on these ports. */
export interface Backends {
  readonly lock: LockBackend;
  readonly fence: FenceBackend;
  readonly limit: LimitBackend;
  /** Counts in this process while `limit` does not answer. Null if `limit` itself counts in this process. */
  readonly limitFallback: LimitBackend | null;
  readonly budget: BudgetBackend;
  readonly secret: SecretBackend;
  readonly counter: CounterBackend;
}

export interface MemoryBackendsConfig {
  readonly budget: { readonly retentionMs: number };
}

export interface RedisBackendsConfig extends MemoryBackendsConfig {
  readonly keyPrefix: string;
  readonly keyLayout: 'spec' | 'slotted';
  readonly lock: { readonly cleanupInIsLocked: boolean };
}

export const memoryBackends = (
  { budget }: MemoryBackendsConfig,
  clock?: Clock,
): Backends & { readonly lock: MemoryLockBackend } => ({
  lock: new MemoryLockBackend(clock),
  fence: new MemoryFenceBackend(),
  limit: new MemoryLimitBackend(clock),
  limitFallback: null,
  budget: new MemoryBudgetBackend({ clock, retentionMs: budget.retentionMs }),
  secret: new MemorySecretBackend(clock),
  counter: new MemoryCounterBackend(clock),
});

export const redisBackends = (
  runner: ScriptRunner,
  { keyPrefix, keyLayout, lock, budget }: RedisBackendsConfig,
  warn: (message: string) => void,
): Backends => ({
  lock: redisLocks(runner, { keyPrefix, keyLayout, cleanupInIsLocked: lock.cleanupInIsLocked, warn }),
  fence: new RedisFenceBackend(runner, { keyPrefix, keyLayout }),
  limit: new RedisLimitBackend(runner, keyPrefix),
  limitFallback: new MemoryLimitBackend(),
  budget: new RedisBudgetBackend(runner, { keyPrefix, retentionMs: budget.retentionMs }),
  secret: new RedisSecretBackend(runner, keyPrefix),
  counter: new RedisCounterBackend(runner, { keyPrefix }),
});
