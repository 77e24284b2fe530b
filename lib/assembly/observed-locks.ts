import { BackendHandle, momentNow } from '../lock/lock.handle.js';
import { detailOf, type LockBackend } from '../lock/lock.backend.js';
import type {
  BackendCapabilities,
  HeldLock,
  LockInfo,
  LockTurn,
  ReleaseOptions,
  ReleaseResult,
} from '../lock/lock.types.js';
import { validateKeys } from '../lock/lock.validate.js';
import { type Descriptions, observe, refusalIn } from '../telemetry/observe.js';
import { createTelemetry } from '../telemetry/telemetry.js';
import { resolveTelemetryOptions, type TelemetryOptions } from '../telemetry/telemetry.options.js';
import type { Emit, Facts } from '../telemetry/telemetry.types.js';

/**
 * Returns a lock backend that reports every operation to a listener: one event each, also for faults, and also for the
 * handles that `acquire` returns. Nothing else changes.
 *
 * @throws SyncGuardConfigError when an option is malformed
 * @example
 * const locks = withTelemetry(createRedisBackend(redis), {
 *   onEvent: ({ type, result, reason, keyHash }) => console.log(type, result, reason, keyHash),
 * });
 */
export function withTelemetry<C extends BackendCapabilities>(
  backend: LockBackend<C>,
  options: TelemetryOptions,
): LockBackend<C> {
  const warn = (message: string): void => process.emitWarning(message, 'SyncGuardWarning');
  return observedLocks(backend, createTelemetry(resolveTelemetryOptions(options), warn));
}

/** Observes a lock backend. Its handles go through the observed backend, so that their calls are reported too. */
export function observedLocks<C extends BackendCapabilities>(
  backend: LockBackend<C>,
  emit: Emit,
): LockBackend<C> {
  const locks: LockBackend<C> = observe<LockBackend<C>>(backend, 'lock', LOCK, emit, {
    acquire: async (options) => {
      const sentAt = momentNow();
      const result = await backend.acquire(options);
      if (!result.ok) return result;
      if (result instanceof BackendHandle) return result.through(locks);
      // A backend of the user's own, or of another copy of the package, has handles of its own.
      const { lockId, fence, expiresAtMs } = result;
      const keys = validateKeys(options);
      return new BackendHandle(locks, { keys, lockId, fence, expiresAtMs, ttlMs: options.ttlMs, sentAt });
    },
  });
  return locks;
}

/** Returns the reason for an event. A lock of another owner counts as `not_found`, as in docs/wire-format.md. */
function lockReason(result: { ok: boolean } | undefined): string | undefined {
  if (!result || result.ok) return undefined;
  const reason = detailOf(result)?.reason ?? 'not_found';
  return reason === 'mismatch' ? 'not_found' : reason;
}

/** @param held - what the caller knows of a lock that it gives back */
const ofLockId = (
  result: ReleaseResult | undefined,
  options: ReleaseOptions | undefined,
  held?: HeldLock,
): Facts => ({
  keys: options?.held?.keys,
  lockId: options?.lockId,
  heldMs: held && performance.now() - held.sinceMs,
  reason: lockReason(result),
});

const waitedMs = (turn: LockTurn | undefined): number | undefined =>
  turn?.place === undefined ? undefined : performance.now() - turn.sinceMs;

const ofLookup = (found: LockInfo | null | undefined, key?: string, lockId?: string): Facts => ({
  type: 'lookup',
  key,
  lockId,
  reason: found === null ? 'not_found' : undefined,
});

// Callers outside TypeScript may leave out the options. The backend then rejects, and the event has the code of the
// error.
const LOCK: Descriptions<LockBackend> = {
  acquire: (result, options) => ({
    key: options?.key,
    keys: options?.keys,
    place: options?.turn?.place,
    waitedMs: waitedMs(options?.turn),
    lockId: result?.ok ? result.lockId : undefined,
    reason: refusalIn(result),
  }),
  release: (result, options) => ofLockId(result, options, options?.held),
  extend: (result, options) =>
    ofLockId(result, options, options?.held?.isGivenBack ? options.held : undefined),
  isLocked: (locked, options) => ({
    key: options?.key,
    reason: locked === false ? 'not_found' : undefined,
  }),
  lookup: (found, options) => ofLookup(found, options?.key, options?.lockId),
  getByKeyRaw: (found, key) => ofLookup(found, key),
  getByIdRaw: (found, lockId) => ofLookup(found, undefined, lockId),
};
