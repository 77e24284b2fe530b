// Budgets: B1 and B2.
import { inRounds, startContestants } from '../harness/contestants.mjs';
import { best, goal } from '../harness/goals.mjs';
import { ratio, typical } from '../harness/stats.mjs';
import { table } from '../harness/table.mjs';

const OURS = 'nestjs-syncguard';
const AUTO = `${OURS}, autopipelining`;
const BASE = 'plain scripts, one limit';
const WATCH = 'WATCH/MULTI with retries';

export async function run({ redis, options }) {
  const all = await startContestants('budgets', 'budget.mjs', {
    ...options,
    always: ['ours', 'plain', 'watch'],
  });
  const rounds = await inRounds(all, options.rounds ?? 5, async (each, warmUp) => {
    await redis.flushdb();
    const one = await each.ask('oneInFlight', { n: warmUp ? 500 : 1000 });
    const hot = await each.ask('manyInFlight', { keys: 1, ms: warmUp ? 300 : 700 });
    return { one, hot, wide: await each.ask('manyInFlight', { keys: 500, ms: 400 }) };
  });
  for (const each of all) each.stop();
  return report(all, rounds);
}

function report(all, rounds) {
  const names = all.map(({ name }) => name);
  const peers = all.filter(({ role }) => role === 'peer').map(({ name }) => name);
  const value = (name, pick) => typical(rounds, name, pick);
  const hot = (name) => ratio(rounds, name, BASE, (each) => each.hot.perSecond);
  const wide = (name) => ratio(rounds, name, BASE, (each) => each.wide.perSecond);
  const one = (name) => ratio(rounds, name, BASE, (each) => each.one.p50);
  const trips = (name) => Math.round(value(name, (each) => each.one.reads));
  const exact = (name) => rounds.every((round) => round[name].hot.exact && round[name].wide.exact);
  const bestPeer = (of, better) =>
    best(
      peers.map((name) => ({ name, value: of(name) })),
      better,
    );

  const goals = [
    goal('B1', 'round trips of reserve + finalize', trips(OURS), { is: 2 }, bestPeer(trips, 'lower')),
    goal('B1', 'sums exact after every load', exact(OURS), { is: true }),
    goal(
      'B2',
      '64 in flight, one budget (x plain scripts)',
      hot(OURS),
      { atLeast: 0.8 },
      bestPeer(hot, 'higher'),
    ),
    goal(
      'B2',
      '64 in flight, one budget (x WATCH/MULTI)',
      ratio(rounds, OURS, WATCH, (each) => each.hot.perSecond),
      { atLeast: 100 },
    ),
    goal(
      'B2',
      'pair p50, one in flight (x plain scripts)',
      one(OURS),
      { atMost: 1.5 },
      bestPeer(one, 'lower'),
    ),
    goal(
      'B2',
      'scripts of a pair in the server (us)',
      value(OURS, (each) => each.one.scriptUs),
      { atMost: 20 },
    ),
  ];
  if (names.includes(AUTO))
    goals.push(goal('X1', 'budgets with autopipelining: sums exact', exact(AUTO), { is: true }));

  const tables = [
    table(
      'Budgets: reserve + finalize',
      names.map((name) => ({
        budget: name,
        'p50 us': value(name, (each) => each.one.p50),
        'p50 x': one(name),
        'round trips': value(name, (each) => each.one.reads),
        commands: value(name, (each) => each.one.commands),
        'bytes in': value(name, (each) => each.one.inBytes),
        'script us': value(name, (each) => each.one.scriptUs),
        'one budget/s': value(name, (each) => each.hot.perSecond),
        'one budget x': hot(name),
        '500 budgets x': wide(name),
        'node CPU us': value(name, (each) => each.hot.nodeCpuUs),
        'sums exact': exact(name),
      })),
    ),
  ];
  const shown = all.filter(({ role }) => role !== 'variant');
  const pictures = {
    'budgets-64-in-flight': {
      title: 'Reserve + finalize at one budget, 64 in flight',
      note: 'pairs a second, plain scripts with one limit = 1, logarithmic; longer is better',
      bars: shown.map(({ name, role }) => ({ name, role, value: hot(name) })),
      goal: 0.8,
      log: true,
    },
  };
  return { goals, tables, pictures, data: { rounds } };
}
