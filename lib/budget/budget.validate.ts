import { randomUUID } from 'node:crypto';
import { SyncGuardError } from '../core/errors.js';
import {
  describe,
  type CallOptions,
  callOptions,
  duration,
  integer,
  jsonOf,
  leavingAs,
  oneOf,
  userKey,
} from '../core/validate.js';
import type {
  ChargeRequest,
  CreditRequest,
  HoldRequest,
  ReserveMode,
  ReserveRequest,
  SetLimitRequest,
} from './budget.backend.js';
import { validatePeriod } from './budget.calendar.js';
import { BudgetInputError } from './budget.errors.js';
import { answerOf } from './budget.results.js';
import { LIFETIME_IDS_MS, MAX_AMOUNT } from './budget.bounds.js';
import type {
  Amount,
  BudgetRef,
  ChargeOptions,
  CreditOptions,
  Period,
  ReserveOptions,
  SetLimitOptions,
} from './budget.types.js';

export const MAX_SCOPES = 32;
export const MAX_META_BYTES = 1_024;
export const DEFAULT_ROOT = 'default';
export const DEFAULT_TTL_MS = 60_000;

/** Runs the checks of a call. Their errors leave as BudgetInputError. */
export const { checked } = leavingAs((error) =>
  error instanceof SyncGuardError && !(error instanceof BudgetInputError)
    ? new BudgetInputError(error.summary, { hint: error.hint, cause: error })
    : (error as Error),
);

/** Checks the options of a call. Missing options and misspelt names throw BudgetInputError. */
export const checkedOptions = <Options extends CallOptions>(
  options: Options,
  known: readonly Exclude<keyof Options & string, 'signal'>[],
): Options => checked(() => callOptions(options, known));

export function validateAmount(name: string, amount: unknown): Amount {
  if (Number.isSafeInteger(amount) && (amount as number) >= 0) return amount as number;
  throw new BudgetInputError(
    `${name} must be a whole number of your smallest unit from 0 to 2^53 - 1, got ${describe(amount)}.`,
    {
      hint:
        typeof amount === 'number' && amount > 0 && amount <= MAX_AMOUNT
          ? 'Count in the smallest unit, such as cents instead of euros, and round: Math.round(euros * 100).'
          : 'Count in the smallest unit, such as cents instead of euros.',
    },
  );
}

export const validateLimit = (name: string, limit: unknown): Amount | 'unlimited' =>
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

/** A request whose scopes have no limits yet. */
type Unlimited<Request> = Omit<Request, 'scopes'> & { readonly scopes: readonly string[] };

export function validateRef<Options extends CallOptions>(
  ref: BudgetRef,
  options: Options,
  known: readonly Exclude<keyof Options & string, 'signal'>[] = [],
): HoldRequest {
  const { signal } = checkedOptions(options, known);
  if (typeof ref !== 'object' || ref === null)
    throw new BudgetInputError(
      `ref must be a result of reserve or charge, or { root?, id }, got ${describe(ref)}.`,
    );
  const { root, id, generation } = ref;
  return {
    root: validateRoot(root),
    id: validateId(id),
    generation: generation === undefined ? 0 : validateCount('generation', generation, 2 ** 53 - 1),
    nonce: answerOf(ref)?.nonce ?? ANY_NONCE,
    signal,
  };
}

export const validateCallPeriod = (period: unknown): Period =>
  checked(() => validatePeriod('period', period));

export const validateIdTtl = (idTtlMs: unknown, usual: number): number =>
  idTtlMs === undefined ? usual : checked(() => integer('idTtlMs', idTtlMs, 1, LIFETIME_IDS_MS));

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

const validateName = (name: string, value: unknown): string => checked(() => userKey(value, name));

export const RESERVE_OPTIONS = ['root', 'scopes', 'amount', 'id', 'renew', 'ttlMs', 'meta'] as const;

export function validateReserve(
  { root, scopes, amount, id, ttlMs = DEFAULT_TTL_MS, meta, signal }: Omit<ReserveOptions, 'renew'>,
  mode: ReserveMode,
): Unlimited<ReserveRequest> {
  return {
    root: validateRoot(root),
    scopes: validateScopes(scopes),
    amount: validateAmount('amount', amount),
    id: id === undefined ? randomUUID() : validateId(id),
    ttlMs: validateTtl(ttlMs),
    meta: validateMeta(meta),
    mode,
    nonce: id === undefined ? ANY_NONCE : randomUUID(),
    signal,
  };
}

export function validateCharge(options: ChargeOptions, usualIdTtlMs: number): Unlimited<ChargeRequest> {
  const names = ['root', 'scopes', 'amount', 'id', 'mode', 'idTtlMs'] as const;
  const { root, scopes, amount, id, mode = 'enforce', idTtlMs, signal } = checkedOptions(options, names);
  return {
    root: validateRoot(root),
    scopes: validateScopes(scopes),
    amount: validateAmount('amount', amount),
    id: validateId(id),
    mode: validateOneOf('mode', mode, ['enforce', 'record']),
    idTtlMs: validateIdTtl(idTtlMs, usualIdTtlMs),
    signal,
  };
}

export function validateCredit(
  options: CreditOptions,
): Unlimited<Omit<CreditRequest, 'scope'>> & { readonly period: Period } {
  const names = ['root', 'scope', 'period', 'amount', 'id'] as const;
  const { root, scope, period, amount, id, signal } = checkedOptions(options, names);
  return {
    root: validateRoot(root),
    scopes: [validateScope('scope', scope)],
    period: validateCallPeriod(period),
    amount: validateAmount('amount', amount),
    id: validateId(id),
    signal,
  };
}

export function validateSetLimit(
  options: SetLimitOptions,
): Unlimited<Omit<SetLimitRequest, 'scope'>> & { readonly period: Period } {
  const names = ['root', 'scope', 'period', 'limit'] as const;
  const { root, scope, period, limit, signal } = checkedOptions(options, names);
  return {
    root: validateRoot(root),
    scopes: [validateScope('scope', scope)],
    period: validateCallPeriod(period),
    limit: limit === null ? null : validateLimit('limit', limit),
    signal,
  };
}

/** Stands for a missing nonce. A call with it finds a hold, whatever nonce the hold has. */
export const ANY_NONCE = '-';
