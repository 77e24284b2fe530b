import { RedisBudgetBackend } from '../budget/redis/budget.redis-backend.js';
import { RedisCounterBackend } from '../counter/redis/counter.redis-backend.js';
import { MemoryLimitBackend } from '../limit/memory/limit.memory-backend.js';
import { RedisLimitBackend } from '../limit/redis/limit.redis-backend.js';
import { RedisFenceBackend } from '../lock/redis/fence.redis-backend.js';
import { RedisOnceBackend } from '../once/redis/once.redis-backend.js';
import { ProcessChannel } from '../script/process-channel.js';
import { ProcessPeers } from '../script/process-peers.js';
import type { ScriptRunner } from '../script/script-runner.js';
import { RedisSecretBackend } from '../secret/redis/secret.redis-backend.js';
import type { Backends } from './backends.js';
import { redisLocks } from './lock-backends.js';
import type { MemoryBackendsConfig } from './memory-backends.js';

export interface RedisBackendsConfig extends MemoryBackendsConfig {
  readonly keyPrefix: string;
  readonly keyLayout: 'spec' | 'slotted';
  readonly lock: { readonly cleanupInIsLocked: boolean };
  readonly operations: boolean;
}

export const redisBackends = (
  runner: ScriptRunner,
  { keyPrefix, keyLayout, lock, budget, operations }: RedisBackendsConfig,
  warn: (message: string) => void,
): Backends => {
  const channel = new ProcessChannel(runner, keyPrefix, warn, operations);
  const peers = operations ? new ProcessPeers(runner, channel) : undefined;
  const { cleanupInIsLocked } = lock;
  return {
    lock: redisLocks(runner, { keyPrefix, keyLayout, cleanupInIsLocked, warn, channel, peers }),
    fence: new RedisFenceBackend(runner, { keyPrefix, keyLayout }),
    limit: new RedisLimitBackend(runner, keyPrefix),
    limitFallback: new MemoryLimitBackend(),
    budget: new RedisBudgetBackend(runner, { keyPrefix, retentionMs: budget.retentionMs }),
    secret: new RedisSecretBackend(runner, keyPrefix),
    counter: new RedisCounterBackend(runner, { keyPrefix }),
    once: new RedisOnceBackend(runner, keyPrefix, channel),
  };
};
