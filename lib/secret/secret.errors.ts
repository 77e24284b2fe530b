import { type FaultCode, faultOf, SyncGuardError } from '../core/errors.js';

/**
 * Those of `FaultCode`, and:
 *
 * - `SecretConflict`: there is a secret with the id that was passed to `create()`, or its tombstone. To do: leave the id out.
 */
export type SecretErrorCode = FaultCode | 'SecretConflict';

/** Thrown by operations on secrets. A secret that does not exist is a result and not an error. */
export class SecretError extends SyncGuardError<SecretErrorCode> {
  static override readonly brand: string = 'SecretError';

  /** Returns the same fault as a SecretError. The error never contains an id. */
  static from(error: unknown): SecretError {
    if (error instanceof SecretError) return error;
    return new SecretError(faultOf<SecretErrorCode>(error, 'An operation on a secret'));
  }
}

export const invalidArgument = (message: string, hint?: string): SecretError =>
  new SecretError({ code: 'InvalidArgument', message, hint });
