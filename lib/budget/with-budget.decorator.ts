import { Logger } from '@nestjs/common';
import type { Observable } from 'rxjs';
import { decorateMethod } from '../method/decorate-method.js';
import { type ComposableMethodDecorator, memberName } from '../method/replace-method.js';
import { hangUpParameter } from '../transport/hang-up.decorator.js';
import { SyncGuardConfigError } from '../core/errors.js';
import { describe, invalidOption, knownOptions, userKey } from '../core/validate.js';
import { BudgetInputError } from './budget.errors.js';
import { idleMsOf } from './budget.options.js';
import type { RunOptions } from './budget.runs.js';
import type { BudgetService } from './budget.service.js';
import { checkSettling, SETTLING } from './budget.settlement.js';
import type { Amount } from './budget.types.js';
import { checked, DEFAULT_TTL_MS, validateAmount } from './budget.validate.js';

const logger = new Logger('SyncGuard');

/** The token of the BudgetService that `@WithBudget()` uses. */
export const BUDGET_SERVICE = Symbol.for('syncguard:BudgetService (is SyncGuardModule.forRoot() imported?)');

const WITH_BUDGET = {
  name: '@WithBudget()',
  token: BUDGET_SERVICE,
  noun: 'budget',
  invalidCall: (message: string, hint: string) => new BudgetInputError(message, { hint }),
};

/**
 * Options of `@WithBudget()`. Each function is called with the arguments of the method. It may leave out
 * parameters at the end.
 */
export interface WithBudgetOptions<
  RootArgs extends unknown[],
  ScopeArgs extends unknown[],
  EstimateArgs extends unknown[],
  ActualArgs extends unknown[],
  IdArgs extends unknown[],
  Result,
> extends Pick<RunOptions<Result>, 'ttlMs' | 'overage' | 'onThrow' | 'idTtlMs' | 'maxHoldMs'> {
  /** How long the HTTP client of a stream may stay away, in ms. Default: `budget.idleMs`. */
  idleMs?: number;
  /** The tenant. A function must return one: a call for which it gives none is refused (500). Default: `'default'`. */
  root?: string | ((...args: RootArgs) => string);
  /** Returns the scopes that pay. Each of them must have room. A call for which it gives none is refused (500). */
  scopes: (...args: ScopeArgs) => readonly string[];
  /**
   * Returns the highest cost that the call may have. This amount is reserved before the method runs, at least 1. Do not let
   * a client choose it freely: give it a minimum.
   */
  estimate: (...args: EstimateArgs) => Amount;
  /**
   * Returns the real cost of the call. For a stream it is called with the last item, or with undefined if
   * there was none. Default: the sum that the method has noted with `currentHold().spent()`, or the estimate
   * if nothing was noted. `currentHold()` has that sum (`noted`), and what a generator has returned (`returned`).
   */
  actual?: (result: Result, ...args: ActualArgs) => Amount;
  /**
   * Returns an id for the piece of work. Only one call runs under an id at a time. Once an amount was spent
   * under the id, no further call runs. All ids of a root are one namespace, so put the client before an id that a client
   * chooses: `${client}:${key}`. Undefined means a random id. Default: a random id for each call.
   */
  id?: (...args: IdArgs) => string | undefined;
}

/**
 * A decorator for methods that return a promise, a promise of an Observable, or an async generator. The
 * parameters of the method must begin with the parameters of each function of the options.
 */
export type BudgetedMethodDecorator<
  A extends unknown[],
  B extends unknown[],
  C extends unknown[],
  D extends unknown[],
  E extends unknown[],
  Result,
> = ComposableMethodDecorator &
  (<
    Args extends [...A, ...unknown[]] &
      [...B, ...unknown[]] &
      [...C, ...unknown[]] &
      [...D, ...unknown[]] &
      [...E, ...unknown[]],
    Returned extends Promise<Result | Observable<Result>> | AsyncGenerator<Result, unknown, never>,
  >(
    target: object,
    propertyKey: string | symbol,
    descriptor: TypedPropertyDescriptor<(...args: Args) => Returned>,
  ) => void);

/**
 * Runs an async method of a provider or controller on a budget. It reserves the estimate, extends the hold
 * while the method runs, and then finalizes the actual cost. When the method throws, its error is passed on
 * and `onThrow` decides the cost: a caller that hangs up pays. An async generator and a promise of an
 * Observable settle once, when they end or when their reader leaves. Inside the method `currentHold()`
 * returns the hold.
 *
 * @throws BudgetExceededError when a limit has no room (429 or 402 over HTTP). The method has not run.
 * @throws BudgetConflictError when the work of the id was done before or is being done (409). The method has
 *   not run. Also thrown when another call has settled the hold while the method ran.
 * @throws BudgetUnavailableError when Redis cannot answer (503)
 * @throws the error of the method, unchanged
 * @example
 * \@WithBudget({
 *   scopes: (user: string) => [`user:${user}`, 'org'],
 *   estimate: (_user, _prompt: string, maxTokens: number) => maxTokens,
 *   actual: (answer: Answer) => answer.usage.totalTokens,
 * })
 * async complete(user: string, prompt: string, maxTokens: number): Promise<Answer> { ... }
 */
export function WithBudget<
  RootArgs extends unknown[] = [],
  ScopeArgs extends unknown[] = [],
  EstimateArgs extends unknown[] = [],
  ActualArgs extends unknown[] = [],
  IdArgs extends unknown[] = [],
  Result = unknown,
>(
  options: WithBudgetOptions<RootArgs, ScopeArgs, EstimateArgs, ActualArgs, IdArgs, Result>,
): BudgetedMethodDecorator<RootArgs, ScopeArgs, EstimateArgs, ActualArgs, IdArgs, Result> {
  validateOptions(options); // Malformed options fail when the class is defined, and not at the first call.
  const { root, scopes, estimate, actual, id, idleMs, ...rest } = options;
  const decorate: MethodDecorator = (target, propertyKey, descriptor) => {
    const method = memberName(target, propertyKey);
    decorateMethod<BudgetService>(WITH_BUDGET, target, propertyKey, descriptor, (serviceOf) => ({
      around(self, args, body, stream) {
        const budgets = serviceOf(self);
        const amount = estimate(...(args as EstimateArgs));
        logged(method, () => validateAmount('the estimate', amount));
        const runOptions = {
          ...rest,
          root: typeof root === 'function' ? named(method, 'root', root(...(args as RootArgs))) : root,
          scopes: named(method, 'scopes', scopes(...(args as ScopeArgs))),
          id: id && optionalId(method, id(...(args as IdArgs))),
          amount,
          actual: actual && ((result: unknown) => actual(result as never, ...(args as ActualArgs))),
        };
        return budgets.runs.run(body, runOptions, { args, stream });
      },
      patienceMs: () => options.ttlMs ?? DEFAULT_TTL_MS,
      idleMs: (self) => idleMs ?? serviceOf(self).defaultIdleMs,
      hangUpAt: hangUpParameter(target, propertyKey),
    }));
  };
  return decorate as BudgetedMethodDecorator<RootArgs, ScopeArgs, EstimateArgs, ActualArgs, IdArgs, Result>;
}

function validateOptions(options: unknown): void {
  const names = ['root', 'scopes', 'estimate', 'id', 'idleMs', ...SETTLING] as const;
  const given = knownOptions('@WithBudget()', options ?? null, names);
  const { scopes, estimate, root, id } = given;
  refuseOther('scopes', scopes);
  refuseOther('estimate', estimate);
  if (id !== undefined) refuseOther('id', id);
  if (root !== undefined && typeof root !== 'string') refuseOther('root', root, 'a string or a function');
  if (given.idleMs !== undefined) idleMsOf('@WithBudget().idleMs', given.idleMs);
  checkSettling(given, '@WithBudget().');
}

function refuseOther(name: string, value: unknown, what = 'a function'): void {
  if (typeof value !== 'function')
    throw invalidOption(`@WithBudget().${name}`, `${what} of the arguments`, value);
}

const isName = (value: unknown): boolean => typeof value === 'string' && value !== '';

/**
 * Returns what a function has given if it names somebody. Otherwise strangers would share one tenant, so that is a fault of
 * the app. Clients are told no more than that.
 */
function named<T>(method: string, option: 'root' | 'scopes', value: T): T {
  const names: unknown[] = Array.isArray(value) && option === 'scopes' ? value : [value];
  if (names.length > 0 && names.every(isName) && (option === 'root' || Array.isArray(value))) return value;
  logger.error(
    `BUDGET_NAME_MISSING: The function \`${option}\` of @WithBudget() on ${method} gave ${describe(value)}, so the call was refused (500). It must give ${option === 'root' ? 'the name of a tenant' : 'a list of scopes'} for every call.`,
  );
  throw new SyncGuardConfigError('The budget of this call could not be determined.');
}

const optionalId = (method: string, id: unknown): string | undefined =>
  id === undefined ? undefined : logged(method, () => checked(() => userKey(id, 'the id')));

/** Runs the check of an argument. Its error is shown to clients, so the log and not the error names the method. */
function logged<T>(method: string, check: () => T): T {
  try {
    return check();
  } catch (error) {
    if (error instanceof BudgetInputError)
      logger.warn(`BUDGET_ARGUMENT_WRONG: @WithBudget() on ${method} refused a call: ${error.message}`);
    throw error;
  }
}
