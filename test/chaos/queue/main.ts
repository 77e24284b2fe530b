import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { buildProgram } from '../../fault/workers/build-worker.js';
import { startClusterEngine, startSentinelEngine, startSingleEngine } from '../../support/engines/engine.js';
import { ensureTools } from '../../support/ensure-tools.js';
import { compileClockShim } from '../../support/server-clock.js';
import { checkQueue } from './queue-check.js';
import { runQueue } from './queue-run.js';

const ENGINES = { redis: startSingleEngine, cluster: startClusterEngine, sentinel: startSentinelEngine };
const SLACK_MS = 500;

const { values } = parseArgs({
  options: {
    engine: { type: 'string', default: 'redis' },
    minutes: { type: 'string', default: '1' },
    seed: { type: 'string', default: String(Math.floor(Math.random() * 1e9)) },
  },
});

async function main(): Promise<void> {
  const start = ENGINES[values.engine as keyof typeof ENGINES];
  console.log(`Waiting on ${values.engine} for ${values.minutes} min, seed ${values.seed}`);
  ensureTools();
  const shim = mkdtempSync(join(tmpdir(), 'syncguard-shim-'));
  compileClockShim(shim);
  const { folder, program } = await buildProgram(join(__dirname, 'queue-worker.ts'));
  const engine = await start();
  try {
    const seconds = Number(values.minutes) * 60;
    const history = await runQueue({ engine, program, seconds, seed: Number(values.seed), log: console.log });
    const { violations, ...counts } = checkQueue(history, SLACK_MS);
    console.log(JSON.stringify(counts));
    const ends = new Map<string, number>();
    for (const event of history.events)
      if (event.type === 'ended') ends.set(event.end, (ends.get(event.end) ?? 0) + 1);
    console.log(Object.fromEntries(ends));
    for (const violation of violations) console.log(violation);
    console.log(`${violations.length} violations`);
    process.exitCode = violations.length === 0 ? 0 : 1;
  } finally {
    await engine.stop();
    for (const each of [folder, shim]) rmSync(each, { recursive: true, force: true });
  }
}

void main();
