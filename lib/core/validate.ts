import { SyncGuardConfigError, SyncGuardError, type SyncGuardErrorInit } from './errors.js';
import { safely } from './foreign-values.js';

/** The longest duration. Longer ones overflow JavaScript's timers, and Lua prints them with an exponent. */
export const MAX_DURATION_MS = 2 ** 31 - 1;

/** Describes a value for an error message. A string may be private, so only its length is shown. */
export function describe(value: unknown): string {
  if (value === null || value === undefined) return String(value);
  if (typeof value === 'string')
    return value === '' ? 'an empty string' : `a string of ${value.length} characters`;
  if (typeof value === 'number' || typeof value === 'boolean' || typeof value === 'bigint')
    return `${value} (${typeof value})`;
  return Array.isArray(value) ? `an array of ${value.length}` : `a value of type ${typeof value}`;
}

/** Describes a value that is private: by its type and its size only. */
export const describePrivate = (value: unknown): string =>
  typeof value === 'number' || typeof value === 'boolean' || typeof value === 'bigint'
    ? `a ${typeof value}`
    : describe(value);

/** Errors that quote a value, with what they say without it. */
const unquoted = new WeakMap<Error, SyncGuardError>();

/** Returns what `say` makes of the description of a value, for {@link withoutValue}, too. */
function quoting(
  value: unknown,
  describeIt: (value: unknown) => string,
  say: (described: string) => SyncGuardError,
): SyncGuardError {
  const error = say(describeIt(value));
  unquoted.set(error, say(describePrivate(value)));
  return error;
}

/** Returns the error of a check in words that do not quote the value, for features whose arguments are private. */
export const withoutValue = (error: unknown): unknown => unquoted.get(error as Error) ?? error;

/** Returns an error that names the option, its bound, the value and the value's type. A short string is shown. */
export const invalidOption = (name: string, bound: string, value: unknown, hint?: string): SyncGuardError =>
  quoting(
    value,
    describeShort,
    (described) => new SyncGuardConfigError(`${name} must be ${bound}, got ${described}.`, { hint }),
  );

function describeShort(value: unknown): string {
  const isShort = typeof value === 'string' && value.length > 0 && value.length <= 60;
  return isShort ? `${JSON.stringify(value)} (string)` : describe(value);
}

export function integer(name: string, value: unknown, min = 0, max = MAX_DURATION_MS): number {
  if (Number.isSafeInteger(value) && (value as number) >= min && (value as number) <= max)
    return value as number;
  throw invalidOption(name, `an integer from ${min} to ${max}`, value);
}

/** Returns a duration in ms: an integer of at least 1. */
export const duration = (name: string, value: unknown): number => integer(name, value, 1);

export const boolean = (name: string, value: unknown): boolean => oneOf(name, value, [true, false]);

export function oneOf<const T>(name: string, value: unknown, values: readonly T[]): T {
  if (values.includes(value as T)) return value as T;
  throw invalidOption(name, values.map((each) => JSON.stringify(each)).join(' or '), value);
}

/**
 * Returns the object if all its keys are known. Throws otherwise, because a misspelt option would silently do nothing.
 *
 * @param remedy - what to do about the unknown key. Default: choose one of the known ones, which are listed.
 */
export function knownOptions<Known extends string>(
  name: string,
  value: unknown,
  known: readonly Known[],
  remedy?: (key: string) => string,
): Partial<Record<Known, unknown>> {
  if (value === undefined) return {};
  if (typeof value !== 'object' || value === null || Array.isArray(value))
    throw invalidOption(name, 'an object', value);
  for (const key of Object.keys(value))
    if (!known.includes(key as Known)) throw unknownOption(name, key, known, remedy);
  return value;
}

/** Cuts the unknown name to 60 characters, because options that were spread from a request may have any name. */
function unknownOption(
  name: string,
  key: string,
  known: readonly string[],
  remedy = (_key: string): string =>
    known.length === 0 ? 'The call has no options.' : `The options are: ${known.join(', ')}.`,
): SyncGuardConfigError {
  const near = nearest(key.slice(0, 60).toLowerCase(), known);
  return new SyncGuardConfigError(`${name}.${key.slice(0, 60)} is not an option.`, {
    hint: near ? `Did you mean ${near}? ${remedy(key)}` : remedy(key),
  });
}

/** Returns the name that was probably meant: few letters differ, or one of the two is part of the other. */
function nearest(given: string, known: readonly string[]): string | undefined {
  const isPart = (name: string): boolean =>
    given.length > 2 && (name.includes(given) || given.includes(name));
  return known
    .map((name) => ({ name, letters: lettersApart(given, name.toLowerCase()) }))
    .sort((a, b) => a.letters - b.letters)
    .find(({ name, letters }) => letters <= given.length / 3 || isPart(name.toLowerCase()))?.name;
}

/** Returns how many letters one of the two has more than the other. Swapped ones, as in `hots`, count for nothing. */
function lettersApart(a: string, b: string): number {
  let others = b;
  for (const letter of a) others = others.replace(letter, '');
  const shared = b.length - others.length;
  return Math.max(a.length, b.length) - shared;
}

/** The longest key of a user, in UTF-8 bytes after NFC normalisation. */
export const MAX_KEY_BYTES = 512;

// Printable ASCII is already NFC and well formed, with one byte a character. Most keys need no further check.
const PLAIN_KEY = /^[\x20-\x7e]{1,512}$/;

/**
 * Returns a user's key as every backend stores it: in NFC, so that the two spellings of "é" are one key.
 *
 * @throws SyncGuardError InvalidArgument when the key is not a string, is empty, has over 512 UTF-8 bytes or
 *   has a lone surrogate
 */
export function normalizeKey(key: unknown, name = 'key', maxBytes: number = MAX_KEY_BYTES): string {
  if (typeof key !== 'string')
    throw quoting(key, describe, (described) => invalidKey(`${name} must be a string, got ${described}.`));
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

/** Returns whether {@link userKey} takes a text, and leaves it as it is. */
export const isPlainKey = (key: string): boolean => PLAIN_KEY.test(key) && !MISSING_PART.test(key);

function invalidKey(message: string, hint?: string): SyncGuardError {
  return new SyncGuardError({ code: 'InvalidArgument', message, hint });
}

/** Returns an AbortSignal, recognised by its methods, so that a polyfill's signal is accepted. */
export function abortSignal(name: string, value: unknown): AbortSignal {
  if (typeof (value as AbortSignal | null)?.addEventListener === 'function') return value as AbortSignal;
  throw invalidOption(name, 'an AbortSignal', value);
}

/** Throws if the signal of a call is malformed or has aborted. A memory backend calls this first, as the script runner does. */
export function refuseAborted(
  signal: AbortSignal | undefined,
  FeatureError: new (init: SyncGuardErrorInit<'Aborted' | 'InvalidArgument'>) => Error,
): void {
  if (!signal) return;
  if (typeof signal.addEventListener !== 'function')
    throw new FeatureError({ code: 'InvalidArgument', message: 'signal must be an AbortSignal.' });
  const message = 'The call was aborted by its signal.';
  if (signal.aborted) throw new FeatureError({ code: 'Aborted', message, cause: signal.reason });
}

/** Options of a call that has no other options. */
export interface CallOptions {
  /**
   * Aborts the call, which then rejects with the code `Aborted`. If it has aborted before the call, nothing
   * is sent.
   */
  readonly signal?: AbortSignal | undefined;
}

/** Checks the options of a call: an object with the `known` names only, and a `signal` that is an AbortSignal. */
export function callOptions<Options extends CallOptions>(
  options: Options,
  known: readonly Exclude<keyof Options & string, 'signal'>[],
): Options {
  if (typeof options !== 'object' || options === null) throw invalidOption('options', 'an object', options);
  knownOptions<string>('options', options, [...known, 'signal']);
  if (options.signal !== undefined) abortSignal('signal', options.signal);
  return options;
}

/** Lets what goes wrong in the calls of a feature leave as its errors: in their checks, and in the answer of a backend. */
export const leavingAs = (toFeatureError: (error: unknown) => Error) => ({
  checked<T>(check: () => T): T {
    try {
      return check();
    } catch (error) {
      throw toFeatureError(error);
    }
  },
  attributed: <T>(answer: Promise<T>): Promise<T> =>
    answer.catch((error: unknown) => {
      throw toFeatureError(error);
    }),
});

/** Returns a value as JSON, or undefined if it cannot be written as JSON. */
export const jsonOf = (value: unknown): string | undefined => safely(() => JSON.stringify(value));
