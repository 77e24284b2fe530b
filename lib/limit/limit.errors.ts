import { type FaultCode, faultOf, SyncGuardError } from '../core/errors.js';
import type { DeniedDecision, TooManyAttemptsCode } from './limit.types.js';

/**
 * The call is denied. The client may try again after `retryAfterMs`. Thrown by `limiter()` and the guard. Over HTTP it is a
 * 429 with `Retry-After`.
 *
 * @example
 * catch (error) {
 *   if (error instanceof TooManyAttemptsError) return `Try again in ${error.retryAfterSecs} s`;
 *   throw error;
 * }
 */
export class TooManyAttemptsError extends SyncGuardError<TooManyAttemptsCode> {
  static override readonly brand: string = 'TooManyAttemptsError';

  /** `retryAfterMs` in whole seconds, rounded up. */
  readonly retryAfterSecs: number;
  /** At least 1. A call after exactly this time is let in. */
  readonly retryAfterMs: number;
  /** The whole decision. The client does not see it. It sees only when to try again. */
  readonly decision: DeniedDecision;

  constructor(decision: DeniedDecision, code: TooManyAttemptsCode = 'TooManyAttempts', message?: string) {
    // What stands in for the service in a test of the app may have seconds only.
    const { retryAfterSecs, retryAfterMs = retryAfterSecs * 1000 } = decision;
    super({
      code,
      message:
        message ??
        `Too many attempts. Try again in ${retryAfterSecs} ${retryAfterSecs === 1 ? 'second' : 'seconds'}.`,
      context: { retryAfter: retryAfterSecs, retryAtMs: Date.now() + retryAfterMs },
    });
    this.retryAfterSecs = retryAfterSecs;
    this.retryAfterMs = retryAfterMs;
    this.decision = decision;
  }
}

/** Returns the error for a call that a policy denies, with the policy's text if no function makes it. */
export const refusalBy = (
  { code, message }: { readonly code: TooManyAttemptsCode; readonly message: unknown },
  decision: DeniedDecision,
): TooManyAttemptsError =>
  new TooManyAttemptsError(decision, code, typeof message === 'string' ? message : undefined);

/**
 * The limiter could not decide, or an operation failed. `FaultCode` tells why. A decision fails with `ServiceUnavailable` where
 * Redis does not answer and the policy is `onError: 'closed'`: `context.retryAfter` holds the seconds after which to ask again.
 * `reset`, `block`, `unblock` and `forgive` may not have been done if Redis did not answer.
 */
export class LimitError extends SyncGuardError<FaultCode> {
  static override readonly brand: string = 'LimitError';

  /** Returns the fault as a LimitError, with its code, hint and cause. */
  static from(error: unknown): LimitError {
    if (error instanceof LimitError) return error;
    return new LimitError(faultOf<FaultCode>(error, 'An operation of the limiter'));
  }
}
