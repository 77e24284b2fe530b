// What one call makes in this process: promises, and bytes for the garbage collector (C1).
import { Contestant } from '../harness/contestants.mjs';
import { judging } from '../harness/goals.mjs';
import { BESIDE } from '../harness/package.mjs';
import { median } from '../harness/stats.mjs';
import { table } from '../harness/table.mjs';

const OURS = 'nestjs-syncguard';
const BEFORE = `${OURS}, before`;
/** So large a young generation that nothing is collected while bytes are counted. */
const FLAGS = ['--expose-gc', '--min-semi-space-size=128', '--max-semi-space-size=128'];

export async function run({ options }) {
  const found = {};
  for (const [name, env] of [[OURS, {}], ...(options.beside ? [[BEFORE, { BENCH_PACKAGE: BESIDE }]] : [])]) {
    const worker = new Contestant('counts.mjs', undefined, env, FLAGS);
    found[name] = await worker.ask('count', { warm: options.sized(20_000) });
    worker.stop();
    console.error(`  ${name}`);
  }
  const before = found[BEFORE];
  const rows = Object.entries(found[OURS]).map(([call, { promises, bytes }]) => ({
    call,
    promises,
    ...(before && { 'promises before': before[call]?.promises }),
    bytes,
    ...(before && { 'bytes before': before[call]?.bytes }),
  }));
  const share = (field) => (name) =>
    median(
      Object.keys(found[name])
        .filter((call) => before[call] && !call.startsWith('bare'))
        .map((call) => found[name][call][field] / before[call][field]),
    );
  const judge = judging(OURS, Object.keys(found));
  const goals = before
    ? ['promises', 'bytes'].map((field) =>
        judge('C1', `${field} of a busy call (x before, median of the calls)`, share(field), { atMost: 0.5 }),
      )
    : [];
  return { goals, tables: [table('What a call makes', rows)], pictures: {}, data: found };
}
