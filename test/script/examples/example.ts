import type { Redis } from 'ioredis';
import type { Script } from '../../../lib/script/define-script.js';
import type { ScriptArg } from '../../../lib/script/script-runner.js';

/** One call of a script that finds something to do. The laws are checked with it. */
export interface ScriptExample {
  readonly script: Script;
  readonly keys: Readonly<Record<string, string>>;
  readonly args: Readonly<Record<string, ScriptArg>>;
  /** Brings the server into the state that the call needs. `prefix` is the client's own `keyPrefix`. */
  prepare?(client: Redis, prefix: string): Promise<unknown>;
  /** Keys without a TTL by design, by name (law 4). */
  readonly immortal?: RegExp;
  /** Keys that are found through another key: the spec lock layout by a lock id alone (law 1). */
  readonly undeclared?: RegExp;
  /** Keys that the script replaces or deletes whatever they hold, and why (law 2). */
  readonly replaces?: RegExp;
  /** What a run that the server refuses must leave as it was, whatever else it has written: sums, owners (law 8). */
  stays?(client: Redis): Promise<unknown>;
  /** Commands whose refusal the script takes as an answer (law 8). Default: PUBLISH. */
  readonly tolerates?: RegExp;
  /** Keys whose numbers a second run raises once more, on the safe side (the named exception of law 7). */
  readonly recounts?: RegExp;
  /** The beginning of the reply to a second run, where it is not the reply to the first one (law 7). */
  readonly again?: readonly unknown[];
}
