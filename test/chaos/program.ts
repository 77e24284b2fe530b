import { rmSync } from 'node:fs';
import { join } from 'node:path';
import { buildProgram } from '../fault/workers/build-worker.js';
import { check, type Report } from './check/check.js';
import { run, type RunOptions } from './run.js';

/** Builds the workers' program before a suite and clears it away after; gives what runs and checks. */
export function chaos(): (options: Omit<RunOptions, 'program'>) => Promise<Report & { failures: string[] }> {
  let built: { folder: string; program: string };
  beforeAll(async () => {
    built = await buildProgram(join(__dirname, 'worker.ts'));
  }, 60_000);
  afterAll(() => rmSync(built.folder, { recursive: true }));
  return async (options) => {
    const { history, failures } = await run({ ...options, program: built.program });
    return { ...check(history), failures };
  };
}
