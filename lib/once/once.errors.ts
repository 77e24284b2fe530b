import { type FaultCode, faultOf, SyncGuardError } from '../core/errors.js';
import { shownHash } from '../core/keys.js';

/**
 * Those of `FaultCode`, and:
 *
 * - `OnceInProgress`: a call with the same key runs. `Retry-After` is as long as that has run so far. To do: send it again, or set
 *   `waitMs`.
 * - `OncePayloadMismatch`: the key was used with another request. To do: a new key for each request.
 * - `OnceKeyMissing`, `OnceKeyInvalid`: the call has no key, or one that is not 1 to 255 visible characters. To do: send the header
 *   `Idempotency-Key`.
 * - `OnceNoCaller`: nobody is known whose key it is. To do: authenticate before, set `once.user`, or write out `scope: 'public'`.
 * - `OutcomeUnknown`: the process of an earlier call died, and `afterCrash` is `'refuse'`. To do: find out what it did, and call
 *   `settle()` or `forget()`.
 * - `ResultNotKept`: an earlier call is done, and its result could not be kept. To do: see the log line `ONCE_NOT_KEPT`.
 * - `OnceLost`: the call took longer than its lease, and another one has the key. To do: send it again.
 */
export type OnceErrorCode =
  | FaultCode
  | 'OnceInProgress'
  | 'OncePayloadMismatch'
  | 'OnceKeyMissing'
  | 'OnceKeyInvalid'
  | 'OnceNoCaller'
  | 'OutcomeUnknown'
  | 'ResultNotKept'
  | 'OnceLost';

/** Thrown by `OnceService` and `@Once()`. It never has the payload, the result or the key itself. */
export class OnceError extends SyncGuardError<OnceErrorCode> {
  static override readonly brand: string = 'OnceError';

  /** Returns the same fault as an OnceError. */
  static from(error: unknown): OnceError {
    if (error instanceof OnceError) return error;
    return new OnceError(faultOf<OnceErrorCode>(error, 'A call that is answered once'));
  }
}

/** What is said of a key that somebody else has, or that has no result to give. */
const SAID = {
  OnceInProgress: ['A call with the same key is running.', 'Send it again later, or set `waitMs`.'],
  OncePayloadMismatch: ['This key was used for another request.', 'Use a new key for each request.'],
  OutcomeUnknown: [
    'An earlier call with this key was cut off, and nobody knows what it has done.',
    'Find out, and call `OnceService.settle()` or `forget()`.',
  ],
  ResultNotKept: [
    'A call with this key is done, but its result was not kept.',
    'See the log line ONCE_NOT_KEPT of the first call.',
  ],
} as const;

export function refusal(code: keyof typeof SAID, key: string, more = {}): OnceError {
  const [message, hint] = SAID[code];
  return new OnceError({ code, message, hint, context: { keyHash: shownHash(key), ...more } });
}

/**
 * Who asks again waits as long as the call has run so far, at least a second. So a short call is answered soon, and a long one is
 * not asked for often. After the rest of its lease even a dead process has lost the key.
 */
export const inProgress = (key: string, remainingMs: number, ranForMs: number): OnceError =>
  refusal('OnceInProgress', key, {
    retryAfter: Math.max(1, Math.ceil(Math.min(remainingMs, ranForMs) / 1000)),
  });

export const lost = (key: string, why: string): OnceError =>
  new OnceError({
    code: 'OnceLost',
    message: `This call has lost its key: ${why}.`,
    hint: 'Another call may run. Watch `signal` in long bodies, and pass `fence` to what you write to.',
    context: { keyHash: shownHash(key), retryAfter: 1 },
  });

export const noCaller = (): OnceError =>
  new OnceError({
    code: 'OnceNoCaller',
    message: 'Nobody is known whose key this is.',
    hint: 'See the log line ONCE_NO_CALLER.',
  });

export const shuttingDown = (): OnceError =>
  new OnceError({ code: 'ServiceUnavailable', message: 'The app is shutting down, so no new call runs.' });

export const invalidCall = (message: string, hint?: string): OnceError =>
  new OnceError({ code: 'InvalidArgument', message, hint });
