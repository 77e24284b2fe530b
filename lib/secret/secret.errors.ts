import { type FaultCode, SyncGuardError, type SyncGuardErrorInit } from '../syncguard.errors.js';

/**
 * - `SecretConflict`: the id given to `create()` is taken, or was until a moment ago.
 * - `ServiceUnavailable`, `NetworkTimeout`, `AuthFailed`: Redis is away, slow, or refuses us.
 * - `Aborted`: the caller's signal. `InvalidArgument`: the call is wrong. `Internal`: a fault of ours.
 */
export type SecretErrorCode = FaultCode | 'SecretConflict';

/** What a secret operation throws. A secret that is not there (any more) is a value, not this. */
export class SecretError extends SyncGuardError<SecretErrorCode> {
  static override readonly brand: string = 'SecretError';

  constructor(init: SyncGuardErrorInit<SecretErrorCode>) {
    super(init);
  }

  /** The same fault as a SecretError. Ids are never in it. */
  static from(error: unknown): SecretError {
    if (error instanceof SecretError) return error;
    const known = error instanceof SyncGuardError ? error : undefined;
    return new SecretError({
      code: (known?.code as SecretErrorCode | undefined) ?? 'Internal',
      message: known?.summary ?? 'A secret operation failed in a way that SyncGuard does not know.',
      hint: known?.hint,
      cause: known ? known.cause : error,
      context: known?.context,
    });
  }
}
