// Budgets: B1 and B2.
import { inRounds, startContestants } from '../harness/contestants.mjs';
import { judging } from '../harness/goals.mjs';
import { least, ratio, typical } from '../harness/stats.mjs';
import { table } from '../harness/table.mjs';

const OURS = 'nestjs-syncguard';
const AUTO = `${OURS}, autopipelining`;
const BEFORE = `${OURS}, before`;
const BASE = 'plain scripts, one limit';
const WATCH = 'WATCH/MULTI with retries';

const speed = ({ hot }) => hot.perSecond;
const p50 = ({ one }) => one.p50;
const onlyOurs = (value) => (name) => (name === OURS ? value : undefined);

export async function run({ redis, options }) {
  const all = await startContestants('budgets', 'budget.mjs', {
    ...options,
    always: ['ours', 'plain', 'watch'],
  });
  const { roundsOf, sized } = options;
  const rounds = await inRounds(all, roundsOf(5), async (each, warmUp) => {
    await redis.flushdb();
    const one = await each.ask('oneInFlight', { n: sized(warmUp ? 500 : 1000) });
    const hot = await each.ask('manyInFlight', { keys: 1, ms: sized(warmUp ? 300 : 700) });
    return { one, hot, wide: await each.ask('manyInFlight', { keys: 500, ms: sized(400) }) };
  });
  for (const each of all) each.stop();
  return report(all, rounds);
}

function report(all, rounds) {
  const names = all.map(({ name }) => name);
  const peers = all.filter(({ role }) => role === 'peer').map(({ name }) => name);
  const judge = judging(OURS, names);
  const value = (name, pick) => typical(rounds, name, pick);
  const hot = (name) => ratio(rounds, name, BASE, speed);
  const wide = (name) => ratio(rounds, name, BASE, (each) => each.wide.perSecond);
  const one = (name) => ratio(rounds, name, BASE, p50);
  const trips = (name) => Math.round(value(name, (each) => each.one.reads));
  const exact = (name) => rounds.every((round) => round[name].hot.exact && round[name].wide.exact);
  const compared = (id, what, pick, bound, among) =>
    judge(id, what, (name) => value(name, pick), bound, {
      peers: among,
      times: (name, other) => ratio(rounds, name, other, pick),
    });
  const script = (name) => least(rounds, name, (each) => each.hot.scriptUs);
  const scripts = (name, other) => script(name) / script(other);
  const goals = [
    judge('B1', 'round trips of reserve + finalize', trips, { is: 2 }, { peers }),
    judge('B1', 'sums exact after every load', exact, { is: true }),
    compared('B2', 'one budget, 64 in flight (/s), beside plain scripts', speed, { atLeast: 0.8 }, [BASE]),
    compared('B2', 'one budget, 64 in flight (/s), beside WATCH/MULTI', speed, { atLeast: 100 }, [WATCH]),
    compared('B2', 'one in flight, p50 (us), beside plain scripts', p50, { atMost: 1.5 }, [BASE]),
    ...(names.includes(BEFORE)
      ? [
          judge(
            'B2',
            'the scripts of a pair in the server (us)',
            script,
            { atMost: 0.6 },
            {
              peers: [BEFORE],
              times: scripts,
            },
          ),
        ]
      : []),
  ];
  if (names.includes(AUTO))
    goals.push(judge('X1', 'budgets with autopipelining: sums exact', onlyOurs(exact(AUTO)), { is: true }));

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
        'script us': script(name),
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
