import { setImmediate as nextTurn } from 'node:timers/promises';
import { serve } from '../harness/contestants.mjs';
import { connect, memoryUsed, metered } from '../harness/redis.mjs';
import { inFlight, nowUs, quantile } from '../harness/stats.mjs';

const { default: contestant } = await import(process.argv[2]);
const redis = connect();
const [WIDE, NARROW] = [1e6, 100];
const wide = await contestant.open({ limit: WIDE });
const narrow = await contestant.open({ limit: NARROW });

/** As many calls as fit into `ms`. Caches answer without a turn of the loop, so it is given one now and then. */
async function within(ms, fn) {
  const end = nowUs() + ms * 1e3;
  let n = 0;
  const lane = async () => {
    for (let i = 1; nowUs() < end; i++) {
      await fn();
      n++;
      if (i % 256 === 0) await nextTurn();
    }
  };
  await Promise.all(Array.from({ length: 64 }, lane));
  return n;
}

async function blockedKey() {
  const key = `hot${Math.random()}`;
  await inFlight(2 * NARROW, 64, () => narrow.check(key));
  return key;
}

serve({
  about: () => ({ name: contestant.name, role: contestant.role ?? 'peer' }),

  async oneInFlight({ n }) {
    for (let i = 0; i < 200; i++) await wide.check(`w${i}`);
    const us = [];
    const costs = await metered(redis, n, async () => {
      for (let i = 0; i < n; i++) {
        const startedAt = nowUs();
        await wide.check(`s${i % 1000}`);
        us.push(nowUs() - startedAt);
      }
    });
    return { ...costs, p50: quantile(us, 0.5), p99: quantile(us, 0.99) };
  },

  async manyInFlight({ n }) {
    let denied = 0;
    const costs = await metered(redis, n, () =>
      inFlight(n, 64, async (i) => {
        if (!(await wide.check(`k${i % 1000}`))) denied++;
      }),
    );
    return { ...costs, denied };
  },

  async blocked({ ms }) {
    const key = await blockedKey();
    let allowed = 0;
    const count = async () => {
      if (await narrow.check(key)) allowed++;
    };
    const costs = await metered(
      redis,
      (n) => n,
      () => within(ms, count),
    );
    return { ...costs, allowed };
  },

  /** What one blocked call costs exactly, one in flight. */
  async oneBlocked({ n }) {
    const key = await blockedKey();
    return metered(redis, n, async () => {
      for (let i = 0; i < n; i++) await narrow.check(key);
    });
  },

  /** Bytes in Redis after `attempts` at one key. */
  async memory({ attempts, capMs }) {
    const key = `m${Math.random()}`;
    const end = Date.now() + capMs;
    let made = 0;
    await inFlight(attempts, 64, async () => {
      if (Date.now() > end) return;
      made++;
      await narrow.check(key);
      if (made % 4096 === 0) await nextTurn();
    });
    return { ...(await memoryUsed(redis)), attempts: made };
  },
});
