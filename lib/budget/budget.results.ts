import type { Balance, BudgetRecord, Exceeded } from './budget.types.js';

// What both backends compute alike.

/** The part of an operation that changes. */
export type Head = Omit<BudgetRecord<bigint>, 'root' | 'id' | 'scopes' | 'meta'>;

/** The operation that a result belongs to. */
export interface ReplyContext {
  readonly root: string;
  readonly id: string;
}

type Sums = Pick<Balance<bigint>, 'limit' | 'credits' | 'committed' | 'reserved'>;

export function availableOf({ limit, credits, committed, reserved }: Sums): bigint | 'unlimited' {
  if (limit === 'unlimited') return limit;
  const available = limit + credits - committed - reserved;
  return available > 0n ? available : 0n;
}

/**
 * Returns a refusal by these balances. Its `retryAtMs` is set only if waiting helps. Waiting does not help for a
 * lifetime limit, or where the request exceeds the limit of a whole window.
 */
export function exceeded(
  full: readonly Balance<bigint>[],
  requested: bigint,
  nowMs: number,
): Exceeded<bigint> {
  const violations = full.map(({ scope, period, window, limit, committed, reserved, available }) => ({
    ...{ scope, period, limit, committed, reserved, available, requested, resetAtMs: window.endMs },
  }));
  const helps = violations.every(
    ({ resetAtMs, limit }) => resetAtMs !== null && limit !== 'unlimited' && requested <= limit,
  );
  const retryAtMs = helps ? Math.max(...violations.map(({ resetAtMs }) => resetAtMs ?? 0)) : null;
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
    overage: actual > amount ? actual - amount : 0n,
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
function releasedOf({ state, late, amount, committed }: Head): bigint {
  if (late) return 0n;
  if (state === 'finalized') return committed < amount ? amount - committed : 0n;
  return amount;
}
