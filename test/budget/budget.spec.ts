import { MemoryBudgetBackend } from '../../lib/budget/memory/budget.memory-backend.js';
import { RedisBudgetBackend } from '../../lib/budget/redis/budget.redis-backend.js';
import { ScriptRunner } from '../../lib/script/script-runner.js';
import { describeInBatches } from '../support/in-batches.js';
import { closeClients, freshRedis } from '../support/redis.js';
import { heldClock } from '../support/server-clock.js';
import { type BudgetWorld, describeBudgetContract } from './budget.contract.js';
import { describeBudgetEnds } from './budget-ends.contract.js';

const RETENTION_MS = 900_000;

async function onMemory(): Promise<BudgetWorld> {
  let nowMs = Date.now();
  const clock = {
    now: () => nowMs,
    set: (epochMs: number) => void (nowMs = epochMs),
    advance: (ms: number) => void (nowMs += ms),
  };
  const backend = new MemoryBudgetBackend({ clock, retentionMs: RETENTION_MS });
  return { clock, backend: () => backend };
}

async function onRedis(): Promise<BudgetWorld> {
  closeClients();
  const server = await freshRedis();
  const backend = () =>
    new RedisBudgetBackend(new ScriptRunner(server.client(), 5_000), {
      keyPrefix: 'test',
      retentionMs: RETENTION_MS,
    });
  return { clock: heldClock(server.clock), backend };
}

for (const describeBudgets of [describeBudgetContract, describeBudgetEnds]) {
  describeBudgets('memory', onMemory);
  describeBudgets('Redis', onRedis);
  describeInBatches('each call in a batch', () => describeBudgets('Redis', onRedis));
}
