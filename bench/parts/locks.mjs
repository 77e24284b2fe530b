// Locks: L1 to L10.
import { Contestant, inRounds, startContestants } from '../harness/contestants.mjs';
import { judging } from '../harness/goals.mjs';
import { least, median, ratio, typical } from '../harness/stats.mjs';
import { table } from '../harness/table.mjs';

const OURS = 'nestjs-syncguard';
const AUTO = `${OURS}, autopipelining`;
const BEFORE = `${OURS}, before`;
const BASE = 'raw SET NX PX';
const SEMAPHORE = 'redis-semaphore 5.8';
const onlyOurs = (value) => (name) => (name === OURS ? value : undefined);
const NAMES = { section: 'lock()', decorated: '@WithLock' };

export async function run({ redis, options }) {
  const { roundsOf, sized, half } = options;
  const all = await startContestants('locks', 'lock.mjs', { ...options, always: ['ours', 'raw'] });
  // Auto-pipelining has to work (X1); it is no contestant of its own.
  const raced = all.filter(({ name }) => !name.startsWith(AUTO));
  const ours = all.find(({ name }) => name === OURS);
  const rounds = await inRounds(raced, roundsOf(7), async (each, warmUp) => {
    await redis.flushdb();
    return each.ask('load', { one: sized(warmUp ? 1000 : 2000), many: sized(warmUp ? 3000 : 8000) });
  });
  // Who waits, sleeps. Half a core would say no more about that.
  const waits = half ? undefined : await waitsOf(all, raced, ours, options);
  for (const each of all) each.stop();
  return report(raced, rounds, waits);
}

async function waitsOf(all, raced, ours, { roundsOf, sized }) {
  const contended = await inRounds(all, roundsOf(3), async (each, warmUp) =>
    each.ask('contended', { sections: sized(warmUp ? 50 : 300) }),
  );
  const handoffs = await handoffTimes(raced, sized(20));
  const waiting = {};
  for (const each of raced)
    waiting[each.name] = await each.ask('waiting', { ms: sized(each.role === 'ours' ? 10_000 : 2000) });
  return { contended, handoffs, waiting, deaths: await deathsOfTheHead(ours, sized(6)), all };
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

/** Handing over, and sharing one key: L6 to L10. */
function reportWaits(raced, judge, { contended, handoffs, waiting, deaths, all }) {
  const names = raced.map(({ name }) => name);
  const peers = raced.filter(({ role }) => role === 'peer').map(({ name }) => name);
  const worst = (name, pick) => Math.max(...contended.map((round) => pick(round[name])));
  const of = (name, pick) => typical(contended, name, pick);
  const spread = (name) => worst(name, ({ most, least }) => most - least);
  const over = (name) => of(name, ({ sectionMs, bareMs }) => sectionMs - bareMs);
  const tail = (name) => of(name, ({ p50, p99 }) => p99 / p50);
  const wrong = (name) => worst(name, ({ overlaps, failed }) => overlaps + failed);
  const goals = [
    judge('L6', 'sections of a worker, most - least', spread, { atMost: 1 }, { peers }),
    judge('L6', 'overlaps and failures', wrong, { is: 0 }),
    judge('L7', 'contended, over the bare sleep (ms a section)', over, { atMost: 0.4 }, { peers }),
    judge('L7', 'contended, wait p99 / p50', tail, { atMost: 2 }, { peers }),
    judge('L8', 'handoff, median (ms)', (name) => median(handoffs[name]), { atMost: 1 }, { peers }),
    judge('L8', 'handoff, worst (ms)', (name) => Math.max(...handoffs[name]), { atMost: 15 }, { peers }),
    judge('L9', 'commands a second that a waiter sends', (name) => waiting[name], { atMost: 1 }, { peers }),
    judge('L10', 'next one in after the head was killed, worst (ms)', onlyOurs(Math.max(...deaths)), {
      atMost: 1000,
    }),
  ];
  if (all.some(({ name }) => name === AUTO))
    goals.push(
      judge('X1', 'locks with autopipelining: overlaps and failures', onlyOurs(wrong(AUTO)), { is: 0 }),
    );
  const tables = [
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
  const pictures = {
    'locks-handoff': {
      title: 'From one holder to the next',
      note: 'median of 20 handoffs in ms, logarithmic; shorter is better',
      bars: raced.map(({ name, role }) => ({ name, role, value: median(handoffs[name]) })),
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
  return { goals, tables, pictures };
}

/** Acquire + release, `lock()` and `@WithLock`: L1 to L4. */
function reportLoads(raced, rounds, judge) {
  const names = raced.map(({ name }) => name);
  const peers = raced.filter(({ role }) => role === 'peer').map(({ name }) => name);
  const value = (pick) => (name) => typical(rounds, name, pick);
  const times = (pick) => (name, other) => ratio(rounds, name, other, pick);
  const x = (name, pick) => ratio(rounds, name, BASE, pick);
  const has = (way) => names.filter((name) => rounds[0][name][way]);
  const counted = (field) => (name) => Math.round(typical(rounds, name, ({ pair }) => pair.one[field]));
  const p50 = (way) => (each) => each[way]?.one.p50;
  const speed = (way) => (each) => each[way]?.many.perSecond;
  const compared = (id, what, pick, bound, among) =>
    judge(id, what, value(pick), bound, { peers: among, times: times(pick) });
  /** What a way costs more than acquire + release, of the same contestant in the same round. */
  const beyond = (way) => {
    const inRound = (what, pick, bound) => judge('L4', `${NAMES[way]}, ${what}`, value(pick), bound);
    return [
      inRound(
        'CPU added to acquire + release (us)',
        (each) => each[way].many.nodeCpuUs - each.pair.many.nodeCpuUs,
        { atMost: 5 },
      ),
      inRound('64 in flight (x acquire + release)', (each) => speed(way)(each) / speed('pair')(each), {
        atLeast: 0.8,
      }),
      inRound('p50, one in flight (x acquire + release)', (each) => p50(way)(each) / p50('pair')(each), {
        atMost: 1.1,
      }),
    ];
  };
  const renewing = has('section').filter((name) => peers.includes(name));
  const script = (name) => least(rounds, name, ({ pair }) => pair.many.scriptUs);
  const scripts = (name, other) => script(name) / script(other);
  const goals = [
    judge('L1', 'round trips of acquire + release', counted('reads'), { is: 2 }, { peers }),
    judge('L1', 'commands of acquire + release, fenced', counted('commands'), { atMost: 10 }),
    compared('L2', 'acquire + release, one in flight, p50 (us)', p50('pair'), { atMost: 1.3 }, [SEMAPHORE]),
    compared('L2', 'lock(), one in flight, p50 (us)', p50('section'), { atMost: 1.3 }, renewing),
    compared('L3', 'acquire + release, 64 in flight (/s)', speed('pair'), { atLeast: 1.05 }, peers),
    compared('L3', 'lock(), 64 in flight (/s)', speed('section'), { atLeast: 1.05 }, renewing),
    ...(names.includes(BEFORE)
      ? [
          judge(
            'L3b',
            'the scripts of a pair in the server (us)',
            script,
            { atMost: 0.78 },
            {
              peers: [BEFORE],
              times: scripts,
            },
          ),
        ]
      : []),
    ...beyond('section'),
    ...beyond('decorated'),
  ];
  const tables = [
    table(
      'Locks: acquire + release',
      names.map((name) => ({
        lock: name,
        'p50 us': value(p50('pair'))(name),
        'p50 x': x(name, p50('pair')),
        'round trips': value(({ pair }) => pair.one.reads)(name),
        commands: value(({ pair }) => pair.one.commands)(name),
        'bytes in': value(({ pair }) => pair.one.inBytes)(name),
        'script us': script(name),
        '64 in flight/s': value(speed('pair'))(name),
        '64 x': x(name, speed('pair')),
        'node CPU us': value(({ pair }) => pair.many.nodeCpuUs)(name),
        'redis CPU us': value(({ pair }) => pair.many.redisCpuUs)(name),
      })),
    ),
    table(
      'Locks: a section that renews',
      ['section', 'decorated'].flatMap((way) =>
        has(way).map((name) => ({
          section: way === 'section' ? name : `${name}, @WithLock`,
          'p50 us': value(p50(way))(name),
          '64 in flight/s': value(speed(way))(name),
          'node CPU us': value((each) => each[way].many.nodeCpuUs)(name),
          'x acquire + release': value((each) => speed(way)(each) / speed('pair')(each))(name),
        })),
      ),
    ),
  ];
  const bars = (pick) => raced.map(({ name, role }) => ({ name, role, value: x(name, pick) }));
  const pictures = {
    'locks-one-in-flight': {
      title: 'Acquire + release, one in flight',
      note: 'time of a pair, raw SET NX PX = 1; shorter is better',
      bars: bars(p50('pair')),
    },
    'locks-64-in-flight': {
      title: 'Acquire + release, 64 in flight',
      note: 'pairs a second, raw SET NX PX = 1; longer is better',
      bars: bars(speed('pair')),
    },
  };
  return { goals, tables, pictures };
}

function report(raced, rounds, waits) {
  const judge = judging(
    OURS,
    raced.map(({ name }) => name),
  );
  const parts = [reportLoads(raced, rounds, judge)];
  if (waits) parts.push(reportWaits(raced, judge, waits));
  return {
    goals: parts.flatMap(({ goals }) => goals),
    tables: parts.flatMap(({ tables }) => tables),
    pictures: Object.assign({}, ...parts.map(({ pictures }) => pictures)),
    data: { rounds, waits },
  };
}
