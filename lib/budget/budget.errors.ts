import { shownHash } from '../core/keys.js';
import { type FaultCode, faultOf, SyncGuardError, type SyncGuardErrorInit } from '../core/errors.js';
import { isHeldOnly, typeOf } from './budget.results.js';
import type { BudgetRecord, Exceeded, Violation } from './budget.types.js';

/**
 * The call is wrong: an amount of -1, an unknown time zone, a scope without a limit. Thrown before anything
 * is sent, unless only the backend can notice: it knows the limits that `setLimit` has set.
 */
export class BudgetInputError extends SyncGuardError<'InvalidArgument'> {
  static override readonly brand: string = 'BudgetInputError';

  constructor(message: string, init: { hint?: string | undefined; cause?: unknown } = {}) {
    super({ code: 'InvalidArgument', message, ...init });
  }
}

/** The connection may be back within a second. */
const FAULT_RETRY_SECS = 1;

/**
 * Redis cannot be reached, is too slow, or refuses the command, or the signal of the call has aborted
 * (`Aborted`). `code` says which. The error says nothing about the budget: the command may or may not have run,
 * and a limit may or may not have room. Repeating the call with its id is safe.
 *
 * Over HTTP it is 503 with Retry-After, or 500 where a key holds data of another program.
 */
export class BudgetUnavailableError extends SyncGuardError<FaultCode> {
  static override readonly brand: string = 'BudgetUnavailableError';

  constructor(init: SyncGuardErrorInit<FaultCode>) {
    const passes = init.code === 'ServiceUnavailable' || init.code === 'NetworkTimeout';
    super({ ...init, context: { ...(passes ? { retryAfter: FAULT_RETRY_SECS } : {}), ...init.context } });
  }

  /** Returns any fault as an error of budgets. */
  static from(error: unknown): SyncGuardError {
    if (error instanceof BudgetInputError || error instanceof BudgetUnavailableError) return error;
    return new BudgetUnavailableError(faultOf<FaultCode>(error, 'A budget operation'));
  }
}

/**
 * A limit has no room for the request. Thrown by `run()` and `@WithBudget()`.
 *
 * - `BudgetExceeded`: a budget has no room until a window ends or calls in flight settle. It is a 402 where waiting does not help: a
 *   lifetime limit, or more than a whole window's limit. To do: wait for `Retry-After`; for a 402 `credit`, or raise the limit.
 */
export class BudgetExceededError extends SyncGuardError<'BudgetExceeded'> {
  static override readonly brand: string = 'BudgetExceededError';

  /** The limits that have no room. */
  readonly violations: readonly Violation[];
  /**
   * When it is worth trying again: at the start of the next window, or in a second where only pending holds are in the
   * way, because they end with their calls. Null if waiting does not help.
   */
  readonly retryAtMs: number | null;

  constructor({ violations, retryAtMs, retryAfterMs }: Exceeded) {
    const isHeld = violations.every(isHeldOnly);
    const waitMs = isHeld ? HOLD_RETRY_MS : retryAfterMs;
    super({
      code: 'BudgetExceeded',
      message: `The request exceeds the budget: ${violations.map(nameOf).join(', ')}.`,
      context: {
        ...(waitMs === null ? {} : { retryAfter: inSecs(waitMs) }),
        violations: violations.map(toFacts),
      },
    });
    this.violations = violations;
    // The clock of the backend shows in the result only where a window ends.
    const nowMs = retryAtMs === null || retryAfterMs === null ? Date.now() : retryAtMs - retryAfterMs;
    this.retryAtMs = isHeld ? nowMs + HOLD_RETRY_MS : retryAtMs;
  }
}

const HOLD_RETRY_MS = 1_000;

const inSecs = (ms: number): number => Math.max(1, Math.ceil(ms / 1000));

const nameOf = ({ scope, period }: Violation): string => {
  if (period === 'lifetime') return `${typeOf(scope)} in all`;
  return `${typeOf(scope)} per ${'every' in period ? period.every : `${period.windowMs / 1_000} s`}`;
};

/** Returns what clients see of a violation, as JSON: not the id of the scope, and not the committed amount. */
const toFacts = ({ committed: _, ...facts }: Violation) => ({ ...facts, scope: typeOf(facts.scope) });

/**
 * The work of an id is not done twice. Thrown by `run()` and `@WithBudget()`.
 *
 * - `BudgetConflict`: the work of this id was done before, or is being done now (`reason` is `pending`, with `Retry-After`), and the
 *   body has not run. Or it has run, and another call had settled its hold: the message says so. To do: use a new id for each
 *   piece of work, and do not settle the id of a run elsewhere.
 */
export class BudgetConflictError extends SyncGuardError<'BudgetConflict'> {
  static override readonly brand: string = 'BudgetConflictError';

  /** Why the id was refused. */
  readonly reason: string;
  /** The operation that has the id. Undefined if it is no longer known. */
  readonly record: BudgetRecord | undefined;
  /**
   * The time at which the pending hold ends unless it is extended, by the clock of the backend. Null if
   * the reason is not `pending`.
   */
  readonly retryAtMs: number | null;

  /** `endsInMs` is the time until the pending hold ends, and undefined if no hold is pending. */
  constructor(
    reason: string,
    record: BudgetRecord | undefined,
    { endsInMs, bodyHasRun = false }: { endsInMs?: number | undefined; bodyHasRun?: boolean } = {},
  ) {
    const isPending = endsInMs !== undefined && record !== undefined;
    super({
      code: 'BudgetConflict',
      ...(isPending ? ALREADY_RUNNING : bodyHasRun ? holdWasSettled(reason) : idWasUsed(reason)),
      context: {
        reason,
        ...(record ? { idHash: shownHash(record.id) } : {}),
        ...(isPending ? { retryAtMs: record.expiresAtMs, retryAfter: inSecs(endsInMs) } : {}),
      },
    });
    this.reason = reason;
    this.record = record;
    this.retryAtMs = isPending ? record.expiresAtMs : null;
  }
}

const ALREADY_RUNNING = {
  message: 'The work of this id is already being done.',
  hint: 'If its process has died, the id is free when its hold ends, at `retryAtMs`.',
};

const idWasUsed = (reason: string): { message: string; hint: string } => ({
  message: `The id of this operation was used before (${reason}).`,
  hint: 'Use a new id for each piece of work, or leave out the id to get a random one.',
});

const holdWasSettled = (reason: string): { message: string; hint: string } => ({
  message: `The body has run, but its cost could not be counted, because another call had settled its hold (${reason}).`,
  hint: 'Do not settle the id of a run elsewhere. Where the cost must count, add it with `charge()` under a new id.',
});
