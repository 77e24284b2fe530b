import { type FaultCode, faultOf, SyncGuardError } from '../core/errors.js';

/**
 * - `SecretConflict`: the id passed to `create()` belongs to another secret, or to the tombstone of one.
 * - `ServiceUnavailable`, `NetworkTimeout`, `AuthFailed`: Redis cannot be reached, is too slow, or refuses the command.
 * - `Aborted`: the signal of the caller has aborted.
 * - `InvalidArgument`: the call is wrong. With a `cause` it comes from Redis, for example because a key holds data of
 *   another program.
 * - `Internal`: an error that SyncGuard does not know. It is the `cause`.
 */
export type SecretErrorCode = FaultCode | 'SecretConflict';

/** Thrown by operations on secrets. A secret that does not exist is a result and not an error. */
export class SecretError extends SyncGuardError<SecretErrorCode> {
  /** Tells the errors of this class from others in all copies of the package. */
  static override readonly brand: string = 'SecretError';

  /** Returns the same fault as a SecretError. The error never contains an id. */
  static from(error: unknown): SecretError {
    if (error instanceof SecretError) return error;
    return new SecretError(faultOf<SecretErrorCode>(error, 'An operation on a secret'));
  }
}

export const invalidArgument = (message: string, hint?: string): SecretError =>
  new SecretError({ code: 'InvalidArgument', message, hint });
