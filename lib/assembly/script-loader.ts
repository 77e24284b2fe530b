import type { Script } from '../script/define-script.js';
import type { ScriptRunner } from '../script/script-runner.js';

/**
 * Defines the scripts of the package as commands of the client when the app starts, so that no call has to do that. It
 * sends nothing to Redis: ioredis sends the text of a script with its first call on each connection.
 */
export class ScriptLoader {
  /** The name and the Lua text of each script, for inspection. */
  readonly scripts: readonly { readonly name: string; readonly lua: string }[];
  readonly #scripts: readonly Script[];
  readonly #runner: ScriptRunner | undefined;

  /** @internal Without a runner (in memory) `load()` does nothing. */
  constructor(scripts: readonly Script[], runner?: ScriptRunner) {
    this.#runner = runner;
    this.scripts = this.#scripts = scripts;
  }

  /** @internal */
  load(): void {
    for (const script of this.#scripts) this.#runner?.register(script);
  }
}
