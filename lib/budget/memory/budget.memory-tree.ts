import type { ConfiguredLimit, LimitedScope } from '../budget.backend.js';
import { BudgetCalendar, parsePeriodKey, periodKey } from '../budget.calendar.js';
import { noLimit, typeOf } from '../budget.limits.js';
import { availableOf, exceeded } from '../budget.results.js';
import type { Balance, BudgetRecord, BudgetWindow, Crossed, Exceeded, Period } from '../budget.types.js';
import { DueQueue } from './due-queue.js';

export interface Counter {
  committed: bigint;
  reserved: bigint;
  credits: bigint;
  /** What purged operations had committed, less their refunds. `committed` includes it. */
  archived: bigint;
  /** The highest threshold that was crossed, in percent. */
  crossed: number;
  /** The limit by setLimit at the last check of the thresholds. */
  seen: bigint | 'unlimited' | undefined;
}

/** One scope, period and window in which an operation counts. */
export interface Entry {
  readonly field: string;
  readonly scope: string;
  readonly period: Period;
  readonly window: BudgetWindow;
  readonly configured: ConfiguredLimit | undefined;
}

type Mutable<T> = { -readonly [Key in keyof T]: T[Key] };

export interface Operation {
  /** As in Redis: `o|<id>` for the newest operation of an id, and `O|<generation>|<id>` for an older one. */
  name: string;
  /** The nonce of the call that created the operation. */
  readonly nonce: string;
  readonly record: Mutable<BudgetRecord<bigint>>;
  readonly entries: readonly Entry[];
  crossed: readonly Crossed[];
}

export type StoredLimits = Map<string, bigint | 'unlimited'>;

/** The state of one root. The Redis backend keeps the same state in four keys. */
export class Tree {
  readonly counters = new Map<string, Counter>();
  readonly limits = new Map<string, StoredLimits>();
  readonly operations = new Map<string, Operation>();
  readonly refunds = new Map<string, string>();
  readonly credits = new Map<string, string>();
  /** The ids of pending holds, by expiry. */
  readonly pending = new DueQueue();
  /** The names of records and counters to purge, by time. */
  readonly garbage = new DueQueue();
  /** The ids of expired holds that reap has not reported yet. */
  readonly unreported: string[] = [];
  /** The time of the current call. */
  nowMs = 0;

  constructor(readonly retentionMs: number) {}
}

/** Remembers the last window of each period, for all roots. */
const calendar = new BudgetCalendar();

/** Returns an entry for every limit of these scopes, configured or set by setLimit. */
export const entriesOf = (tree: Tree, scopes: readonly LimitedScope[]): Entry[] =>
  scopes.flatMap(({ scope, limits }) => {
    const configured = new Map(limits.map((limit) => [periodKey(limit.period), limit]));
    const stored = [scope, typeOf(scope)].flatMap((name) => [...(tree.limits.get(name)?.keys() ?? [])]);
    const entries = [...new Set([...configured.keys(), ...stored])].map((key): Entry => {
      const period = parsePeriodKey(key);
      const window = calendar.windowAt(period, tree.nowMs);
      const field = `${scope}|${key}|${window.startMs}`;
      return { field, scope, period, window, configured: configured.get(key) };
    });
    if (entries.length === 0) throw noLimit(scope);
    return entries;
  });

export function counterOf(tree: Tree, field: string): Counter {
  let counter = tree.counters.get(field);
  if (!counter) {
    counter = { committed: 0n, reserved: 0n, credits: 0n, archived: 0n, crossed: 0, seen: undefined };
    tree.counters.set(field, counter);
  }
  return counter;
}

/**
 * Returns the limit of setLimit for an entry. A limit for the scope itself comes first. A limit for the type
 * counts only if no limit is configured for the scope itself.
 */
function setLimitOf(tree: Tree, { scope, period, configured }: Entry) {
  const key = periodKey(period);
  const isOwn = configured !== undefined && !configured.inherited;
  return tree.limits.get(scope)?.get(key) ?? (isOwn ? undefined : tree.limits.get(typeOf(scope))?.get(key));
}

/** Returns the limit of an entry. It is unlimited if no limit is configured, and the limit by setLimit was cleared. */
const limitOf = (tree: Tree, entry: Entry): bigint | 'unlimited' =>
  setLimitOf(tree, entry) ?? entry.configured?.limit ?? 'unlimited';

export function balanceOf(tree: Tree, entry: Entry): Balance<bigint> {
  const { committed = 0n, reserved = 0n, credits = 0n } = tree.counters.get(entry.field) ?? {};
  const sums = { limit: limitOf(tree, entry), credits, committed, reserved };
  const { scope, period, window } = entry;
  return { scope, period, window, ...sums, available: availableOf(sums) };
}

/** Returns the part of an amount that fits into all entries. */
export function coveredOf(tree: Tree, entries: readonly Entry[], amount: bigint): bigint {
  let covered = amount;
  for (const entry of entries) {
    const { available } = balanceOf(tree, entry);
    if (available !== 'unlimited' && available < covered) covered = available;
  }
  return covered;
}

/** Returns a denial where an entry has too little room. An amount of 0 always fits. */
export function exceededBy(
  tree: Tree,
  entries: readonly Entry[],
  requested: bigint,
): Exceeded<bigint> | undefined {
  const isFull = ({ available }: Balance<bigint>): boolean =>
    requested !== 0n && available !== 'unlimited' && available < requested;
  const full = entries.map((entry) => balanceOf(tree, entry)).filter(isFull);
  return full.length === 0 ? undefined : exceeded(full, requested, tree.nowMs);
}

/** Changes the counters of these entries. Changes of setLimit are applied to their thresholds before. */
export function count(tree: Tree, entries: readonly Entry[], change: (counter: Counter) => void): void {
  for (const entry of entries) {
    arm(tree, entry);
    change(counterOf(tree, entry.field));
  }
}

/** Returns the thresholds that the last change has crossed. */
export const crossedBy = (tree: Tree, entries: readonly Entry[]): Crossed[] =>
  entries.flatMap((entry) => cross(tree, entry));

/**
 * Applies a change of setLimit to the thresholds of an entry, before the current step counts. A raised limit arms them
 * again: those above the current usage will be reported again.
 */
function arm(tree: Tree, entry: Entry): void {
  if (!entry.configured?.thresholds.length) return;
  const counter = counterOf(tree, entry.field);
  const set = setLimitOf(tree, entry);
  if (set === counter.seen) return;
  const before = counter.seen ?? entry.configured.limit;
  const limit = limitOf(tree, entry);
  counter.seen = set;
  if (before !== 'unlimited' && (limit === 'unlimited' || limit > before)) rearm(tree, entry);
}

/** Arms the thresholds above the current usage again. */
export function rearm(tree: Tree, entry: Entry): void {
  const counter = counterOf(tree, entry.field);
  counter.crossed = reachedBy(tree, entry).findLast((percent) => percent <= counter.crossed) ?? 0;
}

function cross(tree: Tree, entry: Entry): Crossed[] {
  const counter = counterOf(tree, entry.field);
  const crossed = reachedBy(tree, entry).filter((percent) => percent > counter.crossed);
  counter.crossed = crossed.at(-1) ?? counter.crossed;
  return crossed.map((percent) => ({ scope: entry.scope, period: entry.period, percent }));
}

/** Returns the thresholds that the current usage reaches. */
function reachedBy(tree: Tree, entry: Entry): number[] {
  const { limit, credits, committed, reserved } = balanceOf(tree, entry);
  if (limit === 'unlimited' || limit + credits === 0n) return [];
  const reaches = (percent: number): boolean =>
    (committed + reserved) * 100n >= BigInt(percent) * (limit + credits);
  return entry.configured?.thresholds.filter(reaches) ?? [];
}
