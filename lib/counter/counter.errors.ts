import { type FaultCode, faultOf, SyncGuardError } from '../core/errors.js';
import { leavingAs } from '../core/validate.js';

/**
 * An operation of a counter failed.
 *
 * - `ServiceUnavailable`, `NetworkTimeout` or `AuthFailed`: Redis did not answer or refused the client, so the
 *   operation may not have been done.
 * - `InvalidArgument`: an argument of the call is wrong. With a `cause` it comes from Redis, for example because the
 *   key holds data of another program.
 * - `Aborted`: the caller's `signal` was aborted.
 * - `Internal`: an error that SyncGuard does not know, or a reply of Redis that cannot be read.
 */
export class CounterError extends SyncGuardError<FaultCode> {
  /** Tells the errors of this class from others in all copies of the package. */
  static override readonly brand: string = 'CounterError';

  /** Returns the fault as a CounterError, with its code, hint and cause. */
  static from(error: unknown): CounterError {
    if (error instanceof CounterError) return error;
    return new CounterError(faultOf<FaultCode>(error, 'An operation of a counter'));
  }
}

export const { checked, attributed } = leavingAs(CounterError.from);
