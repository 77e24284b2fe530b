import { randomUUID } from 'node:crypto';
import { pageOptions } from '../core/page.js';
import { type ByHand, byOf } from '../telemetry/by-hand.js';
import { SyncGuardError } from '../core/errors.js';
import {
  boolean,
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
import type { FinalizeRequest, HoldRequest, ReserveMode } from './budget.backend.js';
import { validatePeriod } from './budget.calendar.js';
import { BudgetInputError } from './budget.errors.js';
import { ANY_NONCE, LIFETIME_IDS_MS, MAX_AMOUNT, nonceOf } from './budget.results.js';
import type * as budget from './budget.types.js';

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

// The checks of one argument. They are called within `checked`, or by those who name the error themselves.

export function validateAmount(name: string, amount: unknown): budget.Amount {
  if (Number.isSafeInteger(amount) && (amount as number) >= 0) return amount as number;
  throw new BudgetInputError(
    `${name} must be a whole number of your smallest unit from 0 to 2^53 - 1, got ${describe(amount)}.`,
    {
      hint: 'Count in the smallest unit, such as cents instead of euros, and round: Math.round(euros * 100).',
    },
  );
}

export const validateLimit = (name: string, limit: unknown): budget.Amount | 'unlimited' =>
  limit === 'unlimited' ? limit : validateAmount(name, limit);

export function validateScope(name: string, scope: unknown): string {
  const valid = userKey(scope, name);
  if (/^[^:]+(:.+)?$/s.test(valid)) return valid;
  throw new BudgetInputError(`${name} must be "type" or "type:id", got ${describe(scope)}.`);
}

const validateIdTtl = (idTtlMs: unknown): number => integer('idTtlMs', idTtlMs, 1, LIFETIME_IDS_MS);

function scopesOf(scopes: unknown): string[] {
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

const rootOf = (root: unknown): string => (root === undefined ? DEFAULT_ROOT : userKey(root, 'root'));

function refOf(ref: budget.BudgetRef, signal: AbortSignal | undefined): HoldRequest {
  if (typeof ref !== 'object' || ref === null)
    throw new BudgetInputError(
      `ref must be a result of reserve or charge, or { root?, id }, got ${describe(ref)}.`,
    );
  const { root, id, generation } = ref;
  return {
    root: rootOf(root),
    id: userKey(id, 'id'),
    generation: generation === undefined ? 0 : integer('generation', generation, 1, MAX_AMOUNT),
    nonce: nonceOf(ref) ?? ANY_NONCE,
    signal,
  };
}

/** Returns the cursor of a page: null, or an unsigned 64-bit integer from Redis. */
function cursorOf(cursor: unknown): string | null {
  if (cursor === null) return cursor;
  if (typeof cursor === 'string' && /^\d{1,20}$/.test(cursor) && BigInt(cursor) < 2n ** 64n) return cursor;
  throw new BudgetInputError('cursor must be null or the cursor of the previous page.');
}

/** Returns a JSON value as text, or '' if there is none. */
function metaOf(meta: unknown): string {
  if (meta === undefined) return '';
  const json = jsonOf(meta);
  if (json !== undefined && Buffer.byteLength(json) <= MAX_META_BYTES) return json;
  throw new BudgetInputError(
    `meta must be a JSON value of at most ${MAX_META_BYTES} bytes, got ${describe(meta)}.`,
  );
}

// The checks of each call. `Object.assign` takes a tenth of the time of a spread.

const spendingOf = ({ root, scopes, amount, signal }: Omit<budget.ReserveOptions, 'id'>) => ({
  root: rootOf(root),
  scopes: scopesOf(scopes),
  amount: validateAmount('amount', amount),
  signal,
});

/** @param run - the mode of a run, whose options are checked already. Undefined: `renew` says. */
export const validateReserve = (options: budget.ReserveOptions, run?: ReserveMode) =>
  checked(() => {
    const known = ['root', 'scopes', 'amount', 'id', 'renew', 'ttlMs', 'meta'] as const;
    const { id, renew, ttlMs = DEFAULT_TTL_MS, meta } = run ? options : callOptions(options, known);
    const mode = run ?? (boolean('renew', renew ?? false) ? 'renew' : 'reserve');
    return Object.assign(spendingOf(options), {
      id: id === undefined ? randomUUID() : userKey(id, 'id'),
      mode,
      ttlMs: duration('ttlMs', ttlMs),
      meta: metaOf(meta),
      nonce: id === undefined ? ANY_NONCE : randomUUID(),
    });
  });

export const validateCharge = (options: budget.ChargeOptions, usualIdTtlMs: number) =>
  checked(() => {
    const given = callOptions(options, ['root', 'scopes', 'amount', 'id', 'mode', 'idTtlMs']);
    return Object.assign(spendingOf(given), {
      id: userKey(given.id, 'id'),
      mode: oneOf('mode', given.mode ?? 'enforce', ['enforce', 'record']),
      idTtlMs: validateIdTtl(given.idTtlMs ?? usualIdTtlMs),
    });
  });

/** Checks a call about an operation, and its other arguments by `others`. */
export const validateRef = <Others extends object>(
  ref: budget.BudgetRef,
  options: CallOptions,
  others = (): Others => ({}) as Others,
) => checked(() => Object.assign(refOf(ref, callOptions(options, []).signal), others()));

export const validateAbort = (ref: budget.BudgetRef, options: CallOptions & ByHand) =>
  checked(() => {
    const given = callOptions(options, ['by']);
    return { by: byOf(given), request: refOf(ref, given.signal) };
  });

export const validateFinalize = (
  ref: budget.BudgetRef,
  actual: budget.Amount,
  options: budget.FinalizeOptions,
  usualIdTtlMs: number,
): FinalizeRequest =>
  checked(() => {
    const { overage, late, idTtlMs, signal } = callOptions(options, ['overage', 'late', 'idTtlMs']);
    return Object.assign(refOf(ref, signal), {
      actual: validateAmount('actual', actual),
      overage: oneOf('overage', overage ?? 'record', ['record', 'cap', 'reject']),
      late: oneOf('late', late ?? 'record', ['record', 'if-available', 'reject']),
      idTtlMs: validateIdTtl(idTtlMs ?? usualIdTtlMs),
    });
  });

const scopeOf = ({ root, scope, signal }: Pick<budget.SetLimitOptions, 'root' | 'scope' | 'signal'>) => ({
  root: rootOf(root),
  scopes: [validateScope('scope', scope)],
  signal,
});

export const validateCredit = (options: budget.CreditOptions) =>
  checked(() => {
    const given = callOptions(options, ['root', 'scope', 'period', 'amount', 'id', 'by']);
    return Object.assign(scopeOf(given), {
      by: byOf(given),
      period: validatePeriod('period', given.period),
      amount: validateAmount('amount', given.amount),
      id: userKey(given.id, 'id'),
    });
  });

export const validateSetLimit = (options: budget.SetLimitOptions) =>
  checked(() => {
    const given = callOptions(options, ['root', 'scope', 'period', 'limit', 'by']);
    return Object.assign(scopeOf(given), {
      by: byOf(given),
      period: validatePeriod('period', given.period),
      limit: given.limit === null ? null : validateLimit('limit', given.limit),
    });
  });

export const validateBalance = (options: Pick<budget.SetLimitOptions, 'root' | 'scope' | 'signal'>) =>
  checked(() => scopeOf(callOptions(options, ['root', 'scope'])));

export const validateList = (options: budget.BudgetListOptions) =>
  checked(() => {
    const given = callOptions(options, ['root', 'state', 'scope', 'cursor', 'limit']);
    const { root, state, scope, cursor = null, limit = 100, signal } = given;
    return {
      state: state && oneOf('state', state, ['pending', 'finalized', 'aborted', 'expired']),
      scope: scope === undefined ? undefined : validateScope('scope', scope),
      page: {
        root: rootOf(root),
        cursor: cursorOf(cursor),
        limit: integer('limit', limit, 1, 1_000),
        signal,
      },
    };
  });

export const validateBalances = (options: budget.BalancesOptions) =>
  checked(() => {
    const page = pageOptions(options, ['root', 'type']);
    const { root, type } = options;
    return { root: rootOf(root), type: type === undefined ? type : validateScope('type', type), page };
  });

export const validateReap = (options: budget.ReapOptions) =>
  checked(() => {
    const { root, max = 1_000, signal } = callOptions(options, ['root', 'max']);
    return { root: rootOf(root), max: integer('max', max, 1, 100_000), signal };
  });

export const validateVerify = (root: string | undefined, options: budget.VerifyOptions) =>
  checked(() => {
    const { repair = false, signal } = callOptions(options, ['repair']);
    return { root: rootOf(root), repair: boolean('repair', repair), signal };
  });
