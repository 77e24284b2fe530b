import { rmSync } from 'node:fs';
import { join } from 'node:path';
import { buildProgram } from '../fault/workers/build-worker.js';
import { startClusterEngine, startSentinelEngine, startSingleEngine } from '../support/engines/engine.js';
import { checkQueue } from './queue/queue-check.js';
import { runQueue } from './queue/queue-run.js';

const SECONDS = 20;
/** The same one each time, so that CI says something of the change; `npm run chaos:queue` takes another one each time. */
const SEED = 20_261_129;
/** A suite runs where other things run. */
const SLACK_MS = 2_000;

let folder: string;
let program: string;
beforeAll(async () => {
  ({ folder, program } = await buildProgram(join(__dirname, 'queue/queue-worker.ts')));
}, 60_000);
afterAll(() => rmSync(folder, { recursive: true, force: true }));

it.each([
  ['one server', startSingleEngine],
  ['Sentinel', startSentinelEngine],
  ['a Cluster', startClusterEngine],
])(
  `%s: calls of processes that are not well wait for a lock no longer than they must (seed ${SEED})`,
  async (_, start) => {
    const engine = await start();
    try {
      const history = await runQueue({ engine, program, seconds: SECONDS, seed: SEED });
      const { violations, sections } = checkQueue(history, SLACK_MS);
      expect(violations).toStrictEqual([]);
      expect(sections).toBeGreaterThan(100);
    } finally {
      await engine.stop();
    }
  },
  180_000,
);
