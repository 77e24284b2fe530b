// Limits through the service: A1 to A5.
import { inRounds, startContestants } from '../harness/contestants.mjs';
import { best, goal } from '../harness/goals.mjs';
import { ratio, typical } from '../harness/stats.mjs';
import { table } from '../harness/table.mjs';

const OURS = 'nestjs-syncguard';
const UNCACHED = `${OURS}, no deny cache`;
const AUTO = `${OURS}, autopipelining`;
const BASE = 'plain script, two windows';
const FIXED = `${OURS}, fixed window`;
const STORAGE = `${OURS}, storage for throttler`;
const NEST_LAB = 'nest-lab storage 1.2';
/** The peers that count in fixed windows. */
const FIXED_PEERS = [NEST_LAB, 'rate-limiter-flexible 11'];

export async function run({ redis, options }) {
  const all = await startContestants('limiters', 'limiter.mjs', {
    ...options,
    always: [
      ...['ours', 'ours-uncached', 'ours-fixed', 'ours-throttler', 'plain'],
      ...['nest-lab', 'flexible', 'flexible-cache', 'upstash-cache'],
    ],
  });
  const rounds = await inRounds(all, options.rounds ?? 5, async (each, warmUp) => {
    await redis.flushdb();
    const one = await each.ask('oneInFlight', { n: warmUp ? 1000 : 2000 });
    await redis.flushdb();
    const many = await each.ask('manyInFlight', { n: warmUp ? 3000 : 12_000 });
    await redis.flushdb();
    return { one, many, blocked: await each.ask('blocked', { ms: warmUp ? 100 : 300 }) };
  });
  const memory = {};
  const exact = {};
  for (const each of all) {
    await redis.flushdb();
    exact[each.name] = await each.ask('oneBlocked', { n: 500 });
    memory[each.name] = {};
    for (const attempts of [100, 100_000]) {
      await redis.flushdb();
      memory[each.name][attempts] = await each.ask('memory', { attempts, capMs: 6000 });
    }
  }
  for (const each of all) each.stop();
  return report(all, { rounds, exact, memory });
}

function report(all, data) {
  const { rounds, exact, memory } = data;
  const names = all.map(({ name }) => name);
  const ofRole = (role) => all.filter((each) => each.role === role).map(({ name }) => name);
  const value = (name, pick) => typical(rounds, name, pick);
  const x = (name, pick) => ratio(rounds, name, BASE, pick);
  const bestOf = (among, of, better) =>
    best(
      among.map((name) => ({ name, value: of(name) })),
      better,
    );
  const peers = ofRole('peer');
  const many = (name) => x(name, (each) => each.many.perSecond);
  const one = (name) => x(name, (each) => each.one.p50);
  const blocked = (name) => value(name, (each) => each.blocked.perSecond);
  const cache = bestOf(ofRole('cache'), blocked, 'higher');
  const added = (name) => memory[name][100_000].bytes - memory[name][100].bytes;
  /** In 64 in flight and one in flight, in speed, beside those peers that do the same. */
  const likeForLike = (name, what, among) => {
    const speeds = [
      ['64 in flight', (each) => each.many.perSecond, 1.3],
      ['one in flight', (each) => 1 / each.one.p50, 1],
    ];
    return speeds.map(([load, pick, atLeast]) => {
      const peer = bestOf(among, (other) => value(other, pick), 'higher');
      return goal(
        'A2',
        `${what}, ${load} (x the best peer)`,
        ratio(rounds, name, peer.name, pick),
        { atLeast },
        { ...peer, value: 1 },
      );
    });
  };
  const count = (name, field) => Math.round(value(name, (each) => each.one[field]));

  const goals = [
    goal(
      'A1',
      'round trips of a check',
      count(OURS, 'reads'),
      { is: 1 },
      bestOf(peers, (name) => count(name, 'reads'), 'lower'),
    ),
    goal(
      'A1',
      'commands of an allowed check',
      count(OURS, 'commands'),
      { atMost: 8 },
      bestOf(peers, (name) => count(name, 'commands'), 'lower'),
    ),
    goal(
      'A1',
      'commands of a blocked check, without the deny cache',
      Math.round(exact[UNCACHED].commands),
      { atMost: 3 },
      bestOf(peers, (name) => Math.round(exact[name].commands), 'lower'),
    ),
    goal(
      'A1',
      'bytes in, static policy',
      count(OURS, 'inBytes'),
      { atMost: 260 },
      bestOf(peers, (name) => count(name, 'inBytes'), 'lower'),
    ),
    goal(
      'A2',
      '64 in flight, 1,000 keys (x plain script)',
      many(OURS),
      { atLeast: 1.6 },
      bestOf(peers, many, 'higher'),
    ),
    ...likeForLike(FIXED, 'a fixed window', FIXED_PEERS),
    ...likeForLike(STORAGE, 'the storage for throttler', [NEST_LAB]),
    goal('A2', 'p50, one in flight (x plain script)', one(OURS), { atMost: 1 }, bestOf(peers, one, 'lower')),
    goal('A3', 'commands of a blocked check with the deny cache', Math.round(exact[OURS].commands), {
      is: 0,
    }),
    goal(
      'A3',
      "blocked checks (x the best peer's cache)",
      blocked(OURS) / cache.value,
      { atLeast: 3 },
      { name: cache.name, value: 1 },
    ),
    goal(
      'A5',
      'bytes that 100,000 blocked attempts add to those of 100',
      added(UNCACHED),
      { is: 0 },
      bestOf(peers, added, 'lower'),
    ),
  ];
  if (names.includes(AUTO))
    goals.push(
      goal(
        'X1',
        'limits with autopipelining: wrong decisions',
        Math.max(...rounds.map((round) => round[AUTO].many.denied + round[AUTO].blocked.allowed)),
        { is: 0 },
      ),
    );

  const tables = [
    table(
      'Limits: one check, allowed',
      names.map((name) => ({
        limiter: name,
        'p50 us': value(name, (each) => each.one.p50),
        'p50 x': one(name),
        'round trips': value(name, (each) => each.one.reads),
        commands: value(name, (each) => each.one.commands),
        'bytes in': value(name, (each) => each.one.inBytes),
        'script us': value(name, (each) => each.one.scriptUs),
        '64 in flight/s': value(name, (each) => each.many.perSecond),
        '64 x': many(name),
        'node CPU us': value(name, (each) => each.many.nodeCpuUs),
        'redis CPU us': value(name, (each) => each.many.redisCpuUs),
      })),
    ),
    table(
      'Limits: a key over its limit',
      names.map((name) => ({
        limiter: name,
        'blocked/s': blocked(name),
        'node CPU us': value(name, (each) => each.blocked.nodeCpuUs),
        commands: exact[name].commands,
        'bytes after 100': memory[name][100].bytes,
        'bytes after 100,000': memory[name][100_000].bytes,
        attempts: memory[name][100_000].attempts,
        'let in': Math.max(...rounds.map((round) => round[name].blocked.allowed)),
      })),
    ),
  ];
  const shown = all.filter(({ role }) => role !== 'variant');
  const bars = (of, among = shown) => among.map(({ name, role }) => ({ name, role, value: of(name) }));
  const pictures = {
    'limits-64-in-flight': {
      title: 'Checks of 1,000 keys, 64 in flight',
      note: 'checks a second, a plain script with two windows = 1; longer is better',
      bars: bars(
        many,
        shown.filter(({ role }) => role !== 'cache'),
      ),
      goal: 1.6,
    },
    'limits-blocked': {
      title: 'Checks of a key that is blocked',
      note: 'checks a second, 64 in flight, logarithmic; longer is better',
      bars: bars(blocked),
      log: true,
    },
  };
  return { goals, tables, pictures, data };
}
