import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { ensureTools } from '../support/ensure-tools.js';
import { findProgram, type Program } from '../support/engines/programs.js';
import { compileClockShim } from '../support/server-clock.js';
import { check, type Report } from './check/check.js';
import type { HistoryEvent } from './history.js';
import { buildPrograms } from './programs.js';
import { run } from './run.js';
import { type EngineName, FAULTS } from './schedule.js';

const USAGE = `npm run chaos -- [--engine ${Object.keys(FAULTS).join('|')}] [--minutes 1] [--seed n] [--program redis-8|valkey-8] [--mutant name] [--fault name] [--once] [--keep]
Several processes work on one engine while its servers, the network and the processes themselves fail; a checker then
proves over all that they were told what the library promises. The same seed gives the same faults in the same order. With --once they make calls that are answered once, and no others.`;

const { values } = parseArgs({
  options: {
    engine: { type: 'string', default: 'redis' },
    minutes: { type: 'string', default: '1' },
    seed: { type: 'string', default: String(Math.floor(Math.random() * 1e9)) },
    program: { type: 'string' },
    mutant: { type: 'string' },
    fault: { type: 'string', multiple: true },
    once: { type: 'boolean', default: false },
    keep: { type: 'boolean', default: false },
    help: { type: 'boolean', default: false },
  },
});

function commandOf(program: string | undefined): readonly string[] | undefined {
  if (program === undefined) return undefined;
  const found = findProgram(program as Program);
  if ('missing' in found) throw new Error(`${program} ${found.missing}`);
  return found.command;
}

function print({ findings, violations, counts }: Report, failures: readonly string[]): void {
  for (const [name, count] of Object.entries(counts)) console.log(`${String(count).padStart(8)}  ${name}`);
  for (const [promise, { violations: broken, excused }] of Object.entries(findings)) {
    console.log(
      `${broken.length === 0 ? 'held  ' : 'BROKEN'} ${promise} (${excused.length} by faults that lose data)`,
    );
    for (const line of excused.slice(0, 5)) console.log(`         excused: ${line}`);
    for (const line of broken.slice(0, 20)) console.log(`         ${line}`);
  }
  for (const failure of failures) console.log(`BROKEN ${failure}`);
  console.log(`${violations.length + failures.length} violations`);
}

/** For who looks for what went wrong: a line an event. */
function keep(history: readonly HistoryEvent[], name: string): string {
  const file = join(tmpdir(), `syncguard-chaos-${name}.jsonl`);
  writeFileSync(file, history.map((event) => `${JSON.stringify(event)}\n`).join(''));
  return file;
}

async function main(): Promise<void> {
  const engine = values.engine as EngineName;
  const seconds = Number(values.minutes) * 60;
  const seed = Number(values.seed);
  if (values.help || !FAULTS[engine] || !(seconds > 0) || !Number.isSafeInteger(seed)) {
    console.log(USAGE);
    process.exit(values.help ? 0 : 2);
  }
  console.log(`Chaos on ${values.program ?? ''} ${engine} for ${values.minutes} min, seed ${seed}`);
  ensureTools();
  const shim = mkdtempSync(join(tmpdir(), 'syncguard-shim-'));
  compileClockShim(shim);
  const [programs, clear] = await buildPrograms();
  try {
    const { history, failures } = await run({
      ...{ engine, seconds, seed, programs, mutant: values.mutant, onlyOnce: values.once },
      ...{ command: commandOf(values.program), log: console.log },
      only: ({ name }) => values.fault?.includes(name) ?? true,
    });
    const report = check(history);
    print(report, failures);
    if (values.keep || report.violations.length > 0)
      console.log(`The whole history: ${keep(history, `${engine}-${seed}`)}`);
    process.exitCode = report.violations.length + failures.length === 0 ? 0 : 1;
  } finally {
    clear();
    rmSync(shim, { recursive: true, force: true });
  }
}

void main();
