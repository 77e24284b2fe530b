import { type FaultCode, SyncGuardError, type SyncGuardErrorInit } from '../core/errors.js';

/**
 * An operation of a counter failed.
 *
 * - `ServiceUnavailable`, `NetworkTimeout` or `AuthFailed`: Redis did not answer or refused the client, so the operation may
 *   not have been done.
 * - `InvalidArgument`: an argument of the call is wrong. With a `cause` it comes from Redis, for example because the
 *   key holds data of another program.
 * - `Aborted`: the caller's `signal` was aborted.
 * - `Internal`: an error that SyncGuard does not know, or a reply of Redis that cannot be read.
 */
export class CounterError extends SyncGuardError<FaultCode> {
  static override readonly brand: string = 'CounterError';

  constructor(init: SyncGuardErrorInit<FaultCode>) {
    super(init);
  }

  /** Returns the fault as a CounterError, with its code, hint and cause. */
  static from(error: unknown): CounterError {
    if (error instanceof CounterError) return error;
    const known = error instanceof SyncGuardError ? error : undefined;
    return new CounterError({
      code: (known?.code as FaultCode | undefined) ?? 'Internal',
      message:
        known?.summary ??
        'An operation of a counter failed with an error that SyncGuard does not know. It is the `cause`.',
      hint: known?.hint,
      cause: known ? known.cause : error,
      context: known?.context,
    });
  }
}
