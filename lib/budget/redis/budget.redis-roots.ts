import type { ScriptRunner } from '../../script/script-runner.js';
import type { BudgetRoots } from '../budget.backend.js';
import { rootsScript } from './reaper.scripts.js';

/** How many roots are passed to one script call. */
const BATCH = 1_000;

/**
 * The registry of the roots under one `keyPrefix`: a sorted set of percent-encoded roots. The score of a root is the
 * time at which the reaper of a process last watched it.
 */
export function redisBudgetRoots(runner: ScriptRunner, keyPrefix: string): BudgetRoots {
  const keys = { registry: `${keyPrefix}/budget-roots` };
  const share: BudgetRoots['share'] = async ({ watched, done = [], adopt = NOBODY }) => {
    for (let from = BATCH; from < watched.length; from += BATCH)
      await share({ watched: watched.slice(from, from + BATCH) });
    const [atMs, ...adopted] = await runner.run(rootsScript, keys, {
      watched: watched.slice(0, BATCH).map(encodeURIComponent).join(' '),
      done: [...done].map(([root, ms]) => `${encodeURIComponent(root)}=${ms}`).join(' '),
      ...adopt,
    });
    return { atMs: Number(atMs), adopted: adopted.map(decodeURIComponent) };
  };
  return { share };
}

const NOBODY = { max: 0, afterMs: 0 };
