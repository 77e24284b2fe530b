import { passOwed } from '../owed.js';
import { type FaultCode, SyncGuardError, type SyncGuardErrorInit } from '../syncguard.errors.js';
import type { Amount, BudgetRecord, Exceeded, Violation } from './budget.types.js';

/** The call is wrong: an amount of -1, an unknown time zone, a scope without a limit. Thrown before any I/O where it can. */
export class BudgetInputError extends SyncGuardError<'InvalidArgument'> {
  static override readonly brand: string = 'BudgetInputError';

  constructor(message: string, init: { hint?: string | undefined; cause?: unknown } = {}) {
    super({ code: 'InvalidArgument', message, ...init });
  }
}

/** A connection comes back within moments, or not for long. */
const FAULT_RETRY_SECS = 1;

/**
 * Redis is away, slow, or refuses us: nothing is known about the budget. Never says that it was exceeded, nor
 * that anything was finalized. `code` says which; a call that may have run is safe to repeat with its id. At the HTTP
 * edge 503 with Retry-After; 500 where a key holds what SyncGuard did not write.
 */
export class BudgetUnavailableError extends SyncGuardError<FaultCode> {
  static override readonly brand: string = 'BudgetUnavailableError';

  constructor(init: SyncGuardErrorInit<FaultCode>) {
    const passes = init.code === 'ServiceUnavailable' || init.code === 'NetworkTimeout';
    super({ ...init, context: { ...(passes ? { retryAfter: FAULT_RETRY_SECS } : {}), ...init.context } });
  }

  static from(error: unknown): SyncGuardError {
    if (error instanceof BudgetInputError || error instanceof BudgetUnavailableError) return error;
    const known = error instanceof SyncGuardError ? error : undefined;
    const unavailable = new BudgetUnavailableError({
      code: (known?.code as FaultCode | undefined) ?? 'Internal',
      message: known?.summary ?? 'A budget operation failed in a way that SyncGuard does not know.',
      hint: known?.hint,
      cause: known?.cause ?? error,
      context: known?.context,
    });
    return passOwed(error, unavailable);
  }
}

/**
 * There is no room: thrown by `run()` and `@WithBudget`. At the HTTP edge 429 with Retry-After where a window
 * will reopen (`retryAtMs`), or soon where only calls that are still running stand in the way; else 402.
 */
export class BudgetExceededError extends SyncGuardError<'BudgetExceeded'> {
  static override readonly brand: string = 'BudgetExceededError';

  readonly violations: readonly Violation[];
  readonly retryAtMs: number | null;

  constructor({ violations, retryAtMs, retryAfterMs }: Exceeded) {
    super({
      code: 'BudgetExceeded',
      message: `The budget has no room for this request: ${violations.map(nameOf).join(', ')}.`,
      context: {
        ...retryAfter(violations, retryAfterMs),
        violations: violations.map(toFacts),
      },
    });
    this.violations = violations;
    this.retryAtMs = retryAtMs;
  }
}

/** Holds come back when their calls end, at the latest by their TTL: nobody should wait a month for that. */
const HOLD_RETRY_SECS = 1;

function retryAfter(violations: readonly Violation[], windowMs: number | null): { retryAfter?: number } {
  if (violations.every(isHeldOnly)) return { retryAfter: HOLD_RETRY_SECS };
  return windowMs === null ? {} : { retryAfter: inSecs(windowMs) };
}

const inSecs = (ms: number): number => Math.max(1, Math.ceil(ms / 1000));

/** Whether there is room as soon as holds come back. (`available` is 0 also where more than all is spent.) */
function isHeldOnly({ limit, committed, reserved, available, requested }: Violation): boolean {
  if (limit === 'unlimited' || available === 'unlimited') return false;
  const [free, wanted] = [BigInt(available), BigInt(requested)];
  return BigInt(limit) - BigInt(committed) >= wanted || (free > 0n && free + BigInt(reserved) >= wanted);
}

const nameOf = ({ scope, period }: Violation): string =>
  `${typeOf(scope)} ${typeof period === 'object' && 'every' in period ? `per ${period.every}` : 'in all'}`;

const typeOf = (scope: string): string | undefined => scope.split(':', 1)[0];

/** What a caller may know of a violation, as JSON: which limit, and when it resets; of the scope only its type. */
const toFacts = ({
  scope,
  period,
  limit,
  reserved,
  available,
  requested,
  resetAtMs,
}: Violation): Record<string, unknown> => ({
  scope: typeOf(scope),
  period,
  limit: toJson(limit),
  reserved: toJson(reserved),
  available: toJson(available),
  requested: toJson(requested),
  resetAtMs,
});

const toJson = (amount: Amount | 'unlimited'): number | string =>
  typeof amount === 'number' ? amount : String(amount);

/**
 * The id's work was done before, or is being done (`reason: 'pending'`): the body did not run. Or its hold was settled
 * by somebody else while the body ran. Thrown by `run()` and `@WithBudget`; 409 at the HTTP edge, with Retry-After where
 * the id is pending.
 */
export class BudgetConflictError extends SyncGuardError<'BudgetConflict'> {
  static override readonly brand: string = 'BudgetConflictError';

  readonly reason: string;
  /** The operation that has the id; undefined when it is not known any more. */
  readonly record: BudgetRecord | undefined;
  /** With `pending`: when the hold ends if nobody extends it, by the clock that decides. Else null. */
  readonly retryAtMs: number | null;

  /** @param endsInMs - how long that is from now */
  constructor(reason: string, record: BudgetRecord | undefined, endsInMs?: number) {
    const isPending = endsInMs !== undefined && record !== undefined;
    super({
      code: 'BudgetConflict',
      ...(isPending ? RUNS_ELSEWHERE : hasAnotherStory(reason)),
      context: {
        reason,
        ...(isPending ? { retryAtMs: record.expiresAtMs, retryAfter: inSecs(endsInMs) } : {}),
      },
    });
    this.reason = reason;
    this.record = record;
    this.retryAtMs = isPending ? record.expiresAtMs : null;
  }
}

const RUNS_ELSEWHERE = {
  message: 'The work of this id is being done already.',
  hint: 'If its process has died, the id is free when its hold ends: see `retryAtMs`.',
};

const hasAnotherStory = (reason: string): { message: string; hint: string } => ({
  message: `The budget has another story of this operation: ${reason}.`,
  hint: 'Use a new id for each piece of work, or leave it out for a random one.',
});
