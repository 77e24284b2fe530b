import { randomUUID } from 'node:crypto';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { createMemoryBackend } from 'nestjs-syncguard';
import { MemoryBudgetBackend } from '../../lib/budget/memory/budget.memory-backend.js';
import { resolveBudgetDefaults } from '../../lib/budget/budget.options.js';
import { BudgetService } from '../../lib/budget/budget.service.js';
import { MemoryCounterBackend } from '../../lib/counter/memory/counter.memory-backend.js';
import { CounterService } from '../../lib/counter/counter.service.js';
import { MemoryLimitBackend } from '../../lib/limit/memory/limit.memory-backend.js';
import { resolvePolicy } from '../../lib/limit/limit.policy.js';
import { resolveSecretDefaults } from '../../lib/secret/secret.options.js';
import { MemorySecretBackend } from '../../lib/secret/memory/secret.memory-backend.js';
import { SecretService } from '../../lib/secret/secret.service.js';

const KEYS = 5_000;
const TTL_MS = 1_000;
const HOUR_MS = 3_600_000;
/** The longest that a backend takes to look for what is over. */
const SOON_MS = 120_000;

setFlagsFromString('--expose-gc');
const collect = runInNewContext('gc') as () => void;

function heapBytes(): number {
  collect();
  return process.memoryUsage().heapUsed;
}

let nowMs: number;
const clock = { now: () => nowMs };
beforeEach(() => {
  nowMs = 1_800_000_000_000;
  jest.useFakeTimers();
});
afterEach(() => jest.useRealTimers());

/** With the reaper, as an app has it. */
function budgetService(): BudgetService {
  const limits = [{ scope: 'user', period: { windowMs: TTL_MS }, limit: 5 }];
  const options = resolveBudgetDefaults({ limits });
  return new BudgetService(new MemoryBudgetBackend({ ...options, clock }), options);
}

/** What takes a key for `TTL_MS`, and asks nothing more. */
const backends: Record<string, () => (key: string) => Promise<unknown>> = {
  locks: () => {
    const backend = createMemoryBackend({ clock });
    return (key) => backend.acquire({ key, ttlMs: TTL_MS });
  },
  limits: () => {
    const backend = new MemoryLimitBackend(clock);
    const policy = resolvePolicy({ name: 'api', limit: 5, windowMs: TTL_MS });
    return (identity) => backend.check([{ identity, policy, cost: 1 }], identity);
  },
  counters: () => {
    const counters = new CounterService(new MemoryCounterBackend(clock));
    return (key) => counters.increment(key, { max: 1, windowMs: TTL_MS, id: key });
  },
  'budgets of many roots': () => {
    const budgets = budgetService();
    return (root) => budgets.reserve({ root, scopes: ['user'], amount: 1, ttlMs: TTL_MS });
  },
  'budgets of one root': () => {
    const budgets = budgetService();
    return (id) => budgets.reserve({ id, scopes: [`user:${id}`], amount: 1, ttlMs: TTL_MS });
  },
  secrets: () => {
    const options = resolveSecretDefaults({ tombstoneMs: 0 });
    const secrets = new SecretService(new MemorySecretBackend(clock), options);
    return (id) => secrets.create({ id, payload: id, views: 1, ttlMs: TTL_MS });
  },
};

it.each(Object.keys(backends))('%s in memory shrink while nobody asks', async (name) => {
  const take = (backends[name] as () => (key: string) => Promise<unknown>)();
  await take('warm');
  const empty = heapBytes();
  for (let i = 0; i < KEYS; i++) await take(randomUUID());
  const full = heapBytes() - empty;
  expect(full).toBeGreaterThan(KEYS * 50);

  nowMs += HOUR_MS; // what a retry may still ask about is kept beyond the TTL
  await jest.advanceTimersByTimeAsync(SOON_MS);
  expect(heapBytes() - empty).toBeLessThan(full / 4);
  await take('another'); // the backend itself is alive
});
