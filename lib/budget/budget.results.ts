import { MAX_AMOUNT } from './budget.bounds.js';
import type { Amount, Balance, BudgetRecord, Exceeded, Violation } from './budget.types.js';

// What both backends compute alike.

/** The part of an operation that changes. */
export type Head = Omit<BudgetRecord, 'root' | 'id' | 'scopes' | 'meta'>;

/** The operation that a result belongs to. */
export interface ReplyContext {
  readonly root: string;
  readonly id: string;
}

type Sums = Pick<Balance, 'limit' | 'credits' | 'committed' | 'reserved'>;

export function availableOf({ limit, credits, committed, reserved }: Sums): Amount | 'unlimited' {
  if (limit === 'unlimited') return limit;
  return Math.max(0, effectiveOf(limit, credits) - committed - reserved);
}

/** A sum beyond the largest amount is that amount, as a limit may have been raised after a credit. */
export const effectiveOf = (limit: Amount, credits: Amount): Amount => Math.min(limit + credits, MAX_AMOUNT);

/** Returns whether a sum has reached a percentage of a limit. Each product is exact where it decides. */
export function reaches(used: Amount, percent: number, whole: Amount): boolean {
  const rest = whole % 100;
  return used >= percent * ((whole - rest) / 100) + Math.ceil((percent * rest) / 100);
}

/** Returns whether a request fits once pending holds have ended. */
export const isHeldOnly = ({ limit, credits, committed, requested }: Violation): boolean =>
  limit !== 'unlimited' && effectiveOf(limit, credits) - committed >= Math.max(1, requested);

/**
 * Returns a refusal by these balances. Its `retryAtMs` is set only if waiting helps. Waiting does not help for a
 * lifetime limit, or where the request exceeds the limit of a whole window. Limits whose rest is only held do not count
 * beside those that are spent.
 */
export function exceeded(full: readonly Balance[], requested: Amount, nowMs: number): Exceeded {
  const violations = full.map(({ window, ...balance }) => ({
    ...balance,
    requested,
    resetAtMs: window.endMs,
  }));
  const spent = violations.filter((violation) => !isHeldOnly(violation));
  const blocking = spent.length > 0 ? spent : violations;
  const helps = blocking.every(
    ({ resetAtMs, limit }) => resetAtMs !== null && limit !== 'unlimited' && requested <= limit,
  );
  const retryAtMs = helps ? Math.max(...blocking.map(({ resetAtMs }) => resetAtMs ?? 0)) : null;
  const retryAfterMs = retryAtMs === null ? null : Math.max(0, retryAtMs - nowMs);
  return { ok: false, reason: 'exceeded', violations, retryAtMs, retryAfterMs };
}

export const chargedOf = ({ amount, uncovered }: Head, { root, id }: ReplyContext, replayed: boolean) =>
  ({ ok: true, status: 'charged', root, id, amount, uncovered, replayed }) as const;

/** Returns the numbers of a finalized operation. They are the same on every replay. */
export const finalizedOf = (record: Head, { root, id }: ReplyContext, replayed: boolean) => {
  const { generation, amount, actual, committed, uncovered, late } = record;
  return {
    ok: true,
    status: 'finalized',
    root,
    id,
    generation,
    reserved: amount,
    actual,
    committed,
    released: releasedOf(record),
    overage: Math.max(0, actual - amount),
    uncovered,
    late,
    replayed,
  } as const;
};

export function abortedOf(record: Head, replayed: boolean) {
  const { generation } = record;
  return { ok: true, status: 'aborted', generation, released: releasedOf(record), replayed } as const;
}

/** Returns how much became free when the operation ended. */
function releasedOf({ state, late, amount, committed }: Head): Amount {
  if (late) return 0;
  if (state === 'finalized') return Math.max(0, amount - committed);
  return amount;
}
