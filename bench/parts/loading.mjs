// What it costs to load the package: D1. A fresh process for each figure.
import { execFileSync } from 'node:child_process';
import { join, resolve } from 'node:path';
import { judging } from '../harness/goals.mjs';
import { BESIDE, PACKAGE } from '../harness/package.mjs';
import { ratio, typical } from '../harness/stats.mjs';
import { table } from '../harness/table.mjs';

const BENCH = resolve(import.meta.dirname, '..');
const ROUNDS = 15;
const FORMATS = { require: 'CommonJS', import: 'ES modules' };
const THROTTLER = 'throttler 6';
const OURS = 'nestjs-syncguard';

/** Throttler is CommonJS alone, which `import` loads as well. */
const contestants = (how, { beside }) => {
  const entry = how === 'require' ? 'dist/cjs/index.js' : 'dist/esm/index.js';
  return {
    [THROTTLER]: '@nestjs/throttler/dist/index.js',
    [OURS]: `${PACKAGE}/${entry}`,
    ...(beside && { [`${OURS}, before`]: `${BESIDE}/${entry}` }),
  };
};

function cpuMs(how, file) {
  const worker = join(BENCH, 'workers/loading.mjs');
  const args = [worker, how, join(BENCH, 'node_modules', file)];
  return Number(execFileSync(process.execPath, args, { encoding: 'utf8' })) / 1000;
}

export async function run({ options }) {
  const result = { goals: [], tables: [], pictures: {}, data: {} };
  for (const [how, format] of Object.entries(FORMATS)) {
    const files = Object.entries(contestants(how, options));
    const rounds = Array.from({ length: options.roundsOf(ROUNDS) }, () =>
      Object.fromEntries(files.map(([name, file]) => [name, { ms: cpuMs(how, file) }])),
    );
    const pick = ({ ms }) => ms;
    const rows = files.map(([name]) => ({
      package: name,
      'CPU ms': typical(rounds, name, pick),
      'x throttler': ratio(rounds, name, THROTTLER, pick),
    }));
    const judge = judging(
      OURS,
      files.map(([name]) => name),
    );
    const cpu = (name) => typical(rounds, name, pick);
    const times = (name, other) => ratio(rounds, name, other, pick);
    result.goals.push(
      judge('D1', `loading, ${format} (ms of CPU)`, cpu, { atMost: 5 }, { peers: [THROTTLER], times }),
    );
    result.tables.push(table(`To load the package as ${format}, where Nest is loaded`, rows));
    result.data[how] = rounds;
    console.error(`  ${format}`);
  }
  return result;
}
