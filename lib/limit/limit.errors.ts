import { type FaultCode, SyncGuardError, type SyncGuardErrorInit } from '../syncguard.errors.js';
import type { DeniedDecision, TooManyAttemptsCode } from './limit.types.js';

/**
 * Somebody has to wait: what `limiter()` and the guard throw. At the HTTP edge it is a 429 with `Retry-After`.
 *
 * @example
 * catch (error) {
 *   if (error instanceof TooManyAttemptsError) return `Try again in ${error.retryAfterSecs} s`;
 *   throw error;
 * }
 */
export class TooManyAttemptsError extends SyncGuardError<TooManyAttemptsCode> {
  static override readonly brand: string = 'TooManyAttemptsError';

  /** Whole seconds, at least 1. */
  readonly retryAfterSecs: number;
  /** The answer behind it; not for the client, who learns no more than when to come back. */
  readonly decision: DeniedDecision;

  constructor(decision: DeniedDecision, code: TooManyAttemptsCode = 'TooManyAttempts') {
    const { retryAfterSecs } = decision;
    super({
      code,
      message: `Too many attempts. Try again in ${retryAfterSecs} ${retryAfterSecs === 1 ? 'second' : 'seconds'}.`,
      context: { retryAfter: retryAfterSecs },
    });
    this.retryAfterSecs = retryAfterSecs;
    this.decision = decision;
  }
}

/**
 * The limiter could not decide.
 *
 * - `ServiceUnavailable`: Redis does not answer and the policy is `onError: 'closed'`; `context.retryAfter` says
 *   in how many seconds to ask again. `NetworkTimeout`, `AuthFailed`: the same, of an operation by hand.
 * - `InvalidArgument`: the call is wrong. `Aborted`: the caller's signal. `Internal`: a reply that cannot be read.
 */
export class LimitError extends SyncGuardError<FaultCode> {
  static override readonly brand: string = 'LimitError';

  constructor(init: SyncGuardErrorInit<FaultCode>) {
    super(init);
  }

  /** The same fault as a LimitError. */
  static from(error: unknown): LimitError {
    if (error instanceof LimitError) return error;
    const known = error instanceof SyncGuardError ? error : undefined;
    return new LimitError({
      code: (known?.code as FaultCode | undefined) ?? 'Internal',
      message: known?.summary ?? 'A limiter operation failed in a way that SyncGuard does not know.',
      hint: known?.hint,
      cause: known ? known.cause : error,
      context: known?.context,
    });
  }
}
