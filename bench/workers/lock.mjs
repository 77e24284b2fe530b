import { setTimeout as sleep } from 'node:timers/promises';
import { serve } from '../harness/contestants.mjs';
import { connect, countCommands, metered } from '../harness/redis.mjs';
import { inFlight, nowUs, quantile } from '../harness/stats.mjs';

const { default: contestant } = await import(process.argv[2]);
const redis = connect();
const opened = [];
/** One instance each, as one app is one instance. */
const instance = async (i = 0) => (opened[i] ??= await contestant.open());

async function section(locks, key, fn) {
  if (locks.withLock) return locks.withLock(key, fn);
  const handle = await locks.acquire(key);
  try {
    return await fn();
  } finally {
    await locks.release(handle);
  }
}

async function oneByOne(n, call) {
  for (let i = 0; i < 200; i++) await call(`w${i}`);
  const us = [];
  const costs = await metered(redis, n, async () => {
    for (let i = 0; i < n; i++) {
      const startedAt = nowUs();
      await call(`s${i % 500}`);
      us.push(nowUs() - startedAt);
    }
  });
  return { ...costs, p50: quantile(us, 0.5), p99: quantile(us, 0.99) };
}

const together = (n, call) => metered(redis, n, () => inFlight(n, 64, (i) => call(`t${i % 3200}`)));

serve({
  async about() {
    await instance();
    return { name: contestant.name, role: contestant.role ?? 'peer' };
  },

  /** Acquire + release, and what users write: a section that renews its lock, by a function and by a decorator. */
  async load({ one, many }) {
    const { acquire, release, withLock, decorated } = await instance();
    const body = async () => {};
    const ways = {
      pair: async (key) => release(await acquire(key)),
      ...(withLock && { section: (key) => withLock(key, body) }),
      ...(decorated && { decorated }),
    };
    const found = {};
    for (const [way, call] of Object.entries(ways))
      found[way] = { one: await oneByOne(one, call), many: await together(many, call) };
    return found;
  },

  /** 16 workers of 4 instances take turns at one key. The bare sleep is what a section takes without a lock. */
  async contended({ sections, holdMs = 1, capMs = 6000 }) {
    const instances = await Promise.all([0, 1, 2, 3].map(instance));
    const bareFrom = nowUs();
    for (let i = 0; i < 50; i++) await sleep(holdMs);
    const bareMs = (nowUs() - bareFrom) / 50e3;
    const key = `c${Math.random()}`;
    const done = new Array(16).fill(0);
    const waits = [];
    let [left, inside, overlaps, failed] = [sections, 0, 0, 0];
    const end = Date.now() + capMs;
    const work = async (worker) => {
      while (left > 0 && Date.now() < end) {
        const askedAt = nowUs();
        try {
          await section(instances[worker % 4], key, async () => {
            if (left <= 0) return;
            left--;
            waits.push((nowUs() - askedAt) / 1e3);
            if (++inside > 1) overlaps++;
            await sleep(holdMs);
            inside--;
            done[worker]++;
          });
        } catch {
          failed++;
        }
      }
    };
    const costs = await metered(
      redis,
      () => done.reduce((a, b) => a + b),
      () => Promise.all(done.map((_, worker) => work(worker))),
    );
    const sectionMs = costs.wallUs / 1e3;
    const [p50, p99] = [quantile(waits, 0.5), quantile(waits, 0.99)];
    const commands = costs.commands;
    return {
      sectionMs,
      bareMs,
      p50,
      p99,
      most: Math.max(...done),
      least: Math.min(...done),
      overlaps,
      failed,
      commands,
    };
  },

  /** From the end of one section to the begin of the next one, of another instance that waits. */
  async handoff({ holdMs }) {
    const [holder, waiter] = await Promise.all([instance(0), instance(1)]);
    const key = `h${Math.random()}`;
    let [endedAt, begunAt] = [0, 0];
    let entered;
    const isHeld = new Promise((resolve) => (entered = resolve));
    const held = section(holder, key, async () => {
      entered();
      await sleep(holdMs);
      endedAt = nowUs();
    });
    await isHeld;
    const deadline = Date.now() + 15_000;
    while (begunAt === 0 && Date.now() < deadline)
      await section(waiter, key, () => (begunAt = nowUs())).catch(() => {});
    await held;
    return (begunAt - endedAt) / 1e3;
  },

  /** Commands that a waiter sends in a second, as MONITOR shows them; those inside scripts are left out. */
  async waiting({ ms }) {
    const [holder, waiter] = await Promise.all([instance(0), instance(1)]);
    const key = `q${Math.random()}`;
    let done;
    const isDone = new Promise((resolve) => (done = resolve));
    const held = section(holder, key, () => isDone);
    await sleep(50);
    // What the holder sends, and contestants that are not done yet.
    const others = await countCommands(ms);
    let ended = false;
    const waited = (async () => {
      while (!ended) await section(waiter, key, () => (ended = true)).catch(() => {});
    })();
    await sleep(200);
    const commands = await countCommands(ms);
    done();
    await Promise.all([held, waited]);
    return Math.max(0, commands - others) / (ms / 1e3);
  },

  /** For the death of a waiter: enters and says so, leaves when it is told. */
  async hold({ key }) {
    const locks = await instance();
    this.held = await locks.acquire(key);
  },
  async free() {
    const locks = await instance();
    const at = nowUs();
    await locks.release(this.held);
    return at;
  },
  async enter({ key }) {
    const locks = await instance();
    return locks.withLock(key, () => nowUs());
  },
});
