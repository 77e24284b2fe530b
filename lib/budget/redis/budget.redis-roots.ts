import type { ScriptRunner } from '../../script/script-runner.js';
import type { BudgetRoots, ShareRequest } from '../budget.backend.js';
import { rootsScript } from './reaper.scripts.js';

/** How many roots are passed to one script call. */
const BATCH = 1_000;

/**
 * The registry of the roots under one `keyPrefix`: a sorted set of percent-encoded roots. The score of a root is the time
 * at which the reaper of a process last watched it.
 */
export class RedisBudgetRoots implements BudgetRoots {
  readonly #registry: string;

  constructor(
    private readonly runner: ScriptRunner,
    keyPrefix: string,
  ) {
    this.#registry = `${keyPrefix}/budget-roots`;
  }

  async share({ watched, done = new Map(), adopt = { max: 0, afterMs: 0 } }: ShareRequest): Promise<{
    readonly atMs: number;
    readonly adopted: readonly string[];
  }> {
    for (let from = BATCH; from < watched.length; from += BATCH)
      await this.share({ watched: watched.slice(from, from + BATCH) });
    const [atMs, ...adopted] = await this.runner.run(
      rootsScript,
      { registry: this.#registry },
      {
        watched: watched.slice(0, BATCH).map(encodeURIComponent).join(' '),
        done: [...done].map(([root, ms]) => `${encodeURIComponent(root)}=${ms}`).join(' '),
        ...adopt,
      },
    );
    return { atMs: Number(atMs), adopted: adopted.map(decodeURIComponent) };
  }
}
