import { SyncGuardConfigError, SyncGuardError } from '../core/errors.js';
import { integer, invalidOption, knownOptions, leavingAs } from '../core/validate.js';
import type { ConfiguredLimit, LimitedScope } from './budget.backend.js';
import { periodKey, validatePeriod } from './budget.calendar.js';
import { BudgetInputError } from './budget.errors.js';
import { typeOf } from './budget.results.js';
import type { BudgetLimit, Period } from './budget.types.js';
import { validateLimit, validateScope } from './budget.validate.js';

/**
 * A function that returns the limits of a scope, for limits in a store of your own. Called for each scope of
 * every `reserve`, `run`, `charge`, `credit` and `balance`, so the function should cache.
 */
export type BudgetLimitSource = (scope: {
  /** The tenant that owns the scope. */
  root: string;
  /** The part of the scope before the colon: `user` of `user:42`. */
  type: string;
  /** The part of the scope behind the colon. Undefined if there is none. */
  id?: string;
}) => readonly BudgetLimit[] | Promise<readonly BudgetLimit[]>;

/** By scope, and by `<type>:` those of all scopes of a type that have none of their own. */
type LimitsByScope = ReadonlyMap<string, readonly ConfiguredLimit[]>;

/** Returns a function that finds the configured limits of scopes: their own, and those of their types. */
export function limitsFinder(limits: readonly BudgetLimit[] | BudgetLimitSource) {
  if (typeof limits !== 'function') {
    const known = indexLimits(limits);
    return (_root: string, scopes: readonly string[]): LimitedScope[] =>
      scopes.map((scope) => ({ scope, limits: pick(known, scope) }));
  }
  const ask = async (root: string, scope: string): Promise<LimitedScope> => {
    const type = typeOf(scope);
    const id = scope === type ? {} : { id: scope.slice(type.length + 1) };
    return { scope, limits: pick(indexLimits(await limits({ root, type, ...id }), scope), scope) };
  };
  return (root: string, scopes: readonly string[]): Promise<LimitedScope[]> =>
    Promise.all(scopes.map((scope) => ask(root, scope)));
}

/** Returns the same list for each call of a scope, so that what is made of it can be kept. */
function pick(limits: LimitsByScope, scope: string): readonly ConfiguredLimit[] {
  const found = limits.get(scope) ?? limits.get(`${typeOf(scope)}:`);
  if (found === undefined) throw noLimit(scope);
  return found;
}

/** The largest number of limits of a scope, each for another period. */
export const MAX_PERIODS = 16;

/**
 * Checks a list of limits and indexes it by scope.
 *
 * @param asked - the scope that a function was asked for. Undefined for a list in the options.
 */
export function indexLimits(limits: unknown, asked?: string): LimitsByScope {
  if (!Array.isArray(limits)) throw invalidOption('budget.limits', 'a list of limits or a function', limits);
  const byScope = new Map<string, readonly ConfiguredLimit[]>();
  for (const [index, entry] of limits.entries()) {
    const name = `budget.limits[${index}]`;
    const given = knownOptions(name, entry, ['scope', 'period', 'limit', 'thresholds']);
    const scope = asConfigError(() => validateScope(`${name}.scope`, given.scope));
    if (asked !== undefined && scope !== asked && scope !== typeOf(asked))
      throw foreignLimit(index, scope, asked);
    const period = validatePeriod(`${name}.period`, given.period);
    const limit = asConfigError(() => validateLimit(`${name}.limit`, given.limit));
    const thresholds = validateThresholds(`${name}.thresholds`, given.thresholds);
    const others = byScope.get(scope) ?? [];
    if (others.some((other) => isSame(other.period, period)))
      throw new SyncGuardConfigError(`${name} limits the same scope and period as another entry.`);
    if (others.length === MAX_PERIODS)
      throw new SyncGuardConfigError(
        `${name} is one limit too many: a scope may have limits for at most ${MAX_PERIODS} periods.`,
        { hint: 'Remove a limit of this scope, or count its periods under several types of scope.' },
      );
    byScope.set(scope, [...others, { period, limit, thresholds, inherited: false }]);
  }
  // What a type has, its scopes inherit, except for the periods of which they have a limit of their own.
  for (const [scope, own] of [...byScope]) {
    const type = typeOf(scope);
    const ofType = (byScope.get(type) ?? []).map((limit) => ({ ...limit, inherited: true }));
    const isMissing = ({ period }: ConfiguredLimit): boolean =>
      own.every((each) => !isSame(each.period, period));
    if (type === scope) byScope.set(`${type}:`, ofType);
    else byScope.set(scope, [...own, ...ofType.filter(isMissing)]);
  }
  return byScope;
}

const isSame = (a: Period, b: Period): boolean => periodKey(a) === periodKey(b);

function validateThresholds(name: string, thresholds: unknown): readonly number[] {
  if (thresholds === undefined) return [];
  if (!Array.isArray(thresholds) || thresholds.length > MAX_PERIODS)
    throw invalidOption(name, `a list of at most ${MAX_PERIODS} percentages`, thresholds);
  const percents = thresholds.map((percent, index) => integer(`${name}[${index}]`, percent, 1, 1_000));
  return [...new Set(percents)].sort((a, b) => a - b);
}

const { checked: asConfigError } = leavingAs((error) =>
  error instanceof SyncGuardError
    ? new SyncGuardConfigError(error.message, { cause: error })
    : (error as Error),
);

function foreignLimit(index: number, scope: string, asked: string): SyncGuardConfigError {
  const type = typeName(asked);
  const other = typeOf(scope) === typeOf(asked) ? `${type} with another id` : typeName(scope);
  return new SyncGuardConfigError(
    `The function budget.limits was called for a scope of type ${type}, and item ${index} of its result limits a scope of type ${other}.`,
    {
      hint: 'Return limits only of the scope that the function was called for: of its `type`, or of `type:id`.',
    },
  );
}

/** Returns a scope with its limit of this period only. Throws if no such limit is configured. */
export function withPeriod({ scope, limits }: LimitedScope, period: Period): LimitedScope {
  const found = limits.filter((limit) => isSame(limit.period, period));
  if (found.length > 0) return { scope, limits: found };
  throw new BudgetInputError(
    `Scopes of type ${typeName(scope)} have no limit for the period ${periodKey(period)}. Their periods are: ${limits.map((limit) => periodKey(limit.period)).join(', ')}.`,
    { hint: 'Pass a period of `budget.limits`, with its `tz` and `anchor`.' },
  );
}

/** Returns the error for a sum that would pass the largest amount. */
export const tooLarge = (): BudgetInputError =>
  new BudgetInputError('A sum of this budget would be larger than 2^53 - 1, the largest amount.', {
    hint: 'Count in a larger unit.',
  });

const typeName = (scope: string): string => JSON.stringify(typeOf(scope).slice(0, 60));

/** Returns the error for a scope without a limit. A scope may be unlimited only by `limit: 'unlimited'`. */
const noLimit = (scope: string): BudgetInputError =>
  new BudgetInputError(`No limit is set for scopes of type ${typeName(scope)}.`, {
    hint: "Add one to `budget.limits`. To leave it unlimited, set `limit: 'unlimited'`.",
  });
