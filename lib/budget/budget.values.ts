import { randomUUID } from 'node:crypto';
import { describe, normalizeKey } from '../keys.js';
import { SyncGuardError } from '../syncguard.errors.js';
import { duration, integer, jsonOf, oneOf } from '../validate.js';
import { validatePeriod } from './budget.calendar.js';
import { BudgetInputError } from './budget.errors.js';
import type { Amount, BudgetRef, Period } from './budget.types.js';

/** The largest amount: 2^63 - 1. */
export const MAX_AMOUNT = 2n ** 63n - 1n;
export const MAX_SCOPES = 32;
export const MAX_META_BYTES = 1_024;
export const DEFAULT_ROOT = 'default';

/** Runs the checks of a call; what they throw leaves as BudgetInputError. */
export function checked<T>(check: () => T): T {
  try {
    return check();
  } catch (error) {
    if (error instanceof BudgetInputError || !(error instanceof SyncGuardError)) throw error;
    throw new BudgetInputError(error.summary, { hint: error.hint, cause: error });
  }
}

/** An amount as all of this feature computes with it. */
export function validateAmount(name: string, amount: unknown): bigint {
  if (typeof amount === 'bigint' && amount >= 0n && amount <= MAX_AMOUNT) return amount;
  if (Number.isSafeInteger(amount) && (amount as number) >= 0) return BigInt(amount as number);
  throw new BudgetInputError(
    `${name} must be a whole number of minor units from 0 to 2^63 - 1 (above 2^53 - 1 as a bigint), got ${describe(amount)}.`,
    { hint: 'Count in the smallest unit: cents, not euros.' },
  );
}

export const validateLimit = (name: string, limit: unknown): bigint | 'unlimited' =>
  limit === 'unlimited' ? limit : validateAmount(name, limit);

/** `type` or `type:id`. */
/** What a missing value looks like in `user:${id}`: one budget for all who have none. */
const MISSING_ID = /^[^:]+:(undefined|null|NaN|\[object \w+\])$/;

export function validateScope(name: string, scope: unknown): string {
  const valid = named(name, scope);
  if (MISSING_ID.test(valid))
    throw new BudgetInputError(`${name} has no id: it ends in "${valid.slice(valid.indexOf(':') + 1)}".`, {
      hint: 'The value that it is made of is missing: check it before it becomes a scope.',
    });
  if (/^[^:]+(:.+)?$/s.test(valid)) return valid;
  throw new BudgetInputError(`${name} must be "type" or "type:id", got ${describe(scope)}.`);
}

export function validateScopes(scopes: unknown): string[] {
  if (!Array.isArray(scopes) || scopes.length === 0 || scopes.length > MAX_SCOPES)
    throw new BudgetInputError(
      `scopes must be a list of 1 to ${MAX_SCOPES} scopes, got ${describe(scopes)}.`,
    );
  const valid = scopes.map((scope) => validateScope('a scope', scope));
  if (new Set(valid).size < valid.length)
    throw new BudgetInputError('scopes must differ from each other: one names the same budget twice.');
  return valid;
}

export const validateRoot = (root: unknown): string =>
  root === undefined ? DEFAULT_ROOT : named('root', root);

export const validateId = (id: unknown, name = 'id'): string => named(name, id);

export interface ValidRef {
  readonly root: string;
  readonly id: string;
  /** 0: the newest. */
  readonly generation: number;
  readonly nonce: string;
}

export function validateRef(ref: BudgetRef): ValidRef {
  if (typeof ref !== 'object' || ref === null)
    throw new BudgetInputError(
      `ref must be a result of reserve or charge, or { root?, id }, got ${describe(ref)}.`,
    );
  const { root, id, generation } = ref;
  return {
    root: validateRoot(root),
    id: validateId(id),
    generation:
      generation === undefined ? 0 : checked(() => integer('generation', generation, 1, 2 ** 53 - 1)),
    nonce: nonceOf(ref),
  };
}

export const validateCallPeriod = (period: unknown): Period =>
  checked(() => validatePeriod('period', period));

export const validateTtl = (ttlMs: unknown): number => checked(() => duration('ttlMs', ttlMs));

export const validateCount = (name: string, value: unknown, max: number): number =>
  checked(() => integer(name, value, 1, max));

export const validateOneOf = <const T>(name: string, value: unknown, values: readonly T[]): T =>
  checked(() => oneOf(name, value, values));

export function validateFunction(name: string, value: unknown): void {
  if (typeof value !== 'function')
    throw new BudgetInputError(`${name} must be a function, got ${describe(value)}.`);
}

/** Of a page: null, or an unsigned integer of 64 bits, as Redis tells it. */
export function validateCursor(cursor: unknown): string | null {
  if (cursor === null) return cursor;
  if (typeof cursor === 'string' && /^\d{1,20}$/.test(cursor) && BigInt(cursor) < 2n ** 64n) return cursor;
  throw new BudgetInputError('cursor must be null or the cursor of the page before.');
}

/** A JSON value as its text; '' for none. */
export function validateMeta(meta: unknown): string {
  if (meta === undefined) return '';
  const json = jsonOf(meta);
  if (json !== undefined && Buffer.byteLength(json) <= MAX_META_BYTES) return json;
  throw new BudgetInputError(
    `meta must be a JSON value of at most ${MAX_META_BYTES} bytes, got ${describe(meta)}.`,
  );
}

function named(name: string, value: unknown): string {
  return checked(() => {
    try {
      return normalizeKey(value);
    } catch (error) {
      const message =
        error instanceof Error ? error.message.replace(/^Invalid key: the key/, name) : String(error);
      throw new BudgetInputError(message, { cause: error });
    }
  });
}

const NONCE = Symbol.for('syncguard:budget-nonce');

/** Stands for the nonce of any call. */
export const ANY_NONCE = '-';

/**
 * Notes in a result which call made its hold. An id that was forgotten begins at generation 1 again: by the nonce a step
 * that comes so late does not take the hold that is there now for its own.
 */
export function nameHold<Hold extends object>(hold: Hold, nonce: string): Hold {
  if (nonce !== ANY_NONCE) Object.defineProperty(hold, NONCE, { value: nonce });
  return hold;
}

export const nonceOf = (hold: object): string => (hold as { [NONCE]?: string })[NONCE] ?? ANY_NONCE;

/** A new id, from the CSPRNG. */
export const createId = (): string => randomUUID();

/**
 * Amounts as they leave: as bigint where the caller spoke bigint, else as number where that is exact. Walks the
 * result, so that no operation has to list its amounts; balances only when somebody looks at them.
 */
export function present<Result>(result: Result, asBigint: boolean): Result {
  if (asBigint || typeof result !== 'object' || result === null || Array.isArray(result))
    return (asBigint ? result : toNumbers(result)) as Result;
  const shown: Record<string, unknown> = {};
  for (const key in result) {
    if (key === 'balances') tellBalances(shown, () => toNumbers(result[key]));
    else shown[key] = toNumbers(result[key]);
  }
  return nameHold(shown, nonceOf(result)) as Result;
}

function toNumbers(value: unknown): unknown {
  if (typeof value === 'bigint') return fitting(value);
  if (typeof value !== 'object' || value === null) return value;
  if (Array.isArray(value)) return value.length === 0 ? value : value.map(toNumbers);
  const shown: Record<string, unknown> = {};
  for (const key in value) shown[key] = toNumbers((value as Record<string, unknown>)[key]);
  return shown;
}

const fitting = (value: bigint): Amount => (value <= Number.MAX_SAFE_INTEGER ? Number(value) : value);

const COMPUTE = Symbol.for('syncguard:budget-balances');

// One getter for all results: a getter each would give every result a hidden class of its own.
const BALANCES: PropertyDescriptor & ThisType<{ [COMPUTE](): unknown }> = {
  enumerable: true,
  configurable: true,
  get() {
    const value = this[COMPUTE]();
    Object.defineProperty(this, 'balances', { value, enumerable: true, configurable: true, writable: true });
    return value;
  },
};

/** Gives a result its `balances`: a property like any other, but worked out at the first look. */
export function tellBalances(result: object, compute: () => unknown): void {
  Object.defineProperty(result, COMPUTE, { value: compute });
  Object.defineProperty(result, 'balances', BALANCES);
}
