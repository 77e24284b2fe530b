import { shownHash } from '../core/keys.js';
import { type CallOptions, describe } from '../core/validate.js';
import type { LockBackend } from './lock.backend.js';
import { invalidCall, LockError } from './lock.errors.js';
import type {
  AcquireResult,
  ForceReleaseResult,
  ListedLock,
  LockInfo,
  LookupOptions,
  RawLockInfo,
} from './lock.types.js';
import { validateCall, validateKey, validateLockId, validateLookup } from './lock.validate.js';

/** Above WARN a fence is logged as a warning once. Above MAX no more locks are granted. Fences are compared as strings. */
export const FENCE_THRESHOLDS = { WARN: '090000000000000', MAX: '900000000000000' } as const;

const FENCE_DIGITS = 15;

/**
 * Returns a fence as it is stored and compared: with 15 digits, so that strings sort like numbers.
 *
 * @throws LockError InvalidArgument for a number that is negative, has a fraction or has more than 15 digits
 */
export function formatFence(fence: number | bigint): string {
  const whole = typeof fence === 'bigint' || Number.isSafeInteger(fence);
  if (whole && fence >= 0 && fence < 10 ** FENCE_DIGITS) return fence.toString().padStart(FENCE_DIGITS, '0');
  throw invalidCall(`A fence must be an integer from 0 to 999999999999999, got ${describe(fence)}.`);
}

/** The record of a held lock. In Redis it is stored as JSON (docs/wire-format.md), in memory as this object. */
export interface LockRecord extends Omit<RawLockInfo, 'keyHash' | 'lockIdHash'> {
  /** All keys of a grant of several keys. Only the record of the first key has this field, and the index names that record. */
  readonly keys?: readonly string[];
}

/** Copies each field by name, so that the unhashed key and id are left out. */
const toLockInfo = (record: LockRecord): LockInfo => ({
  keyHash: shownHash(record.key),
  lockIdHash: shownHash(record.lockId),
  expiresAtMs: record.expiresAtMs,
  acquiredAtMs: record.acquiredAtMs,
  fence: record.fence,
});

const toRawLockInfo = (record: LockRecord): RawLockInfo => ({
  ...toLockInfo(record),
  key: record.key,
  lockId: record.lockId,
});

/** Describes a lock for `list()`. */
export const listedOf = (
  { key, fence, acquiredAtMs, expiresAtMs }: LockRecord,
  waiting: number,
): ListedLock => ({
  ...{ key, fence, expiresAtMs, waiting },
  ...(Number.isFinite(acquiredAtMs) ? { acquiredAtMs } : {}),
});

/** Says that `forceRelease()` has ended nothing, and who holds the lock now. */
export const notReleased = (holder: LockRecord | null): ForceReleaseResult =>
  holder ? { released: false, fence: holder.fence } : { released: false };

/** A lock is found by one of its keys or by its id. */
export type KeyOrId = { readonly key: string } | { readonly lockId: string };

/** The part of the port that describes locks. It is the same in every backend that can find a record. */
export abstract class LockLookups {
  /** Returns the record of a live lock. */
  protected abstract find(wanted: KeyOrId, signal: AbortSignal | undefined): Promise<LockRecord | null>;

  async lookup(options: LookupOptions): Promise<LockInfo | null> {
    const record = await this.find(validateLookup(options), options.signal);
    return record && toLockInfo(record);
  }

  async getByKeyRaw(key: string, options: CallOptions = {}): Promise<RawLockInfo | null> {
    const record = await this.find({ key: validateKey(key) }, validateCall(options).signal);
    return record && toRawLockInfo(record);
  }

  async getByIdRaw(lockId: string, options: CallOptions = {}): Promise<RawLockInfo | null> {
    const record = await this.find({ lockId: validateLockId(lockId) }, validateCall(options).signal);
    return record && toRawLockInfo(record);
  }
}

/**
 * Asserts that an acquire was granted, so that TypeScript knows its `fence`. For code that works with any backend.
 *
 * @throws LockError AcquisitionTimeout when somebody else holds the lock.
 */
export function expectFence(result: AcquireResult): asserts result is Extract<AcquireResult, { ok: true }> {
  if (!result.ok)
    throw new LockError({
      code: 'AcquisitionTimeout',
      message: 'expectFence() got a result without a lock: somebody else holds it.',
      hint: 'Check `result.ok` first, or use `lock()`, which waits for the lock.',
    });
}

/** Returns whether the backend still has the lock with this id. The lock may be lost a moment later: fences guard against that. */
export const owns = async (backend: Pick<LockBackend, 'lookup'>, lockId: string): Promise<boolean> =>
  (await backend.lookup({ lockId })) !== null;
