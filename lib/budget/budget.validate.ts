import { describe, userKey } from '../core/keys.js';
import { SyncGuardError } from '../core/errors.js';
import { duration, integer, jsonOf, oneOf } from '../core/validate.js';
import { validatePeriod } from './budget.calendar.js';
import { BudgetInputError } from './budget.errors.js';
import { nonceOf } from './budget.id.js';
import type { BudgetRef, Period } from './budget.types.js';

/** The largest amount: 2^63 - 1. */
export const MAX_AMOUNT = 2n ** 63n - 1n;
export const MAX_SCOPES = 32;
export const MAX_META_BYTES = 1_024;
export const DEFAULT_ROOT = 'default';

/** Runs the checks of a call. Their errors leave as BudgetInputError. */
export function checked<T>(check: () => T): T {
  try {
    return check();
  } catch (error) {
    if (error instanceof BudgetInputError || !(error instanceof SyncGuardError)) throw error;
    throw new BudgetInputError(error.summary, { hint: error.hint, cause: error });
  }
}

/** Returns an amount as a bigint, the form that this feature computes with. */
export function validateAmount(name: string, amount: unknown): bigint {
  if (typeof amount === 'bigint' && amount >= 0n && amount <= MAX_AMOUNT) return amount;
  if (Number.isSafeInteger(amount) && (amount as number) >= 0) return BigInt(amount as number);
  throw new BudgetInputError(
    `${name} must be a whole number of minor units from 0 to 2^63 - 1 (above 2^53 - 1 as a bigint), got ${describe(amount)}.`,
    { hint: 'Count in the smallest unit, such as cents instead of euros.' },
  );
}

export const validateLimit = (name: string, limit: unknown): bigint | 'unlimited' =>
  limit === 'unlimited' ? limit : validateAmount(name, limit);

export function validateScope(name: string, scope: unknown): string {
  const valid = validateName(name, scope);

  if (/^[^:]+(:.+)?$/s.test(valid)) return valid;
  throw new BudgetInputError(`${name} must be "type" or "type:id", got ${describe(scope)}.`);
}

export function validateScopes(scopes: unknown): string[] {
  if (!Array.isArray(scopes) || scopes.length === 0 || scopes.length > MAX_SCOPES)
    throw new BudgetInputError(
      `scopes must be a list of 1 to ${MAX_SCOPES} scopes, got ${describe(scopes)}.`,
    );
  const valid = scopes.map((scope) => validateScope('a scope', scope));
  const twice = valid.findIndex((scope, index) => valid.indexOf(scope) < index);
  if (twice >= 0)
    throw new BudgetInputError(
      `scopes[${twice}] is the same scope as scopes[${valid.indexOf(valid[twice] as string)}].`,
      { hint: 'List each scope once: an amount is counted once in each.' },
    );
  return valid;
}

export const validateRoot = (root: unknown): string =>
  root === undefined ? DEFAULT_ROOT : validateName('root', root);

export const validateId = (id: unknown, name = 'id'): string => validateName(name, id);

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

/** Returns the cursor of a page: null, or an unsigned 64-bit integer from Redis. */
export function validateCursor(cursor: unknown): string | null {
  if (cursor === null) return cursor;
  if (typeof cursor === 'string' && /^\d{1,20}$/.test(cursor) && BigInt(cursor) < 2n ** 64n) return cursor;
  throw new BudgetInputError('cursor must be null or the cursor of the previous page.');
}

/** Returns a JSON value as text, or '' if there is none. */
export function validateMeta(meta: unknown): string {
  if (meta === undefined) return '';
  const json = jsonOf(meta);
  if (json !== undefined && Buffer.byteLength(json) <= MAX_META_BYTES) return json;
  throw new BudgetInputError(
    `meta must be a JSON value of at most ${MAX_META_BYTES} bytes, got ${describe(meta)}.`,
  );
}

function validateName(name: string, value: unknown): string {
  return checked(() => userKey(value, name));
}
