import { MemoryBudgetBackend } from '../budget/budget.memory-backend.js';
import type { Clock } from '../clock.js';
import { MemoryCounterBackend } from '../limit/counter.memory-backend.js';
import { MemoryLimitBackend } from '../limit/limit.memory-backend.js';
import type { LockBackend } from '../lock/lock.backend.js';
import { MemoryLockBackend } from '../lock/lock.memory-backend.js';
import type { MemoryCapabilities } from '../lock/lock.types.js';
import { MemorySecretBackend } from '../secret/secret.memory-backend.js';
import { invalidOption, knownOptions } from '../validate.js';
import type { Backends } from './backends.js';

export interface MemoryBackendsConfig {
  readonly budget: { readonly retentionMs: number };
  readonly secret: { readonly tombstoneMs: number };
}

export function memoryBackends(
  { budget, secret }: MemoryBackendsConfig,
  clock?: Clock,
): Backends<MemoryCapabilities> {
  return {
    lock: new MemoryLockBackend(clock),
    limit: new MemoryLimitBackend(clock),
    limitFallback: null,
    budget: new MemoryBudgetBackend({ clock, retentionMs: budget.retentionMs }),
    secret: new MemorySecretBackend(secret, clock),
    counter: new MemoryCounterBackend(clock),
  };
}

/**
 * Creates a lock backend in the memory of this process, without Nest. For a single process, and for tests.
 *
 * @param config.clock - where the time comes from. Default: the system's clock.
 * @throws SyncGuardConfigError when an option is malformed
 * @example
 * const locks = createMemoryBackend();
 * const lock = await locks.acquire({ key: 'order:7', ttlMs: 30_000 });
 */
export function createMemoryBackend(config: { clock?: Clock } = {}): LockBackend<MemoryCapabilities> {
  const { clock } = knownOptions('config', config, ['clock']) as typeof config;
  if (clock !== undefined && typeof (clock as Partial<Clock> | null)?.now !== 'function')
    throw invalidOption('config.clock', 'a clock: an object with now()', clock);
  return new MemoryLockBackend(clock);
}
