import { describe } from './keys.js';
import { SyncGuardConfigError } from './syncguard.errors.js';

/** The largest duration: more overflows JavaScript's timers, and turns exponential in Lua. */
export const MAX_DURATION_MS = 2 ** 31 - 1;

/** An error that names option, bound, value and type. */
export function invalidOption(
  name: string,
  bound: string,
  value: unknown,
  hint?: string,
): SyncGuardConfigError {
  return new SyncGuardConfigError(`${name} must be ${bound}, got ${show(value)}.`, hint ? { hint } : {});
}

export function integer(name: string, value: unknown, min = 0, max = MAX_DURATION_MS): number {
  if (Number.isSafeInteger(value) && (value as number) >= min && (value as number) <= max)
    return value as number;
  throw invalidOption(name, `an integer from ${min} to ${max}`, value);
}

/** A duration in ms: an integer of at least 1. */
export const duration = (name: string, value: unknown): number => integer(name, value, 1);

export function boolean(name: string, value: unknown): boolean {
  if (typeof value === 'boolean') return value;
  throw invalidOption(name, 'true or false', value);
}

export function oneOf<const T>(name: string, value: unknown, values: readonly T[]): T {
  if (values.includes(value as T)) return value as T;
  throw invalidOption(name, values.map((each) => JSON.stringify(each)).join(' or '), value);
}

/** A plain object with no other keys than the known ones: a misspelt option fails instead of doing nothing. */
export function knownOptions<Known extends string>(
  name: string,
  value: unknown,
  known: readonly Known[],
): Partial<Record<Known, unknown>> {
  if (value === undefined) return {};
  if (typeof value !== 'object' || value === null || Array.isArray(value))
    throw invalidOption(name, 'an object', value);
  for (const key of Object.keys(value))
    if (!known.includes(key as Known))
      throw new SyncGuardConfigError(`${name}.${key} is not an option.`, {
        hint: `There are: ${known.join(', ')}.`,
      });
  return value;
}

/** An AbortSignal by what it does: a polyfill's is one too. */
export function abortSignal(name: string, value: unknown): AbortSignal {
  if (typeof (value as AbortSignal | null)?.addEventListener === 'function') return value as AbortSignal;
  throw invalidOption(name, 'an AbortSignal', value);
}

export interface CallOptions {
  readonly signal?: AbortSignal | undefined;
}

/** The options of a call: an object, whose signal is one. */
export function callOptions<Options extends CallOptions>(options: Options): Options {
  if (typeof options !== 'object' || options === null) throw invalidOption('options', 'an object', options);
  if (options.signal !== undefined) abortSignal('signal', options.signal);
  return options;
}

/** A value as JSON; undefined if that cannot be. */
export function jsonOf(value: unknown): string | undefined {
  try {
    return JSON.stringify(value);
  } catch {
    return undefined;
  }
}

function show(value: unknown): string {
  return typeof value === 'string' && value.length > 0 && value.length <= 60
    ? `${JSON.stringify(value)} (string)`
    : describe(value);
}
