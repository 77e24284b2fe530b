import { MAX_AMOUNT } from './budget.bounds.js';
import type {
  Aborted,
  Amount,
  Balance,
  BudgetRecord,
  Charged,
  Crossed,
  Exceeded,
  ExtendHoldResult,
  Finalized,
  Refunded,
  Reserved,
  Violation,
} from './budget.types.js';

// What both backends compute alike.

/** The part of an operation that changes. */
export type Head = Omit<BudgetRecord, 'root' | 'id' | 'scopes' | 'meta'>;

/** The operation that a result belongs to. */
export interface ReplyContext {
  /** The tenant that owns the scopes. */
  readonly root: string;
  /** The id of the operation. */
  readonly id: string;
}

/** What an operation has come to, as a backend answers it. A result keeps it, for what the caller does with the result. */
export interface Answer extends ReplyContext {
  readonly head: Head;
  /**
   * The nonce of the call that created the hold. Once an operation was purged, its id can be used again, and generations
   * start at 1 again. The nonce keeps a very late call for the old hold from settling the new one.
   */
  readonly nonce: string;
  readonly replayed: boolean;
  readonly crossed: readonly Crossed[];
  /** True where a sum has stopped at the largest amount, because what is spent is never refused. */
  readonly isAtMax: boolean;
  /** Called when the balances of the result are first read. */
  balances(): Balance[];
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
  const { root, id, replayed, crossed, head } = answer;
  const { generation, amount, expiresAtMs } = head;
  const hold = { ok: true, status: 'reserved', root, id, generation, amount, expiresAtMs } as const;
  return withBalances(answer, { ...hold, replayed, crossed });
}

export function chargedOf(answer: Answer): Charged {
  const { root, id, replayed, crossed, head } = answer;
  const { amount, uncovered } = head;
  return withBalances(answer, {
    ok: true,
    status: 'charged',
    root,
    id,
    amount,
    uncovered,
    replayed,
    crossed,
  });
}

export function finalizedOf(answer: Answer): Finalized {
  const { root, id, replayed, crossed, head } = answer;
  const { generation, amount, actual, committed, uncovered, late } = head;
  return withBalances(answer, {
    ok: true,
    status: 'finalized',
    root,
    id,
    generation,
    reserved: amount,
    actual,
    committed,
    released: releasedOf(head),
    overage: Math.max(0, actual - amount),
    uncovered,
    late,
    replayed,
    crossed,
  });
}

export function refundedOf(answer: Answer, amount: Amount): Refunded {
  const { replayed, head } = answer;
  return withBalances(answer, { ok: true, status: 'refunded', amount, refunded: head.refunded, replayed });
}

export function abortedOf(answer: Answer): Aborted {
  const { replayed, head } = answer;
  return keeping(answer, { ok: true, status: 'aborted', released: releasedOf(head), replayed });
}

export const extendedOf = ({ head: { expiresAtMs } }: Answer): ExtendHoldResult => ({
  ok: true,
  status: 'extended',
  expiresAtMs,
});

/** Returns how much became free when the operation ended. */
function releasedOf({ state, late, amount, committed }: Head): Amount {
  if (late) return 0;
  if (state === 'finalized') return Math.max(0, amount - committed);
  return amount;
}

const ANSWER = Symbol.for('syncguard:budget-answer');

/** Returns what a backend has answered, if this is the result of an operation that was done. */
export const answerOf = (result: object): Answer | undefined => (result as { [ANSWER]?: Answer })[ANSWER];

const keeping = <Result extends object>(answer: Answer, result: Result): Result =>
  Object.defineProperty(result, ANSWER, { value: answer });

// All results share one getter. With one getter for each result, V8 would give each result its own hidden class, and
// access would be slow.
const BALANCES: PropertyDescriptor & ThisType<{ readonly [ANSWER]: Answer }> = {
  enumerable: true,
  configurable: true,
  get() {
    const value = this[ANSWER].balances();
    Object.defineProperty(this, 'balances', { value, enumerable: true, configurable: true, writable: true });
    return value;
  },
};

/** Adds the `balances` to a result. They are computed when they are first read. */
const withBalances = <Result extends object>(answer: Answer, result: Result) =>
  Object.defineProperty(keeping(answer, result), 'balances', BALANCES) as Result & {
    readonly balances: readonly Balance[];
  };
