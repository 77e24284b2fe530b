import { hash } from 'node:crypto';
import { describe, MAX_KEY_BYTES, normalizeKey } from '../core/validate.js';
import { SyncGuardConfigError } from '../core/errors.js';

/** The longest Redis key that SyncGuard builds, in bytes. Other programs use the same number (docs/wire-format.md). */
export const EFFECTIVE_KEY_BUDGET_BYTES = 1000;
/** How many bytes of it stay free for names that are built from the key. Other programs use the same number. */
export const RESERVE_BYTES = 26;

/** The beginning of the name of a fence counter, after the prefix. The name of the lock's record follows. */
const FENCE = 'fence:';

/**
 * Builds a Redis key from a prefix and a user's key: `prefix:key` where that fits, else `prefix:` and 22
 * base64url characters of its SHA-256. The key is normalised first (NFC), so that the two spellings of "é"
 * are one key. For the key of a fence counter pass `fence:` and the key of the record.
 *
 * @param key - 1 to 512 UTF-8 bytes after NFC, or `fence:` and a key that this function has built
 * @param limit - the longest Redis key, in UTF-8 bytes. Default: 1000.
 * @param reserve - how many bytes of `limit` stay free for derived keys. Default: 26 (`:id:` and a lock id).
 * @throws SyncGuardError InvalidArgument when the key is not a string, is empty, is too long or has a lone
 *   surrogate
 * @example makeStorageKey('syncguard', 'order:1') // 'syncguard:order:1'
 */
export function makeStorageKey(
  prefix: string,
  key: string,
  limit: number = EFFECTIVE_KEY_BUDGET_BYTES,
  reserve: number = RESERVE_BYTES,
): string {
  const isDerived = typeof key === 'string' && key.startsWith(FENCE);
  const normalized = normalizeKey(key, 'key', isDerived ? FENCE.length + limit : MAX_KEY_BYTES);
  return storageKey(prefix, normalized, limit, reserve);
}

/** Does the same as {@link makeStorageKey} for a key that was checked before. */
export function storageKey(
  prefix: string,
  key: string,
  limit = EFFECTIVE_KEY_BUDGET_BYTES,
  reserve = RESERVE_BYTES,
): string {
  const full = join(prefix, key);
  return Buffer.byteLength(full) + reserve <= limit ? full : makeHashedKey(prefix, key);
}

/** Builds the hashed form of {@link makeStorageKey}, for keys that are too long or that would name an internal key. */
export function makeHashedKey(prefix: string, key: string): string {
  const digest = hash('sha256', join(prefix, key), 'buffer');
  return join(prefix, digest.subarray(0, 16).toString('base64url'));
}

function join(prefix: string, key: string): string {
  const trimmed = prefix.endsWith(':') ? prefix.replace(/:+$/, '') : prefix;
  return trimmed === '' ? key : `${trimmed}:${key}`;
}

/** Returns `length` base64url characters that represent a key in a Cluster hash tag. */
export const hashTag = (key: string, length: number): string =>
  hash('sha256', key, 'base64url').slice(0, length);

/**
 * Checks `keyPrefix`. `/`, `{` and `}` are refused because they separate our other keys and Cluster tags. A
 * part `fence`, or `id` as the last part, is refused because the record of a lock could then have the name of a fence
 * counter or of an index.
 */
export function validateKeyPrefix(prefix: unknown): string {
  if (typeof prefix !== 'string' || prefix.replace(/:+$/, '') === '')
    throw new SyncGuardConfigError(`keyPrefix must be a non-empty string, got ${describe(prefix)}.`);
  const trimmed = prefix.replace(/:+$/, '');
  if (!/^[\x21-\x7e]{1,128}$/.test(trimmed))
    throw new SyncGuardConfigError(`keyPrefix must be 1 to 128 printable ASCII characters without spaces.`);
  if (/[/{}]/.test(trimmed))
    throw new SyncGuardConfigError(`keyPrefix may not contain "/", "{" or "}", got "${prefix}".`);
  const parts = trimmed.split(':');
  if (parts.includes('fence') || parts.at(-1) === 'id')
    throw new SyncGuardConfigError(
      `keyPrefix may not have a part "fence", or "id" as its last part, got "${prefix}".`,
      { hint: 'Lock records could then be mistaken for fence counters or the id index.' },
    );
  return trimmed;
}
