import { pageOptions, type ResolvedPageOptions } from '../core/page.js';
import { byOf, note } from '../telemetry/by-hand.js';
import {
  type CallOptions,
  callOptions,
  describe,
  duration,
  invalidOption,
  leavingAs,
  normalizeKey,
  userKey,
} from '../core/validate.js';
import { invalidCall, LockError } from './lock.errors.js';
import { type LockOptions, type ResolvedLockCall, resolveLockCall } from './lock.options.js';
import type {
  AcquireOptions,
  ExtendOptions,
  ForceReleaseOptions,
  IsLockedOptions,
  LockKeyOption,
  LockListOptions,
  LookupOptions,
  ReleaseOptions,
} from './lock.types.js';

/** The largest number of keys that one call locks together. Each of them needs three keys of one script. */
export const MAX_KEYS = 32;

const LOCK_ID = /^[A-Za-z0-9_-]{22}$/;

export function validateLockId(lockId: unknown): string {
  if (typeof lockId === 'string' && LOCK_ID.test(lockId)) return lockId;
  throw invalidCall(
    `lockId must be 22 base64url characters, got ${describe(lockId)}.`,
    'Pass the lockId that acquire() returned, unchanged.',
  );
}

/** Runs the checks of a call. Turns every error of a check into a LockError with the code InvalidArgument. */
export const { checked, attributed } = leavingAs(LockError.from);

/** Checks the options of a call whose only option is `signal`. */
export const validateCall = (options: CallOptions): CallOptions => checked(() => callOptions(options, []));

export const validateKey = (key: unknown): string => checked(() => userKey(key));

export const validateTtl = (ttlMs: unknown): number => checked(() => duration('ttlMs', ttlMs));

/**
 * Returns the keys of a call, normalised and sorted, each once. All calls take their keys in this order, so calls never
 * wait for each other in a circle.
 */
export function validateKeys({
  key,
  keys,
}: Partial<Record<keyof LockKeyOption, unknown>>): readonly string[] {
  if (Array.isArray(key))
    throw invalidCall('key must be one key, got an array. Pass several keys as `keys`.');
  if (keys === undefined) return [validateKey(key)];
  if (key !== undefined) throw invalidCall('A call must have `key` or `keys`, not both.');
  if (!Array.isArray(keys)) throw invalidCall(`keys must be an array, got ${describe(keys)}.`);
  const all = [...new Set(keys.map(validateKey))].sort();
  if (all.length === 0 || all.length > MAX_KEYS)
    throw invalidCall(`keys must be 1 to ${MAX_KEYS} different keys, got ${all.length}.`);
  return all;
}

/** Checks a call of `lock()`. */
export const validateLock = (
  fn: unknown,
  options: LockOptions,
  usual: ResolvedLockCall,
): { keys: readonly string[]; call: ResolvedLockCall } =>
  checked(() => {
    if (typeof fn !== 'function') throw invalidOption('lock(fn, options): fn', 'a function', fn);
    // Unknown options are checked first. Otherwise a misspelt `keys` would be reported as a missing key.
    const call = resolveLockCall(options, usual);
    return { keys: validateKeys(options ?? {}), call };
  });

export function validateAcquire(options: AcquireOptions): { keys: readonly string[]; ttlMs: number } {
  const given = checked(() => callOptions<AcquireOptions>(options, ['key', 'keys', 'ttlMs', 'turn']));
  return { keys: validateKeys(given), ttlMs: validateTtl(given.ttlMs) };
}

export function validateRelease(options: ReleaseOptions): string {
  return validateLockId(checked(() => callOptions(options, ['lockId', 'held'])).lockId);
}

export function validateExtend(options: ExtendOptions): { lockId: string; ttlMs: number } {
  const { lockId, ttlMs } = checked(() => callOptions(options, ['lockId', 'ttlMs', 'held']));
  return { lockId: validateLockId(lockId), ttlMs: validateTtl(ttlMs) };
}

export function validateIsLocked(options: IsLockedOptions): string {
  return validateKey(checked(() => callOptions(options, ['key'])).key);
}

export function validateList(options: LockListOptions = {}): ResolvedPageOptions & { prefix: string } {
  return checked(() => {
    const page = pageOptions(options, ['prefix']);
    const { prefix = '' } = options;
    return { ...page, prefix: prefix === '' ? '' : normalizeKey(prefix, 'prefix') };
  });
}

const FENCE = /^\d{15}$/;

export function validateFence(fence: unknown, hint: string): string {
  if (typeof fence === 'string' && FENCE.test(fence)) return fence;
  throw invalidCall(`fence must be 15 digits, got ${describe(fence)}.`, hint);
}

export function validateForceRelease(key: string, options: ForceReleaseOptions): string {
  return checked(() => {
    const { fence, reason, ...who } = callOptions<ForceReleaseOptions>(options, ['fence', 'reason', 'by']);
    validateFence(fence, 'Pass the fence of the lock that you have seen.');
    note('reason', reason);
    byOf(who);
    return userKey(key);
  });
}

export function validateLookup(options: LookupOptions): { key: string } | { lockId: string } {
  const { key, lockId } = checked(() => callOptions<LookupOptions>(options, ['key', 'lockId']));
  return lockId === undefined ? { key: validateKey(key) } : { lockId: validateLockId(lockId) };
}
