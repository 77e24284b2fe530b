import { createHash, hash } from 'node:crypto';
import { describe, MAX_KEY_BYTES, normalizeKey } from '../keys.js';
import { SyncGuardConfigError } from '../syncguard.errors.js';

/** The longest Redis key that we build, in bytes, and what of it is kept for derived keys. */
export const EFFECTIVE_KEY_BUDGET_BYTES = 1000;
export const RESERVE_BYTES = 26;

/** How the name of a fence counter begins, after the prefix: the name of its lock's record follows. */
const FENCE = 'fence:';

/**
 * A Redis key out of a prefix and a user's key: `prefix:key` where that fits, else `prefix:` and 22 base64url
 * characters of its SHA-256. The key is normalised first (NFC), as the backends do it, so that the two spellings of
 * "é" are one key. The key of a fence counter is that of `fence:` and the record's key.
 *
 * @param key - 1 to 512 UTF-8 bytes after NFC; with `fence:` before it a key that this function made
 * @param limit - the longest key in UTF-8 bytes; 1000
 * @param reserve - bytes of `limit` that derived keys need; 26 (`:id:` and a lockId)
 * @throws SyncGuardError InvalidArgument: not a string, empty, too long, a lone surrogate
 * @example makeStorageKey('syncguard', 'order:1') // 'syncguard:order:1'
 */
export function makeStorageKey(
  prefix: string,
  key: string,
  limit: number = EFFECTIVE_KEY_BUDGET_BYTES,
  reserve: number = RESERVE_BYTES,
): string {
  const derived = typeof key === 'string' && key.startsWith(FENCE);
  return storageKey(
    prefix,
    normalizeKey(key, derived ? FENCE.length + limit : MAX_KEY_BYTES),
    limit,
    reserve,
  );
}

/** {@link makeStorageKey} for a key that was checked before. */
export function storageKey(
  prefix: string,
  key: string,
  limit: number = EFFECTIVE_KEY_BUDGET_BYTES,
  reserve: number = RESERVE_BYTES,
): string {
  const full = join(prefix, key);
  // A UTF-16 unit is at most three bytes: most keys fit without being counted.
  const fits = 3 * full.length + reserve <= limit || Buffer.byteLength(full) + reserve <= limit;
  return fits ? full : makeHashedKey(prefix, key);
}

/** The form of {@link makeStorageKey} for keys that are too long, or that would name a key of our own. */
export function makeHashedKey(prefix: string, key: string): string {
  return join(prefix, sha256(join(prefix, key)).subarray(0, 16).toString('base64url'));
}

function join(prefix: string, key: string): string {
  const trimmed = prefix.endsWith(':') ? prefix.replace(/:+$/, '') : prefix;
  return trimmed === '' ? key : `${trimmed}:${key}`;
}

/** `length` base64url characters that stand for a key in a Cluster hash tag. */
export const hashTag = (key: string, length: number): string =>
  hash('sha256', key, 'base64url').slice(0, length);

const sha256 = (text: string): Buffer => createHash('sha256').update(text).digest();

/**
 * Checks `keyPrefix`. `/`, `{` and `}` set our other keys and Cluster tags apart. A whole part `fence`, or `id` as the
 * last one, would let a record be mistaken for a fence counter or for an index.
 */
export function validateKeyPrefix(prefix: unknown, option = 'keyPrefix'): string {
  if (typeof prefix !== 'string' || prefix.replace(/:+$/, '') === '')
    throw new SyncGuardConfigError(`${option} must be a non-empty string, got ${describe(prefix)}.`);
  const trimmed = prefix.replace(/:+$/, '');
  if (!/^[\x21-\x7e]{1,128}$/.test(trimmed))
    throw new SyncGuardConfigError(`${option} must be 1 to 128 printable ASCII characters without spaces.`);
  if (/[/{}]/.test(trimmed))
    throw new SyncGuardConfigError(`${option} may not contain "/", "{" or "}", got "${prefix}".`);
  const parts = trimmed.split(':');
  if (parts.includes('fence') || parts.at(-1) === 'id')
    throw new SyncGuardConfigError(
      `${option} may not have a part "fence", or "id" as its last part, got "${prefix}".`,
      { hint: 'Lock records could then be mistaken for fence counters or the id index.' },
    );
  return trimmed;
}
