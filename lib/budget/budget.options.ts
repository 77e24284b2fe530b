import { duration, integer, invalidOption, knownOptions } from '../core/validate.js';
import { type BudgetLimitSource, indexLimits } from './budget.limits.js';
import { LIFETIME_IDS_MS } from './budget.bounds.js';
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
   * How often old records are deleted and expired holds are reported, in ms, at least 100. A round may come
   * up to a fifth sooner at random. False: you call `reap()` yourself. Default: 30,000.
   */
  reaper?: false | { everyMs: number };
}

export type ResolvedBudgetOptions = Readonly<Required<Omit<BudgetOptions, 'maxHoldMs'>>> & {
  readonly maxHoldMs: number | undefined;
};

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
}

export function resolveBudgetDefaults(options?: unknown): ResolvedBudgetOptions {
  const given = knownOptions('budget', options, [
    ...(['limits', 'retentionMs', 'idTtlMs', 'maxHoldMs', 'idleMs', 'reaper'] as const),
  ]);
  const limits = given.limits ?? [];
  const reaper = given.reaper ?? { everyMs: 30_000 };
  if (typeof limits !== 'function') indexLimits(limits);
  return {
    limits: limits as ResolvedBudgetOptions['limits'],
    retentionMs: duration('budget.retentionMs', given.retentionMs ?? 900_000),
    idTtlMs: integer('budget.idTtlMs', given.idTtlMs ?? 86_400_000, 1, LIFETIME_IDS_MS),
    maxHoldMs: given.maxHoldMs === undefined ? undefined : duration('budget.maxHoldMs', given.maxHoldMs),
    idleMs: idleMsOf('budget.idleMs', given.idleMs ?? 60_000),
    reaper: reaper === false ? reaper : { everyMs: everyMsOf(reaper) },
  };
}

export const idleMsOf = (name: string, value: unknown): number =>
  value === Infinity ? Infinity : duration(name, value);

function everyMsOf(reaper: unknown): number {
  if (reaper === true) throw invalidOption('budget.reaper', 'false or { everyMs }', reaper);
  const { everyMs } = knownOptions('budget.reaper', reaper, ['everyMs']);
  return integer('budget.reaper.everyMs', everyMs, 100);
}
