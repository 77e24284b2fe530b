import { check, type Report } from './check/check.js';
import { buildPrograms, type Programs } from './programs.js';
import { run, type RunOptions } from './run.js';

/** A suite runs where other things run: that a call settles is seen all the same. */
const MACHINE = { slackMs: 5_000 };

/** Builds the workers' programs before a suite and clears them away after; returns what runs and checks. */
export function chaos(): (options: Omit<RunOptions, 'programs'>) => Promise<Report & { failures: string[] }> {
  let programs: Programs;
  let clear: () => void;
  beforeAll(async () => {
    [programs, clear] = await buildPrograms();
  }, 60_000);
  afterAll(() => clear());
  return async (options) => {
    const { history, failures } = await run({ ...options, programs });
    return { ...check(history, MACHINE), failures };
  };
}
