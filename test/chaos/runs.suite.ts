import { chaos } from './program.js';
import { FAULTS, type EngineName } from './schedule.js';

const SECONDS = 15;
/** Another one each time; `npm run chaos -- --engine name --seed n` repeats what it did. */
const SEED = Number(process.env.SYNCGUARD_CHAOS_SEED ?? Date.now() % 1_000_000);

const runChaos = chaos();

it.each(Object.keys(FAULTS) as EngineName[])(
  `%s under faults keeps every promise (seed ${SEED})`,
  async (engine) => {
    const { violations, failures, counts } = await runChaos({ engine, seconds: SECONDS, seed: SEED });
    expect([...failures, ...violations]).toStrictEqual([]);
    // It has worked, and has been looked at.
    expect(counts['sections under a lock']).toBeGreaterThan(50);
    for (const done of ['finalize', 'view', 'increment', 'check'])
      expect(counts[`${done}: done`]).toBeGreaterThan(20);
    expect(counts.audits).toBeGreaterThan(0);
  },
  180_000,
);
