import type { Answer } from './budget.backend.js';
import type {
  Aborted,
  Amount,
  Balance,
  BudgetRecord,
  Charged,
  Exceeded,
  Finalized,
  Refunded,
  Reserved,
  Violation,
} from './budget.types.js';

// What options and both backends are bound by, and what both backends compute alike.

/** The largest amount, and the largest sum of amounts: 2^53 - 1. */
export const MAX_AMOUNT = Number.MAX_SAFE_INTEGER;

/** How long an id of a lifetime limit is kept. Longer than the time in which a card payment may be charged back. */
export const LIFETIME_IDS_MS = 400 * 86_400_000;

/** Stands for a missing nonce. A call with it finds a hold, whatever nonce the hold has. */
export const ANY_NONCE = '-';

/** The operation that a result belongs to. */
export type ReplyContext = Pick<BudgetRecord, 'root' | 'id'>;

export const typeOf = (scope: string): string => scope.split(':', 1)[0] as string;

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

/** Returns whether an amount has no room. 0 needs none. */
export const isFull = ({ available }: Balance, requested: Amount): boolean =>
  requested > 0 && available !== 'unlimited' && available < requested;

/** Returns whether a request fits once pending holds have ended. */
export const isHeldOnly = ({ limit, credits, committed, requested }: Violation): boolean =>
  limit !== 'unlimited' && effectiveOf(limit, credits) - committed >= Math.max(1, requested);

/**
 * Returns a refusal by these balances, some of which are full. Its `retryAtMs` is the first end of a window at which all of
 * them have room, if nothing more is spent. Pending holds have ended by then, unless nothing but them is in the way.
 */
export function exceeded(balances: readonly Balance[], requested: Amount, nowMs: number): Exceeded {
  const violations = balances
    .filter((balance) => isFull(balance, requested))
    .map(({ window, ...balance }) => ({ ...balance, requested, resetAtMs: window.endMs }));
  const areHolds = violations.every(isHeldOnly);
  const fitsAt = (atMs: number): boolean =>
    balances.every(({ limit, credits, committed, reserved, window: { endMs } }) => {
      if (limit === 'unlimited') return true;
      // Credits end with their window.
      if (endMs !== null && endMs <= atMs) return requested <= limit;
      return requested <= effectiveOf(limit, credits) - committed - (areHolds ? reserved : 0);
    });
  const ends = balances.flatMap(({ window }) => window.endMs ?? []).sort((a, b) => a - b);
  const retryAtMs = ends.find(fitsAt) ?? null;
  const retryAfterMs = retryAtMs === null ? null : Math.max(0, retryAtMs - nowMs);
  return { ok: false, reason: 'exceeded', violations, retryAtMs, retryAfterMs };
}

// The results of operations. They are the same on every replay.

export function reservedOf(answer: Answer): Reserved {
  const { root, id, generation, amount, expiresAtMs, replayed, balances, crossed } = answer;
  return withNonce(answer, {
    ok: true,
    status: 'reserved',
    root,
    id,
    generation,
    amount,
    expiresAtMs,
    replayed,
    balances,
    crossed,
  });
}

export function chargedOf({ root, id, amount, uncovered, replayed, balances, crossed }: Answer): Charged {
  return { ok: true, status: 'charged', root, id, amount, uncovered, replayed, balances, crossed };
}

export function finalizedOf(answer: Answer): Finalized {
  const { root, id, generation, amount, actual, committed, uncovered, late } = answer;
  const { replayed, balances, crossed } = answer;
  return withNonce(answer, {
    ok: true,
    status: 'finalized',
    root,
    id,
    generation,
    reserved: amount,
    actual,
    committed,
    released: releasedOf(answer),
    overage: Math.max(0, actual - amount),
    uncovered,
    late,
    replayed,
    balances,
    crossed,
  });
}

export const refundedOf = ({ refunded, replayed, balances }: Answer, amount: Amount): Refunded => ({
  ok: true,
  status: 'refunded',
  amount,
  refunded,
  replayed,
  balances,
});

export const abortedOf = (answer: Answer): Aborted => ({
  ok: true,
  status: 'aborted',
  released: releasedOf(answer),
  replayed: answer.replayed,
});

/** Returns how much became free when the operation ended. */
function releasedOf({ state, late, amount, committed }: Answer): Amount {
  if (late) return 0;
  if (state === 'finalized') return Math.max(0, amount - committed);
  return amount;
}

const NONCE = Symbol.for('syncguard:budget-nonce');

/** Returns the nonce of the call that created a hold, if this is its result. */
export const nonceOf = (result: object): string | undefined => (result as { [NONCE]?: string })[NONCE];

/** Keeps the nonce in a result, hidden, so that a call with that result finds no other hold. A random id needs none. */
const withNonce = <Result extends object>({ nonce }: Answer, result: Result): Result =>
  nonce === ANY_NONCE ? result : Object.defineProperty(result, NONCE, { value: nonce });
