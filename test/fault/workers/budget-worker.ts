import { Redis } from 'ioredis';
import { resolveBudgetDefaults } from '../../../lib/budget/budget.options.js';
import { RedisBudgetBackend } from '../../../lib/budget/redis/budget.redis-backend.js';
import { BudgetService } from '../../../lib/budget/budget.service.js';
import { ScriptRunner } from '../../../lib/script/script-runner.js';

// One of several processes that hold budgets, settle none, and write down which holds they are told to have expired.
const [url = '', name = '', roots = '', holds = '', ttlMs = ''] = process.argv.slice(2);
const redis = new Redis(url);
const limits = [{ scope: 'user', period: { windowMs: 3_600_000 }, limit: 1_000_000 }];

const budgets = new BudgetService(
  new RedisBudgetBackend(new ScriptRunner(new Redis(url), 5_000), { keyPrefix: 'test', retentionMs: 500 }),
  resolveBudgetDefaults({ limits, reaper: { everyMs: 100 } }),
  { onExpired: (root, ids) => void redis.rpush('told', ...ids.map((id) => `${root} ${id}`)) },
);

async function hold(root: string, i: number): Promise<void> {
  await budgets.reserve({ root, scopes: ['user'], amount: 1, id: `${name}-${i}`, ttlMs: Number(ttlMs) });
}

void Promise.all(
  roots.split(',').flatMap((root) => Array.from({ length: Number(holds) }, (_, i) => hold(root, i))),
).then(() => redis.rpush('ready', name));
