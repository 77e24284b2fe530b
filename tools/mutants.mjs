// Changes lib/ in small ways, and looks whether a test sees it: `npm run test:mutants [-- --seed=N] [room ...]`.
// A run takes some lines of each room by chance, which the seed tells again, and runs the room's own suites against each mutant.
// It prints the score and the survivors: each is a missing test, or code that is not needed, or a change that changes nothing.
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { join, relative, resolve } from 'node:path';
import { parseArgs } from 'node:util';
import { Stryker } from '@stryker-mutator/core';

const root = resolve(import.meta.dirname, '..');
const LINES_A_ROOM = 66;
const WINDOW_LINES = 6;
/** Suites that prove a room, without those that wait for dead servers. */
const SUITES = {
  budget: [
    'budget/budget.spec',
    'budget/budget-redis.spec',
    'budget/budget-service.spec',
    'budget/budget.model.spec',
  ],
  core: [
    'limit/limit-key-parts.spec',
    'lock/lock.spec',
    'budget/budget-service.spec',
    'fault/background-retries.spec',
    'once/once.spec',
    'module/core.spec',
    'package/vectors.spec',
  ],
  counter: ['counter/counter.spec'],
  limit: [
    'limit/limit.spec',
    'limit/limit.differential.spec',
    'limit/limit-policy.spec',
    'limit/limit-parts.spec',
    'limit/rate-limit.headers.spec',
    'limit/rate-limit.http.spec',
    'limit/rate-limit-boot.http.spec',
    'limit/rate-limit-is-failure.http.spec',
  ],
  lock: ['lock/lock.spec', 'lock/lock-service.spec', 'lock/lock-wire.spec', 'lock/fence.spec'],
  once: ['once/once.spec', 'once/once-key.http.spec', 'once/once.http.spec'],
  secret: ['secret/secret.spec'],
};
/** A mutant needs fewer steps of a model than a fault that is rare, and the same ones each time. */
Object.assign(process.env, { SYNCGUARD_STEPS: '20000', SYNCGUARD_MODEL_STEPS: '4000', SYNCGUARD_SEED: '7' });

const { values, positionals } = parseArgs({
  options: { seed: { type: 'string', default: String(Date.now() % 100_000) } },
  allowPositionals: true,
});
const rooms = positionals.length ? positionals : Object.keys(SUITES);
const missing = Object.values(SUITES)
  .flat()
  .filter((suite) => !existsSync(join(root, 'test', `${suite}.ts`)));
if (missing.length > 0) throw new Error(`SUITES names suites that are not there: ${missing.join(', ')}`);

/** Numbers from 0 to 1 that a seed tells again (mulberry32). */
function chance(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

/** Returns ranges of lines as Stryker takes them, `file:from-to`, of all code of the room. */
function sample(room, random) {
  const windows = [];
  for (const name of readdirSync(join(root, 'lib', room), { recursive: true }).sort()) {
    if (!name.endsWith('.ts') || name.endsWith('.types.ts')) continue;
    const lines = readFileSync(join(root, 'lib', room, name), 'utf8').split('\n').length - 1;
    for (let from = 1; from <= lines; from += WINDOW_LINES)
      windows.push(`lib/${room}/${name}:${from}-${Math.min(lines, from + WINDOW_LINES - 1)}`);
  }
  return Array.from({ length: LINES_A_ROOM / WINDOW_LINES }, () =>
    windows.splice(Math.floor(random() * windows.length), 1),
  ).flat();
}

/** Returns the mutants of a room's sample, each with what became of it. */
async function mutantsOf(room, random) {
  process.env.MUTANTS_SUITES = SUITES[room].join();
  return new Stryker({
    mutate: sample(room, random),
    testRunner: 'jest',
    coverageAnalysis: 'perTest',
    jest: { configFile: 'jest.mutants.config.ts', enableFindRelatedTests: false },
    concurrency: 2,
    tempDirName: '.stryker',
    ignorePatterns: ['bench', 'dist', 'site', 'sample'],
    reporters: [],
    logLevel: 'error',
    mutator: { excludedMutations: ['StringLiteral'] }, // texts of errors, and Lua as a whole
  }).runMutationTest();
}

const SEEN = new Set(['Killed', 'Timeout']);
const UNSEEN = new Set(['Survived', 'NoCoverage']);
const random = chance(Number(values.seed));
let [seen, unseen] = [0, 0];
for (const room of rooms) {
  const mutants = await mutantsOf(room, random);
  const survivors = mutants.filter(({ status }) => UNSEEN.has(status));
  seen += mutants.filter(({ status }) => SEEN.has(status)).length;
  unseen += survivors.length;
  for (const { fileName, location, mutatorName, replacement } of survivors)
    console.log(`${relative(root, fileName)}:${location.start.line} ${mutatorName}: ${replacement}`);
  console.log(`${room}: ${mutants.length} mutants, ${survivors.length} survived\n`);
}
console.log(
  `seed ${values.seed}: ${seen} of ${seen + unseen} seen, ${((100 * seen) / (seen + unseen)).toFixed(1)} %`,
);
