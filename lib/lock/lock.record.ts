import { randomFillSync } from 'node:crypto';
import { describe, hashKey } from '../keys.js';
import type { LockBackend } from './lock.backend.js';
import { LockError } from './lock.errors.js';
import type { AcquireResult, LockInfo, RawLockInfo } from './lock.types.js';

/** Fence counters: above WARN a warning, above MAX no more grants. Compared as strings. */
export const FENCE_THRESHOLDS = { WARN: '090000000000000', MAX: '900000000000000' } as const;

const FENCE_DIGITS = 15;
const LOCK_ID_BYTES = 16;

/**
 * A fence as it is stored and compared: 15 digits, so that string order is number order.
 *
 * @throws LockError InvalidArgument for a number that would break that order: negative, with a fraction, of 16 digits
 */
export function formatFence(fence: number | bigint): string {
  const whole = typeof fence === 'bigint' || Number.isSafeInteger(fence);
  if (whole && fence >= 0 && fence < 10 ** FENCE_DIGITS) return fence.toString().padStart(FENCE_DIGITS, '0');
  throw new LockError({
    code: 'InvalidArgument',
    message: `A fence must be an integer from 0 to 999999999999999, got ${describe(fence)}.`,
  });
}

// Random bytes are drawn 4 kB at a time: a system call for each id costs more than the id.
const pool = Buffer.allocUnsafeSlow(256 * LOCK_ID_BYTES);
let poolOffset = pool.length;

/** A new lock id: 16 bytes of the CSPRNG as 22 base64url characters. */
export function createLockId(): string {
  if (poolOffset === pool.length) {
    randomFillSync(pool);
    poolOffset = 0;
  }
  return pool.toString('base64url', poolOffset, (poolOffset += LOCK_ID_BYTES));
}

/** The record of a held lock, as JSON in Redis (docs/wire-format.md) and as it is in memory. */
export interface LockRecord {
  readonly lockId: string;
  readonly expiresAtMs: number;
  readonly acquiredAtMs: number;
  readonly key: string;
  readonly fence: string;
  /** All keys of a grant of several, in the record of the first: the index leads to that one. */
  readonly keys?: readonly string[];
}

/** Built field by field, so that nothing raw rides along. */
export const toLockInfo = (record: LockRecord): LockInfo => ({
  keyHash: hashKey(record.key),
  lockIdHash: hashKey(record.lockId),
  expiresAtMs: record.expiresAtMs,
  acquiredAtMs: record.acquiredAtMs,
  fence: record.fence,
});

export const toRawLockInfo = (record: LockRecord): RawLockInfo => ({
  ...toLockInfo(record),
  key: record.key,
  lockId: record.lockId,
});

/**
 * Asserts that an acquire was granted with a fence, for code that is generic over backends.
 *
 * @throws LockError AcquisitionTimeout when somebody else holds the lock.
 */
export function expectFence(result: AcquireResult): asserts result is Extract<AcquireResult, { ok: true }> {
  if (!result.ok)
    throw new LockError({
      code: 'AcquisitionTimeout',
      message: 'The lock is held by somebody else: there is no fence.',
    });
}

/** Whether this very lock is still held, by the backend's word. A moment later it may not be: fences are for that. */
export const owns = async (backend: Pick<LockBackend, 'lookup'>, lockId: string): Promise<boolean> =>
  (await backend.lookup({ lockId })) !== null;
