import { shownHash } from '../core/keys.js';
import { type FaultCode, faultOf, SyncGuardError } from '../core/errors.js';

/**
 * Those of `FaultCode`, and:
 *
 * - `AcquisitionTimeout`: somebody else held the lock for all of `timeoutMs`. To do: retry later, or wait longer.
 * - `Deadlock`: calls of this process that hold locks wait for each other in a circle, and this call would have closed it. To do:
 *   take all keys in one call with `keys`, or in the same order everywhere. The client may retry after `Retry-After`.
 * - `TooManyWaiting`: somebody else holds the lock, and as many calls of this process wait as `lock.maxWaiting` allows. To do: hold
 *   the lock for a shorter time, spread the work over more keys, or raise `lock.maxWaiting`. The client may retry after
 *   `Retry-After`.
 * - `LockLost`: the lock ended before the body did, so somebody else may have been inside. `context.reason` is `expired`,
 *   `max_hold`, `taken` (by another owner, or it was deleted), `revoked` (by hand: `forceRelease`), `idle` (nobody read its
 *   stream), `shutdown` or `released`. To do: let what you write to refuse a lower `fence`; raise `ttlMs` where bodies are paused for long.
 * - `AlreadyHeld`: a body asked for the lock that it runs under. To do: `reentrant: true`, or take the lock once.
 */
export type LockErrorCode =
  FaultCode | 'AcquisitionTimeout' | 'TooManyWaiting' | 'Deadlock' | 'LockLost' | 'AlreadyHeld';

/**
 * Thrown by the operations of locks. `acquire()` does not throw when somebody else holds the lock: it returns
 * `{ ok: false }`.
 *
 * @example
 * catch (error) {
 *   if (error instanceof LockError && error.code === 'AcquisitionTimeout') return 'busy';
 *   throw error;
 * }
 */
export class LockError extends SyncGuardError<LockErrorCode> {
  static override readonly brand: string = 'LockError';

  /** Returns the same fault as a LockError, with the hashed key or lockId in its context. */
  static from(
    error: unknown,
    about: { keys?: readonly string[] | undefined; lockId?: string } = {},
  ): LockError {
    if (error instanceof LockError) return error;
    const fault = faultOf<LockErrorCode>(error, 'A lock operation');
    return new LockError({
      ...fault,
      context: {
        ...fault.context,
        ...(about.keys === undefined ? {} : hashesOf(about.keys)),
        ...(about.lockId === undefined ? {} : { lockIdHash: shownHash(about.lockId) }),
      },
    });
  }
}

/** Returns the hashed keys of an error's context. The same key has the same hash in every log line. */
export const hashesOf = (keys: readonly string[]): { keyHash: string } | { keyHashes: string[] } =>
  keys.length === 1 ? { keyHash: shownHash(keys[0] as string) } : { keyHashes: keys.map(shownHash) };

/** Returns the error of a call with a wrong argument. */
export const invalidCall = (message: string, hint?: string): LockError =>
  new LockError({ code: 'InvalidArgument', message, hint });

/** The lock was not granted in time. `heldKeys` are the keys of the locks around the call. */
export function acquisitionTimeout(
  keys: readonly string[],
  { waitedMs, timeoutMs, remainingMs, heldKeys, cause }: Contention,
): LockError {
  const isHolder = heldKeys.length > 0;
  return new LockError({
    code: 'AcquisitionTimeout',
    message: `Somebody else holds the lock. The call has waited for ${Math.round(waitedMs)} ms.`,
    hint: isHolder
      ? 'This call holds other locks itself (`heldKeyHashes`), so two calls may be waiting for each other until one gives up. Take all keys in one call with `keys`, or take them in the same order everywhere.'
      : 'Try again later, or wait longer with `timeoutMs`.',
    cause,
    context: {
      ...hashesOf(keys),
      timeoutMs,
      ...(remainingMs === undefined ? {} : { retryAfter: Math.max(1, Math.ceil(remainingMs / 1000)) }),
      ...(isHolder ? { heldKeyHashes: heldKeys.map(shownHash) } : {}),
    },
  });
}

interface Contention {
  readonly waitedMs: number;
  readonly timeoutMs: number;
  readonly remainingMs: number | undefined;
  readonly heldKeys: readonly string[];
  readonly cause: unknown;
}

export const tooManyWaiting = (keys: readonly string[], cause?: unknown): LockError =>
  new LockError({
    code: 'TooManyWaiting',
    message: 'Somebody else holds the lock, and too many calls wait already.',
    hint: 'Calls come faster than they are served. Hold the lock for a shorter time, spread the work over more keys, or let more calls wait by `lock.maxWaiting`.',
    cause,
    context: hashesOf(keys),
  });

/** `heldKeys` are the keys of the locks around the call. */
export const deadlock = (keys: readonly string[], heldKeys: readonly string[]): LockError =>
  new LockError({
    code: 'Deadlock',
    message: 'Calls that hold locks wait for each other in a circle, which this call would close.',
    hint: 'Take all keys in one call with `keys`, or take them in the same order everywhere. This call lets go of its locks, so it may be tried again at once.',
    context: { ...hashesOf(keys), heldKeyHashes: heldKeys.map(shownHash), retryAfter: 1 },
  });

export const alreadyHeld = (keys: readonly string[]): LockError =>
  new LockError({
    code: 'AlreadyHeld',
    message: 'This code runs inside a lock() for the same key, so waiting for the key would never end.',
    hint: 'Take all keys once, in the outer call. Or pass `reentrant: true` in the inner call: it then runs under the outer lock, which must have all of its keys.',
    context: hashesOf(keys),
  });

export const grantedTooLate = (keys: readonly string[], ttlMs: number): LockError =>
  new LockError({
    code: 'NetworkTimeout',
    message: 'The lock was granted, but its TTL was over when the answer came.',
    hint: `Make \`ttlMs\` (${ttlMs}) many times as long as a round trip to Redis takes.`,
    context: hashesOf(keys),
  });

export const fenceOverflow = (keys: readonly string[], max: string): LockError =>
  new LockError({
    code: 'Internal',
    message: `The fence counter of this key is above ${max}: no more locks are granted for it.`,
    hint: 'Something other than SyncGuard has set it. Use another key: a counter that starts again would let old holders in.',
    context: hashesOf(keys),
  });

export const shuttingDown = (): LockError =>
  new LockError({
    code: 'ServiceUnavailable',
    message: 'The app is shutting down, so no new locks are granted.',
    hint: 'Try again on another instance of the app, or after the restart.',
  });
