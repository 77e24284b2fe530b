// How the cost of a call grows with what is there already. One process for each backend.
import { setImmediate as nextTurn } from 'node:timers/promises';
import { openApp, syncguard } from '../contestants/_app.mjs';
import { serve } from '../harness/contestants.mjs';
import { connect, metered } from '../harness/redis.mjs';
import { inFlight, median, nowUs } from '../harness/stats.mjs';

const backend = process.env.BENCH_BACKEND;
const redis = connect();
const HOUR = 3_600_000;
const LIMITS = { log: { limit: 9_999, windowMs: HOUR }, short: { limit: 100, windowMs: HOUR } };
const SCOPES = ['org', 'a', 'b', 'c', 'd', 'e', 'f', 'g'];
const app = await openApp({
  ...(backend === 'memory' && { redis: null }),
  limits: LIMITS,
  lock: { maxWaiting: 10_000 },
  budget: { limits: SCOPES.map((scope) => ({ scope, period: 'lifetime', limit: 1e12 })) },
});
const locks = app.get(syncguard.LockService);
const limiter = app.get(syncguard.AbuseLimiterService);
const budgets = app.get(syncguard.BudgetService);

/** Fills in turns of the loop, since the memory backend never leaves one by itself. */
async function fill(from, to, fn) {
  for (let at = from; at < to; at += 4096) {
    const n = Math.min(4096, to - at);
    await inFlight(n, 64, (i) => fn(at + i));
    await nextTurn();
  }
}

/** The median of `samples` runs of `n` calls, one in flight; on Redis also the scripts' time in the server. */
async function measure(n, fn, samples = 5) {
  const us = [];
  const scriptUs = [];
  for (let sample = -1; sample < samples; sample++) {
    const costs = await metered(redis, n, async () => {
      const startedAt = nowUs();
      for (let i = 0; i < n; i++) await fn(i, sample + 1);
      return (nowUs() - startedAt) / n;
    });
    if (sample < 0) continue;
    us.push(costs.value);
    scriptUs.push(costs.scriptUs);
  }
  return { callUs: median(us), scriptUs: median(scriptUs) };
}

const pair = async (key) => {
  const handle = await locks.acquire({ key, ttlMs: 30_000 });
  await handle.release();
};
const any = (n) => Math.floor(Math.random() * n);
let filled = 0;

serve({
  about: () => ({ name: backend }),
  begin() {
    filled = 0;
    return redis.flushdb();
  },

  /** Keys that were locked before: their fences stay. */
  async keys({ size }) {
    await fill(filled, size, (i) => pair(`k${i}`));
    filled = size;
    return measure(500, () => pair(`k${any(size)}`));
  },

  /** Callers that have made one attempt each. */
  async callers({ size }) {
    await fill(filled, size, (i) => limiter.check(`c${i}`, 'short'));
    filled = size;
    return measure(500, () => limiter.check(`c${any(size)}`, 'log'));
  },

  /** Everybody wants one key; each section is empty. The cost is that of one section. */
  async waiters({ size }) {
    const sections = Math.max(size, 300);
    const run = async (key) => {
      let entered = 0;
      const costs = await metered(redis, sections, () =>
        inFlight(sections, size, async () => {
          await locks.lock(() => entered++, { key, ttlMs: 30_000, timeoutMs: 120_000 });
        }),
      );
      if (entered !== sections) throw new Error(`${entered} of ${sections} sections`);
      return costs;
    };
    await run('warm');
    const runs = [await run('w1'), await run('w2'), await run('w3')];
    const middle = (field) => median(runs.map((each) => each[field]));
    return { callUs: middle('wallUs'), scriptUs: middle('scriptUs'), commands: middle('commands') };
  },

  /** Holds that are open in the root of the pair that is measured. */
  async holds({ size }) {
    await fill(filled, size, () => budgets.reserve({ scopes: ['org'], amount: 1, ttlMs: HOUR }));
    filled = size;
    return measure(300, async () => {
      const hold = await budgets.reserve({ scopes: ['org'], amount: 1 });
      await budgets.finalize(hold, 1);
    });
  },

  /** Attempts in the window of the key. Twenty keys take turns, so that measuring adds little to a log. */
  async attempts({ size }) {
    const have = Math.max(0, filled - 3);
    const want = size - 3;
    for (let left = want - have; left > 0; left -= 500)
      for (let key = 0; key < 20; key++) await limiter.check(`a${key}`, 'log', { cost: Math.min(500, left) });
    // Measuring adds as many attempts as it makes calls, which `forgive` takes back.
    const costs = await measure(40, (i, sample) => limiter.check(`a${(i + sample) % 20}`, 'log'));
    for (let key = 0; key < 20; key++) await limiter.forgive(`a${key}`, 'log', 12);
    filled = size;
    return costs;
  },

  /** Scopes that one reservation counts in, each with a limit. */
  async scopes({ size }) {
    const scopes = SCOPES.slice(0, size).map((scope) => (scope === 'org' ? scope : `${scope}:1`));
    return measure(300, async () => {
      const hold = await budgets.reserve({ scopes, amount: 1 });
      if (!hold.ok) throw new Error(JSON.stringify(hold));
      await budgets.finalize(hold, 1);
    });
  },
});
