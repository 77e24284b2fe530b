// The command line of `npm run bench`.
import { parseArgs } from 'node:util';

export const PARTS = ['locks', 'limits', 'guard', 'budgets', 'once', 'growth', 'loading'];

export const USAGE = `npm run bench -- [parts] [options]

parts                 ${PARTS.join(', ')}; all of them where none is named
--rounds=N            rounds of each measurement; more rounds, less noise (default: each part's own)
--only=a,b            only the contestants whose file begins so; the base of a ratio always runs
--beside=FOLDER       another tree of this project, built and measured beside this one, as "before"
--core=N              the core that everything is pinned to (default 1); "none" does not pin
--no-build            measure what was built last
--pictures            measure nothing: draw the pictures of docs/assets from the last results
`;

export function readOptions(args) {
  const { values, positionals } = parseArgs({
    args,
    allowPositionals: true,
    options: {
      rounds: { type: 'string' },
      only: { type: 'string' },
      beside: { type: 'string' },
      core: { type: 'string', default: '1' },
      'no-build': { type: 'boolean', default: false },
      pictures: { type: 'boolean', default: false },
      help: { type: 'boolean', default: false },
    },
  });
  const unknown = positionals.find((part) => !PARTS.includes(part));
  if (unknown) throw new Error(`There is no part "${unknown}".\n\n${USAGE}`);
  return {
    ...values,
    parts: positionals.length > 0 ? positionals : PARTS,
    rounds: values.rounds && Number(values.rounds),
    only: values.only?.split(',').filter(Boolean) ?? [],
  };
}
