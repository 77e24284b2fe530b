import { setTimeout as sleep } from 'node:timers/promises';
import { Logger, type OnModuleDestroy } from '@nestjs/common';
import { refuseAborted } from '../core/abort.js';
import { isOwed } from '../core/owed.js';
import { SyncGuardError } from '../core/errors.js';
import { boolean, type CallOptions, callOptions } from '../core/validate.js';
import type { BudgetBackend, ReserveMode, AlreadyRunning } from './budget.backend.js';
import { BudgetUnavailableError } from './budget.errors.js';
import { ConfiguredLimits } from './budget.limits.js';
import type { ResolvedBudgetOptions } from './budget.options.js';
import { BudgetReaper } from './budget.reaper.js';
import { type BodyFacts, BudgetRuns, DEFAULT_TTL_MS, type RunOptions } from './budget.runs.js';
import { validateOnThrow } from './budget.settlement.js';
import type {
  AbortResult,
  Amount,
  Balance,
  BudgetRecord,
  BudgetRef,
  ChargeOptions,
  ChargeResult,
  CreditOptions,
  CreditResult,
  ExtendHoldResult,
  FinalizeOptions,
  FinalizeResult,
  BudgetListOptions,
  BudgetListResult,
  ReapOptions,
  ReapResult,
  RefundResult,
  ReserveOptions,
  ReserveResult,
  SetLimitOptions,
  SetLimitResult,
  VerifyResult,
} from './budget.types.js';
import {
  checked,
  validateAmount,
  validateCallPeriod,
  validateCount,
  validateCursor,
  validateFunction,
  validateId,
  validateLimit,
  validateMeta,
  validateOneOf,
  validateRef,
  validateRoot,
  validateScope,
  validateScopes,
  validateTtl,
} from './budget.validate.js';
import { ANY_NONCE, createId } from './budget.id.js';
import { presentAmounts } from './budget.amounts.js';
import type { CurrentHold } from './current-hold.js';

/**
 * Pauses between the attempts of a finalize or abort that Redis did not answer. The waiting for each answer comes on
 * top.
 */
const RETRY_PAUSES_MS = [50, 250];
/** How many holds and records one script call processes. */
const REAP_BATCH = 100;

const RESERVE_OPTIONS = ['root', 'scopes', 'amount', 'id', 'renew', 'ttlMs', 'meta'] as const;
const CHARGE_OPTIONS = ['root', 'scopes', 'amount', 'id', 'mode'] as const;
const LIST_OPTIONS = ['root', 'state', 'scope', 'cursor', 'limit'] as const;
const RUN_OPTIONS = [
  ...(['root', 'scopes', 'amount', 'id', 'ttlMs', 'meta'] as const),
  ...(['actual', 'overage', 'onThrow'] as const),
] as const;

export interface BudgetServiceOptions extends ResolvedBudgetOptions {
  /** How long a shutdown waits for running bodies. By default it does not wait. */
  readonly shutdown?: { readonly drainMs: number };
}

export interface BudgetEvents {
  /** Called with holds that expired. Each is reported once, by the process that reaped it. */
  onExpired?(root: string, ids: readonly string[]): void;
  /** Called if the cost of a body could not be read. At least the estimate was committed. */
  onUnreadableCost?(id: string): void;
}

/**
 * Budgets that cannot be overspent. Reserve before the work, finalize the actual cost after it, and abort if
 * it failed. A hold that is neither finalized nor aborted expires. Each operation is one atomic step over all
 * its scopes and periods.
 *
 * All methods throw BudgetInputError on a wrong call. They throw BudgetUnavailableError when Redis cannot
 * answer. An outage is never reported as "exceeded" or "finalized".
 *
 * @example
 * const hold = await budgets.reserve({ scopes: ['user:42', 'org'], amount: 1_000 });
 * if (!hold.ok) return tooMuch(hold);
 * const answer = await llm.complete(prompt);
 * await budgets.finalize(hold, answer.usage.totalTokens);
 */
export class BudgetService implements OnModuleDestroy {
  readonly #logger = new Logger('SyncGuard');
  readonly #runs: BudgetRuns;
  readonly #drainMs: number;
  readonly #limits: ConfiguredLimits;
  readonly #reaper: BudgetReaper | undefined;
  #isShuttingDown = false;
  #hasWarnedOfReaper = false;

  /** @internal The module creates the service. */
  constructor(
    private readonly backend: BudgetBackend,
    options: BudgetServiceOptions,
    private readonly events: BudgetEvents = {},
  ) {
    this.#drainMs = options.shutdown?.drainMs ?? 0;
    this.#limits = new ConfiguredLimits(options.limits);
    this.#runs = new BudgetRuns(
      {
        reserve: (call) => this.#reserve(call, call.id === undefined ? 'reserve' : 'run'),
        finalize: (...call) => this.finalize(...call),
        abort: (ref) => this.abort(ref),
        extend: (...call) => this.extend(...call),
      },
      (id) => this.events.onUnreadableCost?.(id),
    );
    if (options.reaper)
      this.#reaper = new BudgetReaper(backend, options.reaper.everyMs, this.#onExpired, this.#onReaperFault);
  }

  /**
   * Reserves an amount in every scope and period, or in none. A denial leaves no record. Throws while the app
   * shuts down.
   */
  async reserve(options: ReserveOptions): Promise<ReserveResult> {
    const { renew = false } = checkedOptions(options, RESERVE_OPTIONS);
    const isRenewed = checked(() => boolean('renew', renew));
    return (await this.#reserve(options, isRenewed ? 'renew' : 'reserve')) as ReserveResult;
  }

  /**
   * Commits the amount that was really spent, and ends the hold. A repeated call is safe. When Redis does not
   * answer, this retries up to twice before it throws.
   *
   * @param ref - a result of `reserve`, or `{ root?, id }`
   * @param actual - the amount that was really spent
   */
  async finalize(ref: BudgetRef, actual: Amount, options: FinalizeOptions = {}): Promise<FinalizeResult> {
    const { overage = 'record', late = 'record', signal } = checkedOptions(options, ['overage', 'late']);
    const request = {
      ...validateRef(ref),
      actual: validateAmount('actual', actual),
      overage: validateOneOf('overage', overage, ['record', 'cap', 'reject']),
      late: validateOneOf('late', late, ['record', 'if-available', 'reject']),
      signal,
    };
    this.#reaper?.touch(request.root);
    const settling = retried(() => this.backend.finalize(request));
    this.#runs.watchSettling(request, settling);
    return presentAmounts<FinalizeResult>(await settling, isBigint(actual));
  }

  /**
   * Ends a hold without spending anything. A repeated call is safe. When Redis does not answer, this retries up
   * to twice before it throws.
   */
  async abort(ref: BudgetRef, options: CallOptions = {}): Promise<AbortResult> {
    const { signal } = checkedOptions(options, []);
    const request = { ...validateRef(ref), signal };
    const settling = retried(() => this.backend.abort(request));
    this.#runs.watchSettling(request, settling);
    const result = await settling;
    if (!result.ok) return presentAmounts<AbortResult>(result, false);
    const { generation: _, ...aborted } = result;
    return presentAmounts<AbortResult>(aborted, false);
  }

  /** Sets the remaining life of a hold, in ms, 1 to 2^31 - 1. Never revives an expired hold. */
  async extend(ref: BudgetRef, ttlMs: number, options: CallOptions = {}): Promise<ExtendHoldResult> {
    const { signal } = checkedOptions(options, []);
    const request = { ...validateRef(ref), ttlMs: validateTtl(ttlMs), signal };
    return presentAmounts<ExtendHoldResult>(await this.backend.extend(request), false);
  }

  /** Commits an amount in one step, for a cost that is known in advance. */
  async charge(options: ChargeOptions): Promise<ChargeResult> {
    const { scopes, amount, id, mode = 'enforce', signal } = checkedOptions(options, CHARGE_OPTIONS);
    const valid = {
      root: validateRoot(options.root),
      scopes: validateScopes(scopes),
      amount: validateAmount('amount', amount),
      id: validateId(id),
      mode: validateOneOf('mode', mode, ['enforce', 'record']),
    };
    const limited = await this.#limits.limitsOf(valid.root, valid.scopes);
    this.#reaper?.touch(valid.root);
    return presentAmounts<ChargeResult>(
      await this.backend.charge({ ...valid, scopes: limited, signal }),
      isBigint(amount),
    );
  }

  /** Refunds part or all of a committed amount. That much is free again in the windows in which it was spent. */
  async refund(
    ref: BudgetRef,
    amount: Amount,
    refundId: string,
    options: CallOptions = {},
  ): Promise<RefundResult> {
    const { signal } = checkedOptions(options, []);
    const request = {
      ...validateRef(ref),
      amount: validateAmount('amount', amount),
      refundId: validateId(refundId, 'refundId'),
      signal,
    };
    return presentAmounts<RefundResult>(await this.backend.refund(request), isBigint(amount));
  }

  /** Adds an amount to the limit of the open window, such as a top-up. */
  async credit(options: CreditOptions): Promise<CreditResult> {
    const { scope, period, amount, id, signal } = checkedOptions(options, [
      'root',
      'scope',
      'period',
      'amount',
      'id',
    ]);
    const root = validateRoot(options.root);
    const valid = {
      period: validateCallPeriod(period),
      amount: validateAmount('amount', amount),
      id: validateId(id),
    };
    const limited = await this.#limitsOf(root, scope);
    this.#reaper?.touch(root);
    return presentAmounts<CreditResult>(
      await this.backend.credit({ root, scope: limited, ...valid, signal }),
      isBigint(amount),
    );
  }

  /**
   * Sets a limit for all processes. It takes precedence over the configured one until `limit: null` clears
   * it.
   */
  async setLimit(options: SetLimitOptions): Promise<SetLimitResult> {
    const { scope, period, limit, signal } = checkedOptions(options, ['root', 'scope', 'period', 'limit']);
    return this.backend.setLimit({
      root: validateRoot(options.root),
      scope: validateScope('scope', scope),
      period: validateCallPeriod(period),
      limit: limit === null ? null : validateLimit('limit', limit),
      signal,
    });
  }

  /** Returns the open windows of a scope, one balance for each period. */
  async balance(options: { root?: string; scope: string; signal?: AbortSignal }): Promise<Balance[]> {
    const { scope, signal } = checkedOptions(options, ['root', 'scope']);
    const root = validateRoot(options.root);
    const limited = await this.#limitsOf(root, scope);
    return presentAmounts<Balance[]>(await this.backend.balance({ root, scope: limited, signal }), false);
  }

  /** Returns the record of an operation. Null if there is none, or if it ended more than `retentionMs` ago. */
  async get(ref: BudgetRef, options: CallOptions = {}): Promise<BudgetRecord | null> {
    const { signal } = checkedOptions(options, []);
    return presentAmounts<BudgetRecord | null>(
      await this.backend.get({ ...validateRef(ref), signal }),
      false,
    );
  }

  /**
   * Lists operations page by page, in no particular order. An operation that exists during the whole listing appears at
   * least once.
   */
  async list(options: BudgetListOptions = {}): Promise<BudgetListResult> {
    const { state, cursor = null, limit = 100, signal } = checkedOptions(options, LIST_OPTIONS);
    const root = validateRoot(options.root);
    if (state !== undefined) validateOneOf('state', state, ['pending', 'finalized', 'aborted', 'expired']);
    const scope = options.scope === undefined ? undefined : validateScope('scope', options.scope);
    const page = await this.backend.list({
      root,
      cursor: validateCursor(cursor),
      limit: validateCount('limit', limit, 1_000),
      signal,
    });
    const records = page.records.filter(
      (record) =>
        (state === undefined || record.state === state) &&
        (scope === undefined || record.scopes.includes(scope)),
    );
    return presentAmounts<BudgetListResult>({ records, cursor: page.cursor }, false);
  }

  /** Deletes old records and returns the holds that expired. Needed only with `reaper: false`. */
  async reap(options: ReapOptions = {}): Promise<ReapResult> {
    const { signal, max = 1_000 } = checkedOptions(options, ['root', 'max']);
    const root = validateRoot(options.root);
    const expired: string[] = [];
    let purged = 0;
    // Each step is reported at once. If a later step failed, no other call would report these holds again.
    const onStep = (step: ReapResult): void => {
      if (step.expired.length > 0) this.#onExpired(root, step.expired);
    };
    for (let left = validateCount('max', max, 100_000); left > 0; left -= REAP_BATCH) {
      const step = await this.backend.reap({ root, max: Math.min(left, REAP_BATCH), signal, onLate: onStep });
      onStep(step);
      expired.push(...step.expired);
      purged += step.purged;
      if (step.nextInMs !== 0) break;
    }
    return { expired, purged };
  }

  /**
   * Adds up all operations of a root and compares the sums with its counters. It reads everything in one
   * step, so it is for tests and operators and not for requests.
   */
  async verify(root?: string, options: CallOptions = {}): Promise<VerifyResult> {
    const { signal } = checkedOptions(options, []);
    return this.backend.verify({ root: validateRoot(root), signal });
  }

  /**
   * Reserves an amount, runs the body, and finalizes the actual cost. The hold is extended while the body runs. A body
   * that throws is settled by `onThrow`. A body that settles the hold itself is not settled again. Under one id only
   * one body runs at a time. Another one runs later only if nothing was spent under the id.
   *
   * @throws BudgetExceededError when a limit has no room. The body has not run.
   * @throws BudgetConflictError when the work of the id was done before or is being done
   *   (`reason: 'pending'`). The body has not run. Also thrown when another call has settled the hold while
   *   the body ran.
   * @throws BudgetUnavailableError when Redis could not reserve. After the body an outage loses no result:
   *   the hold is finalized in the background then, for up to 15 minutes.
   * @example
   * const answer = await budgets.run(() => llm.complete(prompt, maxTokens), {
   *   scopes: [`user:${user}`],
   *   amount: maxTokens,
   *   actual: (result) => result.usage.totalTokens,
   * });
   */
  run<T>(fn: (hold: CurrentHold) => T | Promise<T>, options: RunOptions<T>): Promise<T> {
    return this.runBody(fn, options);
  }

  /** @internal `run()` for decorators, which know the arguments and the stream of the body. */
  async runBody<T>(
    fn: (hold: CurrentHold) => T | Promise<T>,
    options: RunOptions<T>,
    facts?: BodyFacts,
  ): Promise<T> {
    validateFunction('run(fn, options): fn', fn);
    const { actual, overage, onThrow } = checkedOptions(options, RUN_OPTIONS);
    if (actual !== undefined) validateFunction('actual', actual);
    if (overage !== undefined) validateOneOf('overage', overage, ['record', 'cap']);
    if (onThrow !== undefined) validateOnThrow(onThrow);
    return this.#runs.run(fn, options, facts ?? { args: [options] });
  }

  /**
   * Shuts down in order. Nothing new is reserved, and bodies may end and settle for `drainMs`. Pending holds can still
   * be settled meanwhile. Nest closes the connection in a later phase.
   */
  async onModuleDestroy(): Promise<void> {
    this.#isShuttingDown = true;
    const reaped = this.#reaper?.stop();
    await this.#runs.drain(this.#drainMs);
    await reaped;
  }

  async #reserve(
    options: Omit<ReserveOptions, 'renew'>,
    mode: ReserveMode,
  ): Promise<ReserveResult | AlreadyRunning> {
    const { scopes, amount, signal, ttlMs = DEFAULT_TTL_MS } = options;
    const hasOwnId = options.id !== undefined;
    const valid = {
      root: validateRoot(options.root),
      scopes: validateScopes(scopes),
      amount: validateAmount('amount', amount),
      id: hasOwnId ? validateId(options.id) : createId(),
      ttlMs: validateTtl(ttlMs),
      meta: validateMeta(options.meta),
      mode,
      nonce: hasOwnId ? createId() : ANY_NONCE,
    };
    this.#refuseWhenShuttingDown();
    const limited = await this.#limits.limitsOf(valid.root, valid.scopes);
    // A call whose signal has aborted already sends nothing, so there is nothing to undo.
    refuseAborted(signal, BudgetUnavailableError);
    this.#reaper?.touch(valid.root);
    try {
      const result = await this.backend.reserve({ ...valid, scopes: limited, signal });
      return presentAmounts<ReserveResult | AlreadyRunning>(result, isBigint(amount));
    } catch (error) {
      if (error instanceof BudgetUnavailableError && (mode === 'run' || !hasOwnId)) this.#undo(valid, error);
      throw error;
    }
  }

  /**
   * Aborts the hold of a reserve that may have run although its answer did not come. Nobody else would settle the hold.
   */
  #undo(
    { root, id, nonce, ttlMs }: { root: string; id: string; nonce: string; ttlMs: number },
    fault: unknown,
  ): void {
    const abort = (): Promise<boolean> =>
      this.backend.abort({ root, id, generation: 0, nonce }).then(() => true);
    this.#runs.retryInBackground(abort, ttlMs, fault);
  }

  /** Warns once of a fault that is no outage. Nobody calls the reaper, so nobody else would see the fault. */
  readonly #onReaperFault = (error: unknown): void => {
    const fault = BudgetUnavailableError.from(error);
    if (fault.code !== 'Internal' || this.#hasWarnedOfReaper) return;
    this.#hasWarnedOfReaper = true;
    this.#logger.warn(
      `BUDGET_REAPER_FAILED: The reaper of budgets failed, and tries again in its next round. ${fault.message}`,
    );
  };

  readonly #onExpired = (root: string, ids: readonly string[]): void => this.events.onExpired?.(root, ids);

  #refuseWhenShuttingDown(): void {
    if (!this.#isShuttingDown) return;
    throw new BudgetUnavailableError({
      code: 'ServiceUnavailable',
      message: 'The app is shutting down, so nothing new is reserved.',
    });
  }

  async #limitsOf(
    root: string,
    scope: unknown,
  ): Promise<Awaited<ReturnType<ConfiguredLimits['limitsOf']>>[number]> {
    const name = validateScope('scope', scope);
    const [limited] = await this.#limits.limitsOf(root, [name]);
    return limited ?? { scope: name, limits: [] };
  }
}

const isBigint = (amount: Amount): boolean => typeof amount === 'bigint';

/** Checks the options of a call. Missing options and misspelt names throw BudgetInputError. */
const checkedOptions = <Options extends CallOptions>(
  options: Options,
  known: readonly Exclude<keyof Options & string, 'signal'>[],
): Options => checked(() => callOptions(options, known));

async function retried<T>(attempt: () => Promise<T>): Promise<T> {
  for (const pauseMs of RETRY_PAUSES_MS) {
    let fault: unknown;
    try {
      return await attempt();
    } catch (error) {
      fault = error;
      const isPassing =
        error instanceof SyncGuardError &&
        (error.code === 'ServiceUnavailable' || error.code === 'NetworkTimeout');
      if (!isPassing) throw error;
    }
    await sleep(pauseMs);
    // A command that Redis may still answer is not sent again.
    if (isOwed(fault)) throw fault;
  }
  return attempt();
}
