import { type FaultCode, faultOf, SyncGuardError } from '../core/errors.js';
import { leavingAs } from '../core/validate.js';

/** An operation of a counter failed. `FaultCode` tells why. If Redis did not answer, the operation may not have been done. */
export class CounterError extends SyncGuardError<FaultCode> {
  static override readonly brand: string = 'CounterError';

  /** Returns the fault as a CounterError, with its code, hint and cause. */
  static from(error: unknown): CounterError {
    if (error instanceof CounterError) return error;
    return new CounterError(faultOf<FaultCode>(error, 'An operation of a counter'));
  }
}

export const { checked, attributed } = leavingAs(CounterError.from);
