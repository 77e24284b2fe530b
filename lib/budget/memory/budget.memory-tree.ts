import type { ConfiguredLimit, LimitedScope, ReserveOutcome, ReserveRequest } from '../budget.backend.js';
import { periodKey } from '../budget.calendar.js';
import { typeOf } from '../budget.limits.js';
import { availableOf, exceeded } from '../budget.results.js';
import type {
  Balance,
  BudgetRecord,
  BudgetWindow,
  ChargeResult,
  Crossed,
  Exceeded,
  Period,
} from '../budget.types.js';
import { ANY_NONCE, attachNonce } from '../budget.validate.js';
import { DueQueue } from './due-queue.js';

export interface Counter {
  committed: bigint;
  reserved: bigint;
  credits: bigint;
  /** What purged operations had committed, less their refunds. `committed` includes this sum. */
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
export interface Tree {
  readonly counters: Map<string, Counter>;
  readonly limits: Map<string, StoredLimits>;
  /** The operations by their name. */
  readonly operations: Map<string, Operation>;
  readonly refunds: Map<string, string>;
  readonly credits: Map<string, string>;
  /** The ids of pending holds, by expiry. */
  readonly pending: DueQueue;
  /** The names of records and counters to purge, by time. */
  readonly garbage: DueQueue;
  /** The ids of expired holds that reap has not reported yet. */
  unreported: string[];
}

export const newTree = (): Tree => ({
  counters: new Map(),
  limits: new Map(),
  operations: new Map(),
  refunds: new Map(),
  credits: new Map(),
  pending: new DueQueue(),
  garbage: new DueQueue(),
  unreported: [],
});

export const isEmpty = ({ counters, limits, operations, garbage, unreported: untold }: Tree): boolean =>
  counters.size + limits.size + operations.size + garbage.size + untold.length === 0;

export const newRecord = (
  { root, id, amount, scopes }: { root: string; id: string; amount: bigint; scopes: readonly LimitedScope[] },
  createdAtMs: number,
): Omit<BudgetRecord<bigint>, 'kind' | 'state' | 'generation' | 'expiresAtMs' | 'meta'> => ({
  root,
  id,
  amount,
  scopes: scopes.map(({ scope }) => scope),
  actual: 0n,
  committed: 0n,
  refunded: 0n,
  uncovered: 0n,
  late: false,
  createdAtMs,
  endedAtMs: null,
});

export const copyRecord = ({ record }: Operation): BudgetRecord<bigint> => ({
  ...record,
  scopes: [...record.scopes],
});

export function counterOf(tree: Tree, field: string): Counter {
  let counter = tree.counters.get(field);
  if (!counter) {
    counter = { committed: 0n, reserved: 0n, credits: 0n, archived: 0n, crossed: 0, seen: undefined };
    tree.counters.set(field, counter);
  }
  return counter;
}

export function sameContent(
  { record }: Operation,
  kind: 'hold' | 'charge',
  { amount, scopes }: { amount: bigint; scopes: readonly LimitedScope[] },
): boolean {
  const asked = scopes.map(({ scope }) => scope).sort();
  const done = [...record.scopes].sort();
  return record.kind === kind && record.amount === amount && JSON.stringify(asked) === JSON.stringify(done);
}

/**
 * Returns the answer if an earlier hold under the same id decides it. Returns undefined if a new hold may be reserved.
 */
export function replayReserve(
  tree: Tree,
  earlier: Operation,
  request: ReserveRequest,
  nowMs: number,
): ReserveOutcome | undefined {
  const { state, expiresAtMs } = earlier.record;
  const isOurs = request.nonce !== ANY_NONCE && request.nonce === earlier.nonce;
  if (state === 'pending') {
    if (request.mode === 'run' && !isOurs)
      return { ok: false, reason: state, record: copyRecord(earlier), endsInMs: expiresAtMs - nowMs };
    if (!sameContent(earlier, 'hold', request))
      return { ok: false, reason: 'conflict', record: copyRecord(earlier) };
    return reservedResult(tree, earlier, true);
  }
  if (state !== 'finalized' && request.mode !== 'reserve' && !isOurs) return undefined;
  return { ok: false, reason: `already_${state}`, record: copyRecord(earlier) };
}

export function reservedResult(tree: Tree, operation: Operation, replayed: boolean): ReserveOutcome {
  const { root, id, generation, amount, expiresAtMs } = operation.record;
  const hold = { ok: true, status: 'reserved', root, id, generation, amount, expiresAtMs, replayed } as const;
  return attachNonce({ ...hold, ...balancesAndCrossed(tree, operation) }, operation.nonce);
}

export function chargedResult(tree: Tree, operation: Operation, replayed: boolean): ChargeResult<bigint> {
  const { root, id, amount, uncovered } = operation.record;
  return {
    ok: true,
    status: 'charged',
    root,
    id,
    amount,
    uncovered,
    replayed,
    ...balancesAndCrossed(tree, operation),
  };
}

/**
 * Returns the limit of setLimit for an entry. A limit for the scope itself comes first. A limit for the type
 * counts only if no limit is configured for the scope itself.
 */
function setLimitOf(tree: Tree, { scope, period, configured }: Entry): bigint | 'unlimited' | undefined {
  const key = periodKey(period);
  const isOwn = configured !== undefined && !configured.inherited;
  return tree.limits.get(scope)?.get(key) ?? (isOwn ? undefined : tree.limits.get(typeOf(scope))?.get(key));
}

/** Returns the limit of an entry. It is unlimited if no limit is configured, and the limit by setLimit was cleared. */
const limitOf = (tree: Tree, entry: Entry): bigint | 'unlimited' =>
  setLimitOf(tree, entry) ?? entry.configured?.limit ?? 'unlimited';

/**
 * Applies a change of setLimit to the thresholds of an entry, before the current step counts. A raised limit arms them
 * again: those above the current usage will be reported again.
 */
export function arm(tree: Tree, entry: Entry): void {
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
  const { limit, credits, committed, reserved } = balanceOf(tree, entry);
  const isStill = (percent: number): boolean =>
    limit !== 'unlimited' &&
    percent <= counter.crossed &&
    (committed + reserved) * 100n >= BigInt(percent) * (limit + credits);
  counter.crossed = entry.configured?.thresholds.filter(isStill).at(-1) ?? 0;
}

export function balanceOf(tree: Tree, entry: Entry): Balance<bigint> {
  const { committed = 0n, reserved: reserved = 0n, credits = 0n } = tree.counters.get(entry.field) ?? {};
  const sums = { limit: limitOf(tree, entry), credits, committed, reserved };
  return {
    scope: entry.scope,
    period: entry.period,
    window: entry.window,
    ...sums,
    available: availableOf(sums),
  };
}

export const balancesAndCrossed = (
  tree: Tree,
  { entries, crossed }: Operation,
): { balances: Balance<bigint>[]; crossed: readonly Crossed[] } => ({
  balances: entries.map((entry) => balanceOf(tree, entry)),
  crossed,
});

/** Returns the smallest room of all entries, or undefined if none is limited. */
export function roomOf(tree: Tree, entries: readonly Entry[]): bigint | undefined {
  let room: bigint | undefined;
  for (const entry of entries) {
    const { available } = balanceOf(tree, entry);
    if (available !== 'unlimited' && (room === undefined || available < room)) room = available;
  }
  return room;
}

/** Returns a denial where an entry has too little room. An amount of 0 always fits. */
export function exceededBy(
  tree: Tree,
  entries: readonly Entry[],
  requested: bigint,
  nowMs: number,
): Exceeded<bigint> | undefined {
  const violations = entries.flatMap((entry) => {
    const { scope, period, window, limit, committed, reserved, available } = balanceOf(tree, entry);
    if (available === 'unlimited' || requested === 0n || available >= requested) return [];
    return [{ scope, period, limit, committed, reserved, available, requested, resetAtMs: window.endMs }];
  });
  return violations.length === 0 ? undefined : exceeded(violations, nowMs);
}

export function cross(tree: Tree, entry: Entry, counter: Counter): Crossed[] {
  const { limit, credits, committed, reserved } = balanceOf(tree, entry);
  if (limit === 'unlimited' || limit + credits === 0n) return [];
  const crossed = (entry.configured?.thresholds ?? []).filter(
    (percent) =>
      percent > counter.crossed && (committed + reserved) * 100n >= BigInt(percent) * (limit + credits),
  );
  counter.crossed = crossed.at(-1) ?? counter.crossed;
  return crossed.map((percent) => ({ scope: entry.scope, period: entry.period, percent }));
}

export function nextDueMs(tree: Tree, nowMs: number): number | null {
  if (tree.unreported.length > 0) return 0;
  const nextMs = Math.min(tree.pending.nextMs(), tree.garbage.nextMs());
  return nextMs === Infinity ? null : Math.max(0, nextMs - nowMs);
}
