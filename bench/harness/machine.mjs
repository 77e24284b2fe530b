// What this machine takes for things that are not ours, so that two runs can be compared.
import { median, nowUs } from './stats.mjs';

const CALLS = 1500;
const READS = 1_000_000;

async function callUs(call) {
  const us = [];
  for (let i = 0; i < CALLS; i++) {
    const startedAt = nowUs();
    await call();
    us.push(nowUs() - startedAt);
  }
  return median(us.slice(CALLS / 3));
}

function readsMs() {
  const objects = Array.from({ length: 1000 }, (_, i) => ({ name: `n${i}`, value: i }));
  const ms = [];
  let sum = 0;
  for (let run = 0; run < 9; run++) {
    const startedAt = nowUs();
    for (let i = 0; i < READS; i++) sum += objects[i % 1000].value;
    ms.push((nowUs() - startedAt) / 1e3);
  }
  return sum > 0 ? median(ms) : NaN;
}

export async function machineCosts(redis) {
  const empty = await redis.script('LOAD', 'return 1');
  return {
    'PING us': await callUs(() => redis.ping()),
    'empty EVALSHA us': await callUs(() => redis.evalsha(empty, 0)),
    'a million property reads ms': readsMs(),
  };
}
