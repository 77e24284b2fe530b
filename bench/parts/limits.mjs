// Limits through the service: A1 to A5.
import { inRounds, startContestants } from '../harness/contestants.mjs';
import { judging } from '../harness/goals.mjs';
import { least, ratio, typical } from '../harness/stats.mjs';
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
  const { roundsOf, sized, half } = options;
  const rounds = await inRounds(all, roundsOf(5), async (each, warmUp) => {
    await redis.flushdb();
    const one = await each.ask('oneInFlight', { n: sized(warmUp ? 1000 : 2000) });
    await redis.flushdb();
    const many = await each.ask('manyInFlight', { n: sized(warmUp ? 3000 : 12_000) });
    await redis.flushdb();
    return { one, many, blocked: await each.ask('blocked', { ms: sized(warmUp ? 100 : 300) }) };
  });
  const bytes = half ? undefined : await bytesOf(all, redis, sized);
  for (const each of all) each.stop();
  return report(all, rounds, bytes);
}

/** What a key over its limit takes of Redis, and what a call at it sends. Both are the same on half a core. */
async function bytesOf(all, redis, sized) {
  const [memory, exact] = [{}, {}];
  for (const each of all) {
    await redis.flushdb();
    exact[each.name] = await each.ask('oneBlocked', { n: sized(500) });
    memory[each.name] = {};
    for (const attempts of [100, 100_000]) {
      await redis.flushdb();
      memory[each.name][attempts] = await each.ask('memory', { attempts, capMs: sized(6000) });
    }
  }
  return { memory, exact };
}

function report(all, rounds, bytes) {
  const names = all.map(({ name }) => name);
  const ofRole = (role) => all.filter((each) => each.role === role).map(({ name }) => name);
  const judge = (ours, ...rest) => judging(ours, names)(...rest);
  const value = (pick) => (name) => typical(rounds, name, pick);
  const times = (pick) => (name, other) => ratio(rounds, name, other, pick);
  const compared = (ours, id, what, pick, bound, peers) =>
    judge(ours, id, what, value(pick), bound, { peers, times: times(pick) });
  const count = (field) => (name) => Math.round(typical(rounds, name, ({ one }) => one[field]));
  const peers = ofRole('peer');
  const many = ({ many }) => many.perSecond;
  const one = ({ one }) => 1e6 / one.p50;
  const blocked = ({ blocked }) => blocked.perSecond;
  /** In 64 in flight and one in flight, in speed, beside those that do the same. */
  const likeForLike = (ours, what, among, [atLeast, atLeastOne]) => [
    compared(ours, 'A2', `${what}, 64 in flight (/s)`, many, { atLeast }, among),
    compared(ours, 'A2', `${what}, one in flight (/s)`, one, { atLeast: atLeastOne }, among),
  ];
  const script = (name) => least(rounds, name, ({ many }) => many.scriptUs);
  const scripts = (name, other) => script(name) / script(other);
  /** The same script beside that of the version before. */
  const lighter = (ours, what) =>
    names.includes(`${ours}, before`)
      ? [
          judge(
            ours,
            'A2',
            `${what} in the server (us)`,
            script,
            { atMost: 0.8 },
            {
              peers: [`${ours}, before`],
              times: scripts,
            },
          ),
        ]
      : [];
  const goals = [
    judge(OURS, 'A1', 'round trips of a check', count('reads'), { is: 1 }, { peers }),
    judge(
      OURS,
      'A1',
      'commands of an allowed check',
      value(({ one }) => one.commands),
      { atMost: 8 },
      { peers },
    ),
    judge(OURS, 'A1', 'bytes in, static policy', count('inBytes'), { atMost: 260 }, { peers }),
    ...likeForLike(FIXED, 'a fixed window', FIXED_PEERS, [1.3, 1]),
    ...likeForLike(STORAGE, 'the storage for throttler', [NEST_LAB], [1.3, 1]),
    ...likeForLike(OURS, 'two exact windows beside the plain script', [BASE], [1.6, 1]),
    ...lighter(OURS, 'the script of two exact windows'),
    ...lighter(FIXED, 'the script of a fixed window'),
    compared(OURS, 'A3', 'checks of a blocked key (/s)', blocked, { atLeast: 3 }, ofRole('cache')),
  ];
  if (bytes) goals.push(...bytesGoals(judge, peers, bytes));
  if (names.includes(AUTO)) {
    const wrong = (name) =>
      Math.max(...rounds.map((round) => round[name].many.denied + round[name].blocked.allowed));
    goals.push(judge(AUTO, 'X1', 'limits with autopipelining: wrong decisions', wrong, { is: 0 }));
  }
  const x = (name, pick) => ratio(rounds, name, BASE, pick);
  const tables = [
    table(
      'Limits: one check, allowed',
      names.map((name) => ({
        limiter: name,
        'p50 us': value((each) => each.one.p50)(name),
        'p50 x': x(name, (each) => each.one.p50),
        'round trips': value((each) => each.one.reads)(name),
        commands: value((each) => each.one.commands)(name),
        'bytes in': value((each) => each.one.inBytes)(name),
        'script us': script(name),
        '64 in flight/s': value(many)(name),
        '64 x': x(name, many),
        'node CPU us': value((each) => each.many.nodeCpuUs)(name),
        'redis CPU us': value((each) => each.many.redisCpuUs)(name),
      })),
    ),
    table(
      'Limits: a key over its limit',
      names.map((name) => ({
        limiter: name,
        'blocked/s': value(blocked)(name),
        'node CPU us': value((each) => each.blocked.nodeCpuUs)(name),
        ...(bytes && {
          commands: bytes.exact[name].commands,
          'bytes after 100': bytes.memory[name][100].bytes,
          'bytes after 100,000': bytes.memory[name][100_000].bytes,
          attempts: bytes.memory[name][100_000].attempts,
        }),
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
        (name) => x(name, many),
        shown.filter(({ role }) => role !== 'cache'),
      ),
      goal: 1.6,
    },
    'limits-blocked': {
      title: 'Checks of a key that is blocked',
      note: 'checks a second, 64 in flight, logarithmic; longer is better',
      bars: bars(value(blocked)),
      log: true,
    },
  };
  return { goals, tables, pictures, data: { rounds, bytes } };
}

function bytesGoals(judge, peers, { memory, exact }) {
  const commands = (name) => Math.round(exact[name].commands);
  const added = (name) => memory[name][100_000].bytes - memory[name][100].bytes;
  return [
    judge(
      UNCACHED,
      'A1',
      'commands of a blocked check, without the deny cache',
      commands,
      { atMost: 3 },
      {
        peers,
      },
    ),
    judge(OURS, 'A3', 'commands of a blocked check with the deny cache', commands, { is: 0 }),
    judge(
      UNCACHED,
      'A5',
      'bytes that 100,000 blocked attempts add to those of 100',
      added,
      { is: 0 },
      {
        peers,
      },
    ),
  ];
}
