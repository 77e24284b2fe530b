// How cost grows with what is there already, in Redis and in memory.
import { Contestant } from '../harness/contestants.mjs';
import { judging } from '../harness/goals.mjs';
import { table } from '../harness/table.mjs';

const STEPS = [1, 10, 100, 1_000, 10_000, 100_000];
const upTo = (most, least = 1) => STEPS.filter((step) => step >= least && step <= most);

export const AXES = {
  keys: {
    sizes: upTo(100_000),
    title: 'A lock, by the keys that were ever locked',
    unit: 'keys',
    call: 'acquire + release',
  },
  waiters: {
    sizes: [...upTo(1_000), 8_000],
    title: 'A section, by the callers that wait for one key',
    unit: 'waiters',
    call: 'lock()',
  },
  callers: {
    sizes: upTo(100_000),
    title: 'A check, by the callers that are limited',
    unit: 'callers',
    call: 'check',
  },
  attempts: {
    sizes: upTo(10_000, 10).map((size) => Math.min(size, 9_900)),
    title: 'A check, by the attempts in its window',
    unit: 'attempts',
    call: 'check',
  },
  holds: {
    sizes: upTo(10_000),
    title: 'A budget, by the open holds of its root',
    unit: 'holds',
    call: 'reserve + finalize',
  },
  scopes: {
    sizes: [1, 2, 4, 8],
    title: 'A budget, by the scopes of a reservation',
    unit: 'scopes',
    call: 'reserve + finalize',
  },
};

/** Quickly, without the largest ones. */
const sizesOf = (axis, { quick }) => (quick ? AXES[axis].sizes.slice(0, 3) : AXES[axis].sizes);

export async function run({ options }) {
  const only = options.only.length > 0 ? options.only : Object.keys(AXES);
  const results = {};
  for (const backend of ['redis', 'memory']) {
    const worker = new Contestant('growth.mjs', undefined, { BENCH_BACKEND: backend });
    await worker.ask('about');
    for (const axis of only) {
      await worker.ask('begin');
      results[axis] ??= sizesOf(axis, options).map((size) => ({ size }));
      for (const row of results[axis]) row[backend] = await worker.ask(axis, { size: row.size });
      console.error(`  ${axis}, ${backend}`);
    }
    worker.stop();
  }
  return report(results);
}

function report(results) {
  const tables = [];
  const pictures = {};
  for (const [axis, rows] of Object.entries(results)) {
    const { title, unit, call } = AXES[axis];
    const columns = ({ size, redis, memory }) => ({
      [unit]: size,
      'Redis, call us': redis.callUs,
      'Redis, script us': redis.scriptUs,
      'memory, call us': memory.callUs,
      ...(redis.commands && { 'Redis, commands': redis.commands }),
    });
    tables.push(table(`${title} (${call})`, rows.map(columns)));
    const line = (name, role, pick) => ({ name, role, points: rows.map((row) => [row.size, pick(row)]) });
    pictures[`growth-${axis}`] = {
      title,
      note: `microseconds of ${call}, both axes logarithmic; flatter is better`,
      unit,
      lines: [
        line('Redis, whole call', 'ours', ({ redis }) => redis.callUs),
        line('Redis, in the server', 'base', ({ redis }) => redis.scriptUs),
        line('memory', 'peer', ({ memory }) => memory.callUs),
      ],
    };
  }
  return { goals: crowdGoals(results.waiters ?? []), tables, pictures, data: results };
}

/** Each waiter enters, leaves and wakes by as many commands among 8,000 as among 100. */
function crowdGoals(rows) {
  const ofSize = (wanted) => rows.find(({ size }) => size === wanted)?.redis.commands;
  const more = ofSize(8_000) - ofSize(100);
  if (Number.isNaN(more)) return [];
  const what = 'commands that a section sends more among 8,000 waiters than among 100';
  return [judging('ours', ['ours'])('L9', what, () => more, { atMost: 1 })];
}
