import { MemoryBudgetBackend } from '../budget/memory/budget.memory-backend.js';
import type { Clock } from '../core/clock.js';
import { MemoryCounterBackend } from '../counter/memory/counter.memory-backend.js';
import { MemoryLimitBackend } from '../limit/memory/limit.memory-backend.js';
import { MemoryFenceBackend } from '../lock/memory/fence.memory-backend.js';
import { MemoryLockBackend } from '../lock/memory/lock.memory-backend.js';
import { MemoryOnceBackend } from '../once/memory/once.memory-backend.js';
import { MemorySecretBackend } from '../secret/memory/secret.memory-backend.js';
import type { Backends } from './backends.js';

export interface MemoryBackendsConfig {
  readonly budget: { readonly retentionMs: number };
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
  once: new MemoryOnceBackend(clock),
});
