import { Logger, type OnModuleDestroy } from '@nestjs/common';
import { type Page, pageOf, type PageOptions, pageOptions } from '../core/page.js';
import { type ByHand, type ForcedChange, tellForced } from '../telemetry/by-hand.js';
import { shownHash } from '../core/keys.js';
import { warningOnce } from '../core/warn-once.js';
import { type CallOptions, duration, refuseAborted, userKey } from '../core/validate.js';
import type * as port from './budget.backend.js';
import { BudgetInputError, BudgetUnavailableError } from './budget.errors.js';
import { limitsFinder, withPeriod } from './budget.limits.js';
import * as results from './budget.results.js';
import type { BudgetEvents, BudgetServiceOptions } from './budget.options.js';
import { BudgetReaper, reapUpTo } from './budget.reaper.js';
import { BudgetRuns, checkRun, type RunOptions } from './budget.runs.js';
import type * as budget from './budget.types.js';
import * as check from './budget.validate.js';
import type { CurrentHold } from './current-hold.js';

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
  readonly #backend: port.BudgetBackend;
  readonly #options: BudgetServiceOptions;
  readonly #limitsOf: ReturnType<typeof limitsFinder>;
  readonly #reaper: BudgetReaper | undefined;
  /** @internal Runs bodies of decorators too, which know their arguments and streams, and have checked the options. */
  readonly runs: BudgetRuns;
  /** @internal How long the client of a stream may stay away, in ms, where the decorator has no `idleMs`. */
  readonly defaultIdleMs: number;
  #isShuttingDown = false;
  readonly #logger = new Logger('SyncGuard');
  readonly #warnOnce = warningOnce((message) => this.#logger.warn(message));

  /** @internal The module creates the service. */
  constructor(
    backend: port.BudgetBackend,
    options: BudgetServiceOptions,
    private readonly events: BudgetEvents = {},
  ) {
    this.#backend = backend;
    this.#options = options;
    this.defaultIdleMs = options.idleMs;
    this.#limitsOf = limitsFinder(options.limits);
    this.runs = new BudgetRuns(
      this,
      (call) => this.#reserve(call, call.id === undefined ? 'reserve' : 'run'),
      this.events,
      options.maxHoldMs,
    );
    if (options.reaper)
      this.#reaper = new BudgetReaper(backend, options.reaper.everyMs, this.#onFound, this.#onReaperFault);
  }

  /**
   * Reserves an amount in every scope and period, or in none. A denial leaves no record. Throws while the app
   * shuts down.
   */
  reserve(options: budget.ReserveOptions): Promise<budget.ReserveResult> {
    return this.#reserve(options) as Promise<budget.ReserveResult>;
  }

  /**
   * Commits the amount that was really spent, and ends the hold. A repeated call is safe. When Redis does not
   * answer, this retries up to twice before it throws.
   *
   * @param ref - a result of `reserve`, or `{ root?, id }`
   * @param actual - the amount that was really spent
   */
  async finalize(
    ref: budget.BudgetRef,
    actual: budget.Amount,
    options: budget.FinalizeOptions = {},
  ): Promise<budget.FinalizeResult> {
    const request = check.validateFinalize(ref, actual, options, this.#options.idTtlMs);
    this.#reaper?.touch(request.root);
    const outcome = await this.runs.settle(request, () => this.#backend.finalize(request));
    return outcome.ok ? results.finalizedOf(exact(outcome)) : outcome;
  }

  /**
   * Ends a hold without spending anything. A repeated call is safe. When Redis does not answer, this retries up
   * to twice before it throws.
   */
  async abort(ref: budget.BudgetRef, options: CallOptions & ByHand = {}): Promise<budget.AbortResult> {
    const { by, request } = check.validateAbort(ref, options);
    const outcome = await this.runs.settle(request, () => this.#backend.abort(request));
    if (!outcome.ok) return outcome;
    this.#tellForced('abort', request.id, by);
    return results.abortedOf(outcome);
  }

  /** Sets the remaining life of a hold, in ms, 1 to 2^31 - 1. Never revives an expired hold. */
  async extend(
    ref: budget.BudgetRef,
    ttlMs: number,
    options: CallOptions = {},
  ): Promise<budget.ExtendHoldResult> {
    const request = check.validateRef(ref, options, () => ({ ttlMs: duration('ttlMs', ttlMs) }));
    const outcome = await this.#backend.extend(request);
    return outcome.ok ? { ok: true, status: 'extended', expiresAtMs: outcome.expiresAtMs } : outcome;
  }

  /** Commits an amount in one step, for a cost that is known in advance. */
  async charge(options: budget.ChargeOptions): Promise<budget.ChargeResult> {
    const request = await this.#limited(check.validateCharge(options, this.#options.idTtlMs));
    const outcome = await this.#backend.charge(request);
    return outcome.ok ? results.chargedOf(exact(outcome)) : outcome;
  }

  /** Refunds part or all of a committed amount. That much is free again in the windows in which it was spent. */
  async refund(
    ref: budget.BudgetRef,
    amount: budget.Amount,
    refundId: string,
    options: CallOptions = {},
  ): Promise<budget.RefundResult> {
    const request = check.validateRef(ref, options, () => ({
      amount: check.validateAmount('amount', amount),
      refundId: userKey(refundId, 'refundId'),
    }));
    const outcome = await this.#backend.refund(request);
    return outcome.ok ? results.refundedOf(exact(outcome), amount) : outcome;
  }

  /** Adds an amount to the limit of the open window, such as a top-up. */
  async credit(options: budget.CreditOptions): Promise<budget.CreditResult> {
    const { scopes, period, by, ...request } = await this.#limited(check.validateCredit(options));
    const [scope] = scopes as [port.LimitedScope];
    const result = await this.#backend.credit({ ...request, scope: withPeriod(scope, period) });
    if (result.ok) this.#tellForced('credit', scope.scope, by);
    return result;
  }

  /** Sets a limit for all processes. It takes precedence over the configured one until `limit: null` clears it. */
  async setLimit(options: budget.SetLimitOptions): Promise<budget.SetLimitResult> {
    const { scopes, period, by, ...request } = check.validateSetLimit(options);
    const [scope] = (await this.#limitsOf(request.root, scopes)) as [port.LimitedScope];
    const result = await this.#backend.setLimit({ ...request, scope: withPeriod(scope, period) });
    this.#tellForced('setLimit', scope.scope, by);
    return result;
  }

  /** Returns the open windows of a scope, one balance for each period. */
  async balance(
    options: Pick<budget.SetLimitOptions, 'root' | 'scope' | 'signal'>,
  ): Promise<budget.Balance[]> {
    const { scopes, ...request } = check.validateBalance(options);
    const [scope] = await this.#limitsOf(request.root, scopes);
    return this.#backend.balance({ ...request, scope: scope as port.LimitedScope });
  }

  /**
   * Lists the roots of which anything is kept, page by page. On Redis it walks over all keys of the server, those of other
   * programs too, at most 5,000 a second in each process. A root whose name is longer than 200 bytes, percent-encoded, is left out:
   * only its hash is kept.
   */
  async roots(options: PageOptions = {}): Promise<{ roots: readonly string[]; cursor?: string }> {
    const { names, cursor } = await this.#backend.allRoots(check.checked(() => pageOptions(options, [])));
    return cursor === undefined ? { roots: names } : { roots: names, cursor };
  }

  /** Lists the open windows of all scopes of a root, or of those of one type, page by page. */
  async balances(options: budget.BalancesOptions = {}): Promise<Page<budget.Balance>> {
    const { root, type, page } = check.validateBalances(options);
    const { names, cursor } = await this.#backend.scopes(root, page);
    const scopes = [...new Set(names)].filter(
      (scope) => type === undefined || results.typeOf(scope) === type,
    );
    const { signal } = page;
    const found = scopes.map((scope) => this.balance({ root, scope, signal }).catch(noneWithoutLimit));
    return pageOf((await Promise.all(found)).flat(), cursor);
  }

  /** Returns the record of an operation. Null if there is none, or if it ended more than `retentionMs` ago. */
  async get(ref: budget.BudgetRef, options: CallOptions = {}): Promise<budget.BudgetRecord | null> {
    return this.#backend.get(check.validateRef(ref, options));
  }

  /**
   * Lists operations page by page, in no particular order. An operation that exists during the whole listing appears at
   * least once.
   */
  async list(options: budget.BudgetListOptions = {}): Promise<budget.BudgetListResult> {
    const { state, scope, page } = check.validateList(options);
    const { records, cursor } = await this.#backend.list(page);
    const isAsked = (record: budget.BudgetRecord): boolean =>
      (state ?? record.state) === record.state && (scope === undefined || record.scopes.includes(scope));
    return { records: records.filter(isAsked), cursor };
  }

  /** Deletes old records and returns the holds that expired. Needed only with `reaper: false`. */
  async reap(options: budget.ReapOptions = {}): Promise<budget.ReapResult> {
    const { expired, purged } = await reapUpTo(check.validateReap(options), this.#backend, this.#onFound);
    return { expired, purged };
  }

  /**
   * Adds up all operations of a root and compares the sums with its counters. It reads everything in one
   * step, so it is for tests and operators and not for requests. With `repair: true` it first lets go of what cannot be
   * read, so that what that had reserved is free again.
   */
  async verify(root?: string, options: budget.VerifyOptions = {}): Promise<budget.VerifyResult> {
    return this.#backend.verify(check.validateVerify(root, options));
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
  async run<T>(fn: (hold: CurrentHold) => T | Promise<T>, options: RunOptions<T>): Promise<T> {
    checkRun(fn, options);
    return this.runs.run(fn, options, { args: [options] });
  }

  /**
   * Shuts down in order. Nothing new is reserved, and bodies may end and settle for `drainMs`. Pending holds can still
   * be settled meanwhile. Nest closes the connection in a later phase.
   */
  async onModuleDestroy(): Promise<void> {
    this.#isShuttingDown = true;
    const reaped = this.#reaper?.stop();
    await this.runs.drain(this.#options.shutdown?.drainMs ?? 0);
    await reaped;
  }

  #tellForced(operation: ForcedChange['operation'], key: string, by: string | undefined): void {
    const change = { feature: 'budget', operation, key, by } as const;
    tellForced(change, (line) => this.#logger.warn(line), this.events.emit);
  }

  async #reserve(options: budget.ReserveOptions, run?: port.ReserveMode): Promise<port.ReserveOutcome> {
    const valid = check.validateReserve(options, run);
    if (this.#isShuttingDown) {
      const message = 'The app is shutting down, so nothing new is reserved.';
      throw new BudgetUnavailableError({ code: 'ServiceUnavailable', message });
    }
    const request = await this.#limited(valid);
    try {
      const outcome = await this.#backend.reserve(request);
      return outcome.ok ? results.reservedOf(outcome) : outcome;
    } catch (error) {
      const isUnknown = run === 'run' || options.id === undefined;
      if (isUnknown && error instanceof BudgetUnavailableError) this.#undo(request, error);
      throw error;
    }
  }

  /** Finds the limits of a call that may write, and has the reaper watch its root. */
  async #limited<Call extends { root: string; scopes: readonly string[]; signal?: AbortSignal | undefined }>(
    call: Call,
  ): Promise<Omit<Call, 'scopes'> & { readonly scopes: readonly port.LimitedScope[] }> {
    const found = this.#limitsOf(call.root, call.scopes);
    const scopes = Array.isArray(found) ? found : await found;
    // A call whose signal has aborted already sends nothing, so there is nothing to undo.
    if (call.signal) refuseAborted(call.signal, BudgetUnavailableError);
    this.#reaper?.touch(call.root);
    return Object.assign(call, { scopes });
  }

  /** Aborts the hold of a reserve that may have run although its answer did not come. Nobody else would settle it. */
  #undo({ root, id, nonce, ttlMs }: port.ReserveRequest, fault: unknown): void {
    const hold = { root, id, generation: 0, nonce };
    this.runs.retries.start(() => this.#backend.abort(hold).then(() => true), ttlMs, fault);
  }

  /** Warns once of a fault that is no outage, because no caller sees it. */
  readonly #onReaperFault = (error: unknown): void => {
    const fault = BudgetUnavailableError.from(error);
    if (fault.code !== 'Internal') return;
    this.#warnOnce(
      `BUDGET_REAPER_FAILED: The reaper of budgets failed, and tries again in its next round. ${fault.message}`,
    );
  };

  readonly #onFound = (root: string, { expired, quarantined }: port.ReapStep): void => {
    if (expired.length > 0) this.events.onExpired?.(root, expired);
    if (quarantined.length === 0) return;
    const known = quarantined.flatMap(({ reserved }) => reserved ?? []);
    const sum = known.reduce((total, reserved) => total + reserved, 0);
    const unknown = quarantined.length - known.length;
    this.#logger.error(
      `BUDGET_RECORD_UNREADABLE: Of the budget root ${shownHash(root)} what could not be read was set aside (records: ${quarantined.length}). It keeps ${sum} reserved${unknown > 0 ? `, and an unknown amount (records: ${unknown})` : ''}. \`verify(root)\` lists it, and \`verify(root, { repair: true })\` makes the amount free again.`,
    );
    this.events.onQuarantined?.(root, quarantined);
  };
}

/** Logs an error where a sum has stopped at the largest amount, because what is spent is never refused. */
function exact(answer: port.Answer): port.Answer {
  if (answer.isAtMax)
    new Logger('SyncGuard').error(
      `BUDGET_SUM_TOO_LARGE: A sum of the budget root ${shownHash(answer.root)} would pass 2^53 - 1 and has stopped there, in operation ${shownHash(answer.id)}. Its balances are no longer exact. Count in a larger unit.`,
    );
  return answer;
}

/** The app has no limit any more for a scope that it had used. */
function noneWithoutLimit(error: unknown): [] {
  if (error instanceof BudgetInputError) return [];
  throw error;
}
