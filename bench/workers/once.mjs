import { serve } from '../harness/contestants.mjs';
import { connect, metered } from '../harness/redis.mjs';
import { inFlight, nowUs, quantile } from '../harness/stats.mjs';

const { default: contestant } = await import(process.argv[2]);
const redis = connect();
const calls = await contestant.open();
const answer = { paid: true, charge: 'ch_3MmlLrLkdIwHu7ix0snN0B15' };
const body = async () => answer;
let last = 0;

/** Runs, or replays, `n` calls one after the other. */
async function timed(n, call) {
  const us = [];
  const costs = await metered(redis, n, async () => {
    for (let i = 0; i < n; i++) {
      const startedAt = nowUs();
      await call(i);
      us.push(nowUs() - startedAt);
    }
  });
  return { ...costs, p50: quantile(us, 0.5) };
}

serve({
  about: () => ({ name: contestant.name, role: contestant.role ?? 'peer' }),

  async oneInFlight({ n }) {
    const own = `o${last++}:`;
    for (let i = 0; i < 200; i++) await calls.run(`${own}w${i}`, body);
    const run = await timed(n, (i) => calls.run(own + i, body));
    return { run, replay: await timed(n, (i) => calls.replay(own + i, body)) };
  },

  /** The calls of a round have new keys, and then come again. */
  async manyInFlight({ n }) {
    const own = `m${last++}:`;
    const each = (call) => metered(redis, n, () => inFlight(n, 64, (i) => call(own + i, body)));
    const run = await each(calls.run);
    const replay = await each(calls.replay);
    const given = JSON.stringify(await calls.replay(`${own}0`, () => ({ wrong: true })));
    return { run, replay, same: given === JSON.stringify(answer) };
  },
});
