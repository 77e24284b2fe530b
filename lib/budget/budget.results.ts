import type { Balance, BudgetRecord, Exceeded, Finalized, Violation } from './budget.types.js';

type Sums = Pick<Balance<bigint>, 'limit' | 'credits' | 'committed' | 'reserved'>;

/** Returns max(0, limit + credits - committed - reserved). */
export function availableOf({ limit, credits, committed, reserved }: Sums): bigint | 'unlimited' {
  if (limit === 'unlimited') return limit;
  const available = limit + credits - committed - reserved;
  return available > 0n ? available : 0n;
}

/**
 * Returns a refusal. Its `retryAtMs` is set only if waiting helps. Waiting does not help for a lifetime
 * limit, or where the request exceeds the limit of a whole window.
 */
export function exceeded(violations: readonly Violation<bigint>[], nowMs: number): Exceeded<bigint> {
  const helps = violations.every(
    ({ resetAtMs, requested, limit }) => resetAtMs !== null && limit !== 'unlimited' && requested <= limit,
  );
  const retryAtMs = helps ? Math.max(...violations.map(({ resetAtMs }) => resetAtMs ?? 0)) : null;
  const retryAfterMs = retryAtMs === null ? null : Math.max(0, retryAtMs - nowMs);
  return { ok: false, reason: 'exceeded', violations, retryAtMs, retryAfterMs };
}

/** Returns how much became free when the operation ended. */
export function releasedOf({
  state,
  late,
  amount,
  committed,
}: Pick<BudgetRecord<bigint>, 'state' | 'late' | 'amount' | 'committed'>): bigint {
  if (late) return 0n;
  if (state === 'finalized') return committed < amount ? amount - committed : 0n;
  return amount;
}

/** Returns the numbers of a finalized operation. They are the same on every replay. */
export function finalizedOf(
  record: Omit<BudgetRecord<bigint>, 'root' | 'id' | 'scopes' | 'meta'>,
  { root, id }: { root: string; id: string },
  replayed: boolean,
): Omit<Finalized<bigint>, 'balances' | 'crossed'> {
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
  };
}
