import { setTimeout as sleep } from 'node:timers/promises';
import { Logger, type OnModuleDestroy } from '@nestjs/common';
import { isOwed } from '../owed.js';
import { SyncGuardError } from '../syncguard.errors.js';
import { boolean, type CallOptions, callOptions } from '../validate.js';
import type { BudgetBackend, ReserveMode, RunsElsewhere } from './budget.backend.js';
import { BudgetUnavailableError } from './budget.errors.js';
import { LimitBook } from './budget.limits.js';
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
  ANY_NONCE,
  checked,
  createId,
  present,
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
} from './budget.values.js';
import type { CurrentHold } from './current-hold.js';

/** Pauses between the tries of a finalize or abort that Redis did not answer; each try waits for its answer besides. */
const RETRY_PAUSES_MS = [50, 250];
/** A batch of one script call. */
const REAP_BATCH = 100;

const RESERVE_OPTIONS = ['root', 'scopes', 'amount', 'id', 'renew', 'ttlMs', 'meta'] as const;
const CHARGE_OPTIONS = ['root', 'scopes', 'amount', 'id', 'mode'] as const;
const LIST_OPTIONS = ['root', 'state', 'scope', 'cursor', 'limit'] as const;
const RUN_OPTIONS = [
  ...(['root', 'scopes', 'amount', 'id', 'ttlMs', 'meta'] as const),
  ...(['actual', 'overage', 'onThrow'] as const),
] as const;

export interface BudgetServiceOptions extends ResolvedBudgetOptions {
  /** How long a shutdown waits for runs. Default: not at all. */
  readonly shutdown?: { readonly drainMs: number };
}

export interface BudgetEvents {
  /** Holds that nobody settled: each told once, by the process that reaped it, right after it has. */
  onExpired?(root: string, ids: readonly string[]): void;
  /** The cost of a body that ran on this hold could not be read: at least its estimate is counted. */
  onUnreadableCost?(id: string): void;
}

/**
 * Budgets that can't overspend: reserve before the work, finalize what it really cost, abort if it failed. What
 * is neither goes back by itself. Each operation is one atomic step over all its scopes and periods.
 *
 * All methods throw BudgetInputError on a wrong call, before any I/O, and BudgetUnavailableError when Redis
 * cannot answer: never "exceeded", never "finalized".
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
  readonly #book: LimitBook;
  readonly #reaper: BudgetReaper | undefined;
  #isShuttingDown = false;
  #toldReaperFault = false;

  constructor(
    private readonly backend: BudgetBackend,
    options: BudgetServiceOptions,
    private readonly events: BudgetEvents = {},
  ) {
    this.#drainMs = options.shutdown?.drainMs ?? 0;
    this.#book = new LimitBook(options.limits);
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

  /** Holds an amount in every scope and period, or in none. A denial leaves no trace. Refused once the app shuts down. */
  async reserve(options: ReserveOptions): Promise<ReserveResult> {
    const { renew = false } = given(options, RESERVE_OPTIONS);
    const isRenewed = checked(() => boolean('renew', renew));
    return (await this.#reserve(options, isRenewed ? 'renew' : 'reserve')) as ReserveResult;
  }

  /**
   * Turns a hold into what was really spent. Safe to repeat; repeated by itself when Redis does not answer.
   *
   * @param ref - a result of `reserve`, or `{ root?, id }`
   */
  async finalize(ref: BudgetRef, actual: Amount, options: FinalizeOptions = {}): Promise<FinalizeResult> {
    const { overage = 'record', late = 'record', signal } = given(options, ['overage', 'late']);
    const request = {
      ...validateRef(ref),
      actual: validateAmount('actual', actual),
      overage: validateOneOf('overage', overage, ['record', 'cap', 'reject']),
      late: validateOneOf('late', late, ['record', 'if-available', 'reject']),
      signal,
    };
    this.#reaper?.touch(request.root);
    const settling = retried(() => this.backend.finalize(request));
    this.#runs.notice(request, settling);
    return present<FinalizeResult>(await settling, isBigint(actual));
  }

  /** Gives a hold back. Safe to repeat; repeated by itself when Redis does not answer. */
  async abort(ref: BudgetRef, options: CallOptions = {}): Promise<AbortResult> {
    const { signal } = given(options, []);
    const request = { ...validateRef(ref), signal };
    const settling = retried(() => this.backend.abort(request));
    this.#runs.notice(request, settling);
    const result = await settling;
    if (!result.ok) return present<AbortResult>(result, false);
    const { generation: _, ...aborted } = result;
    return present<AbortResult>(aborted, false);
  }

  /** Replaces the rest of a hold's life, in ms, 1 to 2^31 - 1. Never brings an expired one back. */
  async extend(ref: BudgetRef, ttlMs: number, options: CallOptions = {}): Promise<ExtendHoldResult> {
    const { signal } = given(options, []);
    const request = { ...validateRef(ref), ttlMs: validateTtl(ttlMs), signal };
    return present<ExtendHoldResult>(await this.backend.extend(request), false);
  }

  /** Spends an amount in one step, for a cost that is known before. */
  async charge(options: ChargeOptions): Promise<ChargeResult> {
    const { scopes, amount, id, mode = 'enforce', signal } = given(options, CHARGE_OPTIONS);
    const valid = {
      root: validateRoot(options.root),
      scopes: validateScopes(scopes),
      amount: validateAmount('amount', amount),
      id: validateId(id),
      mode: validateOneOf('mode', mode, ['enforce', 'record']),
    };
    const limited = await this.#book.limitsOf(valid.root, valid.scopes);
    this.#reaper?.touch(valid.root);
    return present<ChargeResult>(
      await this.backend.charge({ ...valid, scopes: limited, signal }),
      isBigint(amount),
    );
  }

  /** Gives back part or all of what an operation committed, to the windows it was spent in. */
  async refund(
    ref: BudgetRef,
    amount: Amount,
    refundId: string,
    options: CallOptions = {},
  ): Promise<RefundResult> {
    const { signal } = given(options, []);
    const request = {
      ...validateRef(ref),
      amount: validateAmount('amount', amount),
      refundId: validateId(refundId, 'refundId'),
      signal,
    };
    return present<RefundResult>(await this.backend.refund(request), isBigint(amount));
  }

  /** Adds to the limit of the window that is open now: a top-up. */
  async credit(options: CreditOptions): Promise<CreditResult> {
    const { scope, period, amount, id, signal } = given(options, ['root', 'scope', 'period', 'amount', 'id']);
    const root = validateRoot(options.root);
    const valid = {
      period: validateCallPeriod(period),
      amount: validateAmount('amount', amount),
      id: validateId(id),
    };
    const limited = await this.#limitsOf(root, scope);
    this.#reaper?.touch(root);
    return present<CreditResult>(
      await this.backend.credit({ root, scope: limited, ...valid, signal }),
      isBigint(amount),
    );
  }

  /** Sets a limit that beats the configured one, for all processes, until `limit: null` clears it. */
  async setLimit(options: SetLimitOptions): Promise<SetLimitResult> {
    const { scope, period, limit, signal } = given(options, ['root', 'scope', 'period', 'limit']);
    return this.backend.setLimit({
      root: validateRoot(options.root),
      scope: validateScope('scope', scope),
      period: validateCallPeriod(period),
      limit: limit === null ? null : validateLimit('limit', limit),
      signal,
    });
  }

  /** The open windows of a scope, one balance a period. */
  async balance(options: { root?: string; scope: string; signal?: AbortSignal }): Promise<Balance[]> {
    const { scope, signal } = given(options, ['root', 'scope']);
    const root = validateRoot(options.root);
    const limited = await this.#limitsOf(root, scope);
    return present<Balance[]>(await this.backend.balance({ root, scope: limited, signal }), false);
  }

  /** An operation, until `retentionMs` after its end; null after that. */
  async get(ref: BudgetRef, options: CallOptions = {}): Promise<BudgetRecord | null> {
    const { signal } = given(options, []);
    return present<BudgetRecord | null>(await this.backend.get({ ...validateRef(ref), signal }), false);
  }

  /** Operations in no order, page by page; what is there all the while is listed at least once. */
  async list(options: BudgetListOptions = {}): Promise<BudgetListResult> {
    const { state, cursor = null, limit = 100, signal } = given(options, LIST_OPTIONS);
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
    return present<BudgetListResult>({ records, cursor: page.cursor }, false);
  }

  /** Frees the memory of what has ended and tells which holds expired. Needed only with `reaper: false`. */
  async reap(options: ReapOptions = {}): Promise<ReapResult> {
    const { signal, max = 1_000 } = given(options, ['root', 'max']);
    const root = validateRoot(options.root);
    const expired: string[] = [];
    let purged = 0;
    // Each step is told by itself: the next one may fail, and none tells again.
    const tell = (step: ReapResult): void => {
      if (step.expired.length > 0) this.#onExpired(root, step.expired);
    };
    for (let left = validateCount('max', max, 100_000); left > 0; left -= REAP_BATCH) {
      const step = await this.backend.reap({ root, max: Math.min(left, REAP_BATCH), signal, onLate: tell });
      tell(step);
      expired.push(...step.expired);
      purged += step.purged;
      if (step.nextInMs !== 0) break;
    }
    return { expired, purged };
  }

  /** Adds up everything that a root remembers. Reads all of it in one step: for tests and operators, not for a request. */
  async verify(root?: string, options: CallOptions = {}): Promise<VerifyResult> {
    const { signal } = given(options, []);
    return this.backend.verify({ root: validateRoot(root), signal });
  }

  /**
   * Reserves, runs the body, finalizes what it cost; keeps the hold alive meanwhile. A body that throws settles by
   * `onThrow`; one that settles the hold itself is not settled again. An id runs one body at a time, and again only
   * where nothing was spent under it.
   *
   * @throws BudgetExceededError when there is no room, BudgetConflictError when the id's work was done before, or is
   * being done (`reason: 'pending'`); the body has not run then. BudgetUnavailableError when nothing could be reserved.
   * What the body gives is not lost to an outage that comes after it: it is finalized in the background then, for 15
   * minutes.
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

  /** @internal `run()` for decorators, which know more of their body. */
  async runBody<T>(
    fn: (hold: CurrentHold) => T | Promise<T>,
    options: RunOptions<T>,
    facts?: BodyFacts,
  ): Promise<T> {
    validateFunction('run(fn, options): fn', fn);
    const { actual, overage, onThrow } = given(options, RUN_OPTIONS);
    if (actual !== undefined) validateFunction('actual', actual);
    if (overage !== undefined) validateOneOf('overage', overage, ['record', 'cap']);
    if (onThrow !== undefined) validateOnThrow(onThrow);
    return this.#runs.run(fn, options, facts ?? { args: [options] });
  }

  /**
   * Shutdown in order: nothing new is reserved, runs may end and settle for `drainMs`; what is held can be settled
   * all the while. Connections close after this, in a later phase of Nest's.
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
  ): Promise<ReserveResult | RunsElsewhere> {
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
    const limited = await this.#book.limitsOf(valid.root, valid.scopes);
    this.#reaper?.touch(valid.root);
    try {
      const result = await this.backend.reserve({ ...valid, scopes: limited, signal });
      return present<ReserveResult | RunsElsewhere>(result, isBigint(amount));
    } catch (error) {
      if (error instanceof BudgetUnavailableError && (mode === 'run' || !hasOwnId)) this.#undo(valid, error);
      throw error;
    }
  }

  /** It may have run, and nobody will settle it: its hold would only stand in the way until its TTL. */
  #undo(
    { root, id, nonce, ttlMs }: { root: string; id: string; nonce: string; ttlMs: number },
    fault: unknown,
  ): void {
    const abort = (): Promise<boolean> =>
      this.backend.abort({ root, id, generation: 0, nonce }).then(() => true);
    this.#runs.later(abort, ttlMs, fault);
  }

  /** Once: of a Redis that is away whoever waits for an answer is told, but of this nobody else would be. */
  readonly #onReaperFault = (error: unknown): void => {
    const fault = BudgetUnavailableError.from(error);
    if (fault.code !== 'Internal' || this.#toldReaperFault) return;
    this.#toldReaperFault = true;
    this.#logger.warn(
      `Budgets that have ended cannot be cleared away, every round tries again: ${fault.message}`,
    );
  };

  readonly #onExpired = (root: string, ids: readonly string[]): void => this.events.onExpired?.(root, ids);

  #refuseWhenShuttingDown(): void {
    if (!this.#isShuttingDown) return;
    throw new BudgetUnavailableError({
      code: 'ServiceUnavailable',
      message: 'The app is shutting down: nothing new is reserved.',
    });
  }

  async #limitsOf(root: string, scope: unknown): Promise<Awaited<ReturnType<LimitBook['limitsOf']>>[number]> {
    const name = validateScope('scope', scope);
    const [limited] = await this.#book.limitsOf(root, [name]);
    return limited ?? { scope: name, limits: [] };
  }
}

const isBigint = (amount: Amount): boolean => typeof amount === 'bigint';

/** A call without its options object, or with one that has a misspelt name, fails as every other wrong call does. */
const given = <Options extends CallOptions>(
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
    // What Redis has not answered yet it is not sent again.
    if (isOwed(fault)) throw fault;
  }
  return attempt();
}
