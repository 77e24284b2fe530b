import { MUTANTS } from './mutants.js';
import { chaos } from './program.js';

/** Long enough that an epoch is audited. */
const SECONDS = 16;
/** What a mutant does shows when processes meet in one moment: one of these histories has it. */
const SEEDS = [7, 8, 9, 10, 11];

const runChaos = chaos();

interface Caught {
  readonly mutant: string;
  /** The faults under which it shows. */
  readonly faults: readonly string[];
  readonly says: RegExp;
  readonly onlyOnce?: boolean;
}

const caught: Caught[] = [
  {
    mutant: 'release-without-owner',
    faults: ['CLIENT PAUSE', 'SIGSTOP', 'a worker stands still'],
    says: /^Two under shared/,
  },
  { mutant: 'acquire-while-held', faults: ['SCRIPT FLUSH'], says: /^Two under shared/ },
  {
    ...{ mutant: 'undo-left-out', faults: ['CLIENT PAUSE', 'SIGSTOP', 'replies are lost'] },
    says: /own \d+ \d+ is left over: a lock/,
  },
  {
    ...{ mutant: 'finalize-keeps-reserved', faults: ['SCRIPT FLUSH'] },
    says: /^root .* reserved when every hold was over/,
  },
  { mutant: 'once-beside-another', faults: ['SCRIPT FLUSH'], says: /two bodies at once/ },
  {
    ...{
      mutant: 'once-result-of-the-overtaken',
      faults: ['a worker stands still', 'a worker stands still at an await'],
    },
    onlyOnce: true,
    says: /two results|after the kept result|two bodies at once/,
  },
  { mutant: 'views-cost-nothing', faults: ['SCRIPT FLUSH'], says: /^secret .* of \d+ \(view\)/ },
];

it('has a test for each mutant', () => {
  expect(caught.map(({ mutant }) => mutant).sort()).toStrictEqual([...MUTANTS].sort());
});

it.each(caught)(
  '$mutant is caught',
  async ({ mutant, faults, says, onlyOnce }) => {
    const found: string[] = [];
    for (const seed of SEEDS) {
      const { violations } = await runChaos({
        ...{ engine: 'redis', seconds: SECONDS, seed, mutant, onlyOnce },
        only: ({ name }) => faults.includes(name),
      });
      found.push(...violations);
      if (found.some((violation) => says.test(violation))) break;
    }
    expect(found).toContainEqual(expect.stringMatching(says));
  },
  300_000,
);
