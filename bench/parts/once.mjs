// Calls that are answered once: O1.
import { inRounds, startContestants } from '../harness/contestants.mjs';
import { judging } from '../harness/goals.mjs';
import { ratio, typical } from '../harness/stats.mjs';
import { table } from '../harness/table.mjs';

const OURS = 'nestjs-syncguard';
const BASE = 'raw SET NX, SET; GET';

export async function run({ redis, options }) {
  const all = await startContestants('once', 'once.mjs', { ...options, always: ['ours', 'raw'] });
  const { roundsOf, sized } = options;
  const rounds = await inRounds(all, roundsOf(7), async (each, warmUp) => {
    await redis.flushdb();
    const one = await each.ask('oneInFlight', { n: sized(warmUp ? 500 : 1500) });
    return { one, many: await each.ask('manyInFlight', { n: sized(warmUp ? 3000 : 6000) }) };
  });
  for (const each of all) each.stop();
  return report(all, rounds);
}

function report(all, rounds) {
  const names = all.map(({ name }) => name);
  const peers = all.filter(({ role }) => role === 'peer').map(({ name }) => name);
  const value = (name, pick) => typical(rounds, name, pick);
  const x = (name, pick) => ratio(rounds, name, BASE, pick);
  const same = (name) => rounds.every((round) => round[name].many.same);
  const judge = judging(OURS, names);
  const trips = (of) => (name) => Math.round(value(name, ({ one }) => one[of].reads));
  const cpu =
    (of) =>
    ({ many }) =>
      many[of].nodeCpuUs;
  const compared = (what, pick, bound, among) =>
    judge('O1', what, (name) => value(name, pick), bound, {
      peers: among,
      times: (name, other) => ratio(rounds, name, other, pick),
    });
  const goals = [
    judge('O1', 'round trips of a run', trips('run'), { is: 2 }, { peers }),
    judge('O1', 'round trips of a replay', trips('replay'), { is: 1 }, { peers }),
    judge('O1', 'a replay is what the first call gave', same, { is: true }),
    compared('node CPU of a run, 64 in flight (us), beside raw', cpu('run'), { atMost: 1.3 }, [BASE]),
    compared('node CPU of a replay, 64 in flight (us), beside a GET', cpu('replay'), { atMost: 1.2 }, [BASE]),
  ];
  const columns = (of) => (name) => ({
    call: name,
    'p50 us': value(name, ({ one }) => one[of].p50),
    'round trips': value(name, ({ one }) => one[of].reads),
    commands: value(name, ({ one }) => one[of].commands),
    'bytes in': value(name, ({ one }) => one[of].inBytes),
    '64 in flight/s': value(name, ({ many }) => many[of].perSecond),
    'node CPU us': value(name, ({ many }) => many[of].nodeCpuUs),
    'node CPU x': x(name, ({ many }) => many[of].nodeCpuUs),
    'redis CPU us': value(name, ({ many }) => many[of].redisCpuUs),
  });
  const tables = [
    table('Once: a run (claim + complete)', names.map(columns('run'))),
    table('Once: a replay', names.map(columns('replay'))),
  ];
  return { goals, tables, pictures: {}, data: { rounds } };
}
