import type { ScriptRunner } from '../script/script-runner.js';
import type { BudgetRoots, ShareRequest } from './budget.backend.js';
import { rootsScript } from './budget.scripts.js';

/** How many roots one script call tells of. */
const BATCH = 1_000;

/** One key for all roots of a prefix: a ZSET of percent-encoded roots, by when they were last kept. */
export class RedisBudgetRoots implements BudgetRoots {
  readonly #registry: string;

  constructor(
    private readonly runner: ScriptRunner,
    keyPrefix: string,
  ) {
    this.#registry = `${keyPrefix}/budget-roots`;
  }

  async share({ kept, done = new Map(), adopt = { max: 0, afterMs: 0 } }: ShareRequest): Promise<{
    readonly atMs: number;
    readonly adopted: readonly string[];
  }> {
    for (let from = BATCH; from < kept.length; from += BATCH)
      await this.share({ kept: kept.slice(from, from + BATCH) });
    const [atMs, ...adopted] = await this.runner.run(
      rootsScript,
      { registry: this.#registry },
      {
        kept: kept.slice(0, BATCH).map(encodeURIComponent).join(' '),
        done: [...done].map(([root, ms]) => `${encodeURIComponent(root)}=${ms}`).join(' '),
        ...adopt,
      },
    );
    return { atMs: Number(atMs), adopted: adopted.map(decodeURIComponent) };
  }
}
