import { serve } from '../harness/contestants.mjs';
import { connect, metered } from '../harness/redis.mjs';
import { nowUs, quantile } from '../harness/stats.mjs';

const { default: contestant } = await import(process.argv[2]);
const redis = connect();
const budgets = await contestant.open();

serve({
  about: () => ({ name: contestant.name, role: contestant.role ?? 'peer' }),

  async oneInFlight({ n }) {
    for (let i = 0; i < 200; i++) await budgets.spend(`w${i}`, 1);
    const us = [];
    const costs = await metered(redis, n, async () => {
      for (let i = 0; i < n; i++) {
        const startedAt = nowUs();
        await budgets.spend(`s${i % 100}`, 1);
        us.push(nowUs() - startedAt);
      }
    });
    return { ...costs, p50: quantile(us, 0.5), p99: quantile(us, 0.99) };
  },

  /** 64 spenders of `keys` budgets. Afterwards the sums must be exactly what was spent. */
  async manyInFlight({ keys, ms }) {
    const end = nowUs() + ms * 1e3;
    const own = Math.random();
    let spent = 0;
    let last = 0;
    const lane = async () => {
      while (nowUs() < end) if (await budgets.spend(`${own}:${last++ % keys}`, 1)) spent++;
    };
    const costs = await metered(
      redis,
      () => spent,
      () => Promise.all(Array.from({ length: 64 }, lane)),
    );
    let used = 0;
    for (let key = 0; key < keys; key++) used += await budgets.used(`${own}:${key}`);
    return { ...costs, exact: used === spent };
  },
});
