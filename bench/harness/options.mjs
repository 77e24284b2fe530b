// The command line of `npm run bench`.
import { parseArgs } from 'node:util';

/** Those that load a core come first: they are measured on half a core, too. */
export const LOADS = ['locks', 'limits', 'guard', 'budgets', 'once', 'cold'];
export const PARTS = [...LOADS, 'counts', 'growth', 'loading'];

export const USAGE = `npm run bench -- [parts] [options]

parts                 ${PARTS.join(', ')}; all of them where none is named
--half                on half a core: clients get half of theirs, and the server has another one
--all                 on a whole core, then on half a core (${LOADS.join(', ')}), and one table of both
--quick               one short round of everything, to see that it runs; its figures say nothing
--rounds=N            rounds of each measurement; more rounds, less noise (default: each part's own)
--only=a,b            only the contestants whose file begins so; the base of a ratio always runs
--beside=WHAT         another tree of this project, a folder or a commit, measured beside this one as "before"
--core=N              the core that clients and server are pinned to (default 1)
--no-build            measure what was built last
--docs                measure nothing: put the table and the pictures of the last run into docs/
`;

export function readOptions(args) {
  const { values, positionals } = parseArgs({
    args,
    allowPositionals: true,
    options: {
      half: { type: 'boolean', default: false },
      all: { type: 'boolean', default: false },
      quick: { type: 'boolean', default: false },
      rounds: { type: 'string' },
      only: { type: 'string' },
      beside: { type: 'string' },
      core: { type: 'string', default: '1' },
      'no-build': { type: 'boolean', default: false },
      docs: { type: 'boolean', default: false },
      help: { type: 'boolean', default: false },
    },
  });
  const unknown = positionals.find((part) => !PARTS.includes(part));
  if (unknown) throw new Error(`There is no part "${unknown}".\n\n${USAGE}`);
  const { half, quick } = values;
  const rounds = values.rounds && Number(values.rounds);
  return {
    ...values,
    parts: positionals.length > 0 ? positionals : half ? LOADS : PARTS,
    only: values.only?.split(',').filter(Boolean) ?? [],
    /** How many rounds a part makes that makes `usual` by itself. */
    roundsOf: (usual) => rounds ?? (quick ? 1 : half ? Math.ceil(usual / 2) : usual),
    /** A number of calls, or of milliseconds. */
    sized: (usual) => (quick ? Math.ceil(usual / 10) : usual),
  };
}
