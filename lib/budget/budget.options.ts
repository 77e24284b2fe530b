import type { Emit } from '../telemetry/telemetry.types.js';
import { between, OptionTable, orInfinity, type Resolved, type RowsOf } from '../core/option-table.js';
import { duration, integer, invalidOption, knownOptions } from '../core/validate.js';
import { type BudgetLimitSource, indexLimits } from './budget.limits.js';
import { LIFETIME_IDS_MS } from './budget.results.js';
import type { BudgetLimit, Quarantined } from './budget.types.js';

/** Options of budgets: the limits, and how long ended operations are remembered. */
export interface BudgetOptions {
  /**
   * The limits, or a function that returns the limits of a scope. A scope without a limit is refused.
   * Default: none.
   *
   * @example [{ scope: 'user', period: { every: 'month' }, limit: 1_000_000, thresholds: [80, 100] }]
   */
  limits?: readonly BudgetLimit[] | BudgetLimitSource;
  /**
   * How long the record of an operation is kept after its end, for `get`, `list` and a retry. In ms, 1 to 2^31 - 1.
   * Default: 900,000.
   */
  retentionMs?: number;
  /**
   * How long the id of a charge or of a finalized hold is kept, so that it applies once and refunds reach it. It is
   * forgotten at the end of its last window at the latest, but never before `retentionMs`. In ms, 1 to 400 days. Default:
   * 86,400,000. Ids of credits and refunds are kept to the end of their window, in a lifetime for 400 days.
   */
  idTtlMs?: number;
  /**
   * The longest time for which `run()` and `@WithBudget()` keep a hold, extensions included. A hold whose body still runs
   * then expires, and its cost is counted late. In ms, at least 1. Default: no limit.
   */
  maxHoldMs?: number;
  /**
   * How long the HTTP client of a stream under `@WithBudget()` may stay away. A client that has been handed a chunk, and
   * takes no more for this time, has left without a word, and pays as one that hangs up. That the stream itself has nothing
   * to send is no reason. In ms, at least 1, or `Infinity`. Default: 60,000.
   */
  idleMs?: number;
  /**
   * When old records are deleted and expired holds are reported. False: you call `reap()` yourself. Default:
   * `{ everyMs: 30_000 }`.
   */
  reaper?:
    | false
    | {
        /** How often, in ms. At least 100. A round may come up to a fifth sooner at random. */
        everyMs: number;
      };
}

/** The check of `idleMs`, here and of the decorator. */
export const idleMsOf = orInfinity(1);

const OPTIONS = new OptionTable({
  limits: { check: limitsOf, usual: [] },
  retentionMs: { check: duration, usual: 900_000 },
  idTtlMs: { check: between(1, LIFETIME_IDS_MS), usual: 86_400_000 },
  maxHoldMs: { check: duration },
  idleMs: { check: idleMsOf, usual: 60_000 },
  reaper: { check: reaperOf, usual: { everyMs: 30_000 } },
} satisfies RowsOf<BudgetOptions>);

export type ResolvedBudgetOptions = Resolved<typeof OPTIONS>;

export interface BudgetServiceOptions extends ResolvedBudgetOptions {
  /** How long a shutdown waits for running bodies. By default it does not wait. */
  readonly shutdown?: { readonly drainMs: number };
}

export interface BudgetEvents {
  /** Called with holds that expired. Each is reported once, by the process that reaped it. */
  onExpired?(root: string, ids: readonly string[]): void;
  /** Called with records that could not be read and were set aside. Each is reported once. */
  onQuarantined?(root: string, records: readonly Quarantined[]): void;
  /** Called if the cost of a body could not be read. At least the estimate was committed. */
  onUnreadableCost?(id: string): void;
  /** Reports the end of a body, and a change by hand. */
  readonly emit?: Emit;
}

/** Checks the `budget` group of the module's options and fills in the defaults. */
export const resolveBudgetDefaults = (options?: unknown): ResolvedBudgetOptions =>
  OPTIONS.resolve('budget', options);

function limitsOf(_name: string, limits: unknown): readonly BudgetLimit[] | BudgetLimitSource {
  if (typeof limits !== 'function') indexLimits(limits);
  return limits as readonly BudgetLimit[] | BudgetLimitSource;
}

function reaperOf(name: string, reaper: unknown): false | { everyMs: number } {
  if (reaper === false) return reaper;
  if (reaper === true) throw invalidOption(name, 'false or { everyMs }', reaper);
  const { everyMs } = knownOptions(name, reaper, ['everyMs']);
  return { everyMs: integer(`${name}.everyMs`, everyMs, 100) };
}
