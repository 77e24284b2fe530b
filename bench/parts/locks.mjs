// Locks: L1 to L10.
import { Contestant, inRounds, startContestants } from '../harness/contestants.mjs';
import { best, goal } from '../harness/goals.mjs';
import { median, ratio, typical } from '../harness/stats.mjs';
import { table } from '../harness/table.mjs';

const OURS = 'nestjs-syncguard';
const AUTO = `${OURS}, autopipelining`;
const BASE = 'raw SET NX PX';

export async function run({ redis, options }) {
  const all = await startContestants('locks', 'lock.mjs', { ...options, always: ['ours', 'raw'] });
  // Auto-pipelining has to work (X1); it is no contestant of its own.
  const raced = all.filter(({ name }) => !name.startsWith(AUTO));
  const rounds = await inRounds(raced, options.rounds ?? 7, async (each, warmUp) => {
    await redis.flushdb();
    const one = await each.ask('oneInFlight', { n: warmUp ? 1000 : 2000 });
    return { one, many: await each.ask('manyInFlight', { n: warmUp ? 3000 : 8000 }) };
  });
  const ours = all.find(({ name }) => name === OURS);
  const decorated = [];
  for (let i = 0; i < 7; i++) decorated.push(await ours.ask('decorated', { n: 4000 }));
  const contended = await inRounds(all, 3, async (each, warmUp) =>
    each.ask('contended', { sections: warmUp ? 50 : 300 }),
  );
  const handoffs = await handoffTimes(raced, 20);
  const waiting = {};
  for (const each of raced)
    waiting[each.name] = await each.ask('waiting', { ms: each === ours ? 10_000 : 2000 });
  const deaths = await deathsOfTheHead(ours, 6);
  for (const each of all) each.stop();
  return report(raced, { rounds, decorated, contended, handoffs, waiting, deaths, all });
}

/** Contestants take turns, since only one pair at a time would be without neighbours. */
async function handoffTimes(contestants, times) {
  const ms = Object.fromEntries(contestants.map(({ name }) => [name, []]));
  for (let i = 0; i < times; i++)
    for (const each of contestants)
      ms[each.name].push(await each.ask('handoff', { holdMs: 150 + Math.random() * 20 }));
  return ms;
}

/** The head of the queue is killed as the holder releases. How long until the next one is in, in ms. */
async function deathsOfTheHead(ours, times) {
  const holder = new Contestant('lock.mjs', ours.file);
  const next = new Contestant('lock.mjs', ours.file);
  await Promise.all([holder.ask('about'), next.ask('about')]);
  const ms = [];
  for (let i = 0; i < times; i++) {
    const key = `death:${Math.random()}`;
    const head = new Contestant('lock.mjs', ours.file);
    await head.ask('about');
    await holder.ask('hold', { key });
    head.ask('enter', { key }).catch(() => {});
    await new Promise((resolve) => setTimeout(resolve, 150));
    const entered = next.ask('enter', { key });
    await new Promise((resolve) => setTimeout(resolve, 150));
    head.stop();
    const freedAt = await holder.ask('free');
    ms.push(((await entered) - freedAt) / 1e3);
  }
  holder.stop();
  next.stop();
  return ms;
}

function report(raced, data) {
  const { rounds, decorated, contended, handoffs, waiting, deaths, all } = data;
  const names = raced.map(({ name }) => name);
  const peers = raced.filter(({ role }) => role === 'peer').map(({ name }) => name);
  const x = (name, pick) => ratio(rounds, name, BASE, pick);
  const value = (name, pick) => typical(rounds, name, pick);
  const bestPeer = (of, better) =>
    best(
      peers.map((name) => ({ name, value: of(name) })),
      better,
    );
  const pair = (name) => x(name, ({ one }) => one.p50);
  const speed = (name) => x(name, ({ many }) => many.perSecond);
  const worst = (name, pick) => Math.max(...contended.map((round) => pick(round[name])));
  const of = (name, pick) => typical(contended, name, pick);
  const spread = (name) => worst(name, ({ most, least }) => most - least);
  const over = (name) => of(name, ({ sectionMs, bareMs }) => sectionMs - bareMs);
  const tail = (name) => of(name, ({ p50, p99 }) => p99 / p50);
  const added = median(decorated.map((each) => each.decorated - each.service));

  const goals = [
    goal(
      'L1',
      'round trips of acquire + release',
      value(OURS, ({ one }) => Math.round(one.reads)),
      { is: 2 },
      bestPeer((name) => Math.round(value(name, ({ one }) => one.reads)), 'lower'),
    ),
    goal('L1', 'commands of acquire + release, fenced', Math.round(value(OURS, ({ one }) => one.commands)), {
      atMost: 10,
    }),
    goal('L2', 'pair p50, one in flight (x raw)', pair(OURS), { atMost: 1.3 }, bestPeer(pair, 'lower')),
    goal('L3', '64 in flight (x raw)', speed(OURS), { atLeast: 1.2 }, bestPeer(speed, 'higher')),
    goal(
      'L3',
      'node CPU of a pair, 64 in flight (us)',
      value(OURS, ({ many }) => many.nodeCpuUs),
      { atMost: 7 },
      bestPeer((name) => value(name, ({ many }) => many.nodeCpuUs), 'lower'),
    ),
    goal('L4', 'CPU that @WithLock adds to the service (us)', added, { atMost: 5 }),
    goal('L6', 'sections of a worker, most - least', spread(OURS), { atMost: 1 }, bestPeer(spread, 'lower')),
    goal(
      'L6',
      'overlaps and failures',
      worst(OURS, ({ overlaps, failed }) => overlaps + failed),
      { is: 0 },
    ),
    goal(
      'L7',
      'contended, over the bare sleep (ms a section)',
      over(OURS),
      { atMost: 0.4 },
      bestPeer(over, 'lower'),
    ),
    goal('L7', 'contended, wait p99 / p50', tail(OURS), { atMost: 2 }, bestPeer(tail, 'lower')),
    goal(
      'L8',
      'handoff, median (ms)',
      median(handoffs[OURS]),
      { atMost: 1 },
      bestPeer((name) => median(handoffs[name]), 'lower'),
    ),
    goal(
      'L8',
      'handoff, worst of 20 (ms)',
      Math.max(...handoffs[OURS]),
      { atMost: 15 },
      bestPeer((name) => Math.max(...handoffs[name]), 'lower'),
    ),
    goal(
      'L9',
      'commands a second that a waiter sends',
      waiting[OURS],
      { atMost: 1 },
      bestPeer((name) => waiting[name], 'lower'),
    ),
    goal('L10', 'next one in after the head was killed, worst (ms)', Math.max(...deaths), { atMost: 1000 }),
  ];
  if (all.some(({ name }) => name === AUTO))
    goals.push(
      goal(
        'X1',
        'locks with autopipelining: overlaps and failures',
        worst(AUTO, ({ overlaps, failed }) => overlaps + failed),
        { is: 0 },
      ),
    );

  const tables = [
    table(
      'Locks: acquire + release',
      names.map((name) => ({
        lock: name,
        'p50 us': value(name, ({ one }) => one.p50),
        'p50 x': pair(name),
        'round trips': value(name, ({ one }) => one.reads),
        commands: value(name, ({ one }) => one.commands),
        'bytes in': value(name, ({ one }) => one.inBytes),
        'script us': value(name, ({ one }) => one.scriptUs),
        '64 in flight/s': value(name, ({ many }) => many.perSecond),
        '64 x': speed(name),
        'node CPU us': value(name, ({ many }) => many.nodeCpuUs),
        'redis CPU us': value(name, ({ many }) => many.redisCpuUs),
      })),
    ),
    table(
      'Locks: 16 workers at one key, sections of 1 ms',
      names.map((name) => ({
        lock: name,
        'ms a section': of(name, ({ sectionMs }) => sectionMs),
        'over the sleep': over(name),
        'wait p50 ms': of(name, ({ p50 }) => p50),
        'wait p99 ms': of(name, ({ p99 }) => p99),
        'most sections': of(name, ({ most }) => most),
        'least sections': of(name, ({ least }) => least),
        'commands a section': of(name, ({ commands }) => commands),
        overlaps: worst(name, ({ overlaps }) => overlaps),
        failed: worst(name, ({ failed }) => failed),
      })),
    ),
    table(
      'Locks: waiting',
      names.map((name) => ({
        lock: name,
        'handoff median ms': median(handoffs[name]),
        'handoff worst ms': Math.max(...handoffs[name]),
        'commands a second': waiting[name],
      })),
    ),
  ];
  const bars = (of) => raced.map(({ name, role }) => ({ name, role, value: of(name) }));
  const pictures = {
    'locks-one-in-flight': {
      title: 'Acquire + release, one in flight',
      note: 'time of a pair, raw SET NX PX = 1; shorter is better',
      bars: bars(pair),
      goal: 1.3,
    },
    'locks-64-in-flight': {
      title: 'Acquire + release, 64 in flight',
      note: 'pairs a second, raw SET NX PX = 1; longer is better',
      bars: bars(speed),
      goal: 1.2,
    },
    'locks-handoff': {
      title: 'From one holder to the next',
      note: 'median of 20 handoffs in ms, logarithmic; shorter is better',
      bars: bars((name) => median(handoffs[name])),
      goal: 1,
      log: true,
    },
    'locks-fairness': {
      title: 'Sections of the busiest and of the idlest of 16 workers',
      note: '300 sections of 1 ms at one key; nearer together is better',
      ranges: raced.map(({ name, role }) => ({
        name,
        role,
        low: of(name, ({ least }) => least),
        high: of(name, ({ most }) => most),
      })),
    },
  };
  return { goals, tables, pictures, data: { rounds, decorated, contended, handoffs, waiting, deaths } };
}
