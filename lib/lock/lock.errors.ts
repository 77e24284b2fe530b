import { hashKey } from '../keys.js';
import { passOwed } from '../owed.js';
import { type FaultCode, SyncGuardError, type SyncGuardErrorInit } from '../syncguard.errors.js';

/**
 * - `AcquisitionTimeout`: somebody else holds the lock, and went on holding it.
 * - `LockLost`: the lock ended before the body did; somebody else may be inside.
 * - `AlreadyHeld`: the body asked for the lock that it is running under.
 * - `ServiceUnavailable`, `NetworkTimeout`, `AuthFailed`: Redis is away, slow, or refuses us.
 * - `Aborted`: the caller's signal. `InvalidArgument`: the call is wrong. `Internal`: a fault of
 *   ours, or a fence counter at its end.
 */
export type LockErrorCode = FaultCode | 'AcquisitionTimeout' | 'LockLost' | 'AlreadyHeld';

/**
 * Thrown by lock operations. Contention that a caller asked about is a value (`{ ok: false }`), and throws nothing.
 *
 * @example
 * catch (error) {
 *   if (error instanceof LockError && error.code === 'AcquisitionTimeout') return 'somebody is at it';
 *   throw error;
 * }
 */
export class LockError extends SyncGuardError<LockErrorCode> {
  static override readonly brand: string = 'LockError';

  constructor(init: SyncGuardErrorInit<LockErrorCode>) {
    super(init);
  }

  /** The same fault as a LockError that says, hashed, which lock it was about. */
  static from(
    error: unknown,
    about: { keys?: readonly string[] | undefined; lockId?: string } = {},
  ): LockError {
    if (error instanceof LockError) return error;
    const known = error instanceof SyncGuardError ? error : undefined;
    const lockError = new LockError({
      code: (known?.code as LockErrorCode | undefined) ?? 'Internal',
      message:
        known?.summary ??
        'A lock operation failed with an error that SyncGuard does not know. It is the `cause`.',
      hint: known?.hint,
      cause: known ? known.cause : error,
      context: {
        ...known?.context,
        ...(about.keys === undefined ? {} : hashesOf(about.keys)),
        ...(about.lockId === undefined ? {} : { lockIdHash: hashKey(about.lockId) }),
      },
    });
    return passOwed(error, lockError);
  }
}

/** How an error names keys: hashed, as a label to find lines in a log by. */
export const hashesOf = (keys: readonly string[]): { keyHash: string } | { keyHashes: string[] } =>
  keys.length === 1 ? { keyHash: hashKey(keys[0] as string) } : { keyHashes: keys.map(hashKey) };
