import { budgetScripts } from '../budget/redis/budget.scripts.js';
import { counterScripts } from '../counter/redis/counter.scripts.js';
import { limitScripts } from '../limit/redis/limit.scripts.js';
import { fenceScripts } from '../lock/redis/fence.scripts.js';
import { lockScripts } from '../lock/redis/lock.by-id.scripts.js';
import type { Script } from '../script/define-script.js';
import type { ScriptRunner } from '../script/script-runner.js';
import { secretScripts } from '../secret/redis/secret.scripts.js';

/**
 * The scripts of all features. The tests of the script laws run over this list. The scripts for locks of three and more
 * keys are left out: they differ from those for two in their number of keys only, and are registered at their first use.
 */
export const allScripts: readonly Script[] = [
  ...lockScripts,
  ...fenceScripts,
  ...limitScripts,
  ...budgetScripts,
  ...secretScripts,
  ...counterScripts,
];

/**
 * Registers every script on the client when the app starts, so that the first call is as fast as the others.
 */
export class ScriptLoader {
  readonly #runner: ScriptRunner | undefined;

  /** @internal Without a runner (in memory) `load()` does nothing. */
  constructor(runner?: ScriptRunner) {
    this.#runner = runner;
  }

  /** The name and the Lua text of each script, for inspection. */
  get scripts(): readonly { readonly name: string; readonly lua: string }[] {
    return allScripts;
  }

  /** @internal */
  load(): void {
    for (const script of allScripts) this.#runner?.register(script);
  }
}
