import { SyncGuardError } from './errors.js';

/** The longest key of a user, in UTF-8 bytes after NFC normalisation. */
export const MAX_KEY_BYTES = 512;

// Printable ASCII is already NFC and well formed, with one byte a character. Most keys need no further check.
const PLAIN_KEY = /^[\x20-\x7e]{1,512}$/;

/**
 * Returns a user's key as every backend stores it: in NFC, so that the two spellings of "é" are one key.
 *
 * @param name - the name of the argument, for the error
 * @throws SyncGuardError InvalidArgument when the key is not a string, is empty, has over 512 UTF-8 bytes or
 *   has a lone surrogate
 */
export function normalizeKey(key: unknown, name = 'key', maxBytes: number = MAX_KEY_BYTES): string {
  if (typeof key !== 'string') throw invalidKey(`${name} must be a string, got ${describe(key)}.`);
  if (PLAIN_KEY.test(key)) return key;
  if (key === '') throw invalidKey(`${name} must not be empty.`);
  if (!key.isWellFormed()) throw invalidKey(`${name} has a lone surrogate, which is half a character.`);
  const normalized = key.normalize('NFC');
  const bytes = Buffer.byteLength(normalized);
  if (bytes > maxBytes)
    throw invalidKey(
      `${name} must be at most ${maxBytes} UTF-8 bytes, got ${bytes}.`,
      'Hash a long identifier, and pass the hash instead.',
    );
  return normalized;
}

const MISSING_PART = /[:/](undefined|null|NaN|\[object \w+\])(?=[:/]|$)/;

/**
 * Returns the part of a key that stands for a missing value, such as the end of `order:${order.id}` where the order has
 * no id. Undefined if the key has no such part.
 */
export const missingPartOf = (key: string): string | undefined => MISSING_PART.exec(key)?.[1];

/**
 * Normalises a key of a call, and refuses one that was built from a missing value. Otherwise `order:undefined` would be
 * one lock, limit or budget for all calls without the value, apart from those of calls with a value.
 *
 * @throws SyncGuardError InvalidArgument, as {@link normalizeKey} and for a missing value
 */
export function userKey(key: unknown, name = 'key'): string {
  const normalized = normalizeKey(key, name);
  const missing = missingPartOf(normalized);
  if (missing === undefined) return normalized;
  throw invalidKey(
    `${name} has the part "${missing}", which stands for a missing value.`,
    'Check the value before you build a key or id from it. If the value may be exactly that text, encode or hash it.',
  );
}

/**
 * Returns a short label for a key or an id in logs and events: 24 hex digits. It does not hide the key: a short key can
 * be found by hashing guesses. Other programs compute the same label (docs/wire-format.md).
 *
 * @example hashKey('payment:123') // 'a422dabee27fcc7ad506f372'
 */
export function hashKey(value: string): string {
  const text = value.normalize('NFC');
  let h1 = 0;
  let h2 = 0;
  let h3 = 0;
  for (let i = 0; i < text.length; i++) {
    const unit = text.charCodeAt(i);
    h1 = (Math.imul(31, h1) + unit) >>> 0;
    h2 = (Math.imul(127, h2) + 3 * unit) >>> 0;
    h3 = (Math.imul(2047, h3) + 7 * unit) >>> 0;
  }
  return [h1, h2, h3].map((h) => h.toString(16).padStart(8, '0')).join('');
}

/** Describes a value for an error message. A string may be private, so only its length is shown. */
export function describe(value: unknown): string {
  if (value === null) return 'null';
  if (typeof value === 'string')
    return value === '' ? 'an empty string' : `a string of ${value.length} characters`;
  if (typeof value === 'number' || typeof value === 'boolean' || typeof value === 'bigint')
    return `${String(value)} (${typeof value})`;
  if (Array.isArray(value)) return `an array of ${value.length}`;
  return typeof value === 'undefined' ? 'undefined' : `a value of type ${typeof value}`;
}

function invalidKey(message: string, hint?: string): SyncGuardError {
  return new SyncGuardError({ code: 'InvalidArgument', message, hint });
}
