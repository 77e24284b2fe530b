import { setTimeout as sleep } from 'node:timers/promises';
import { Logger, type OnModuleDestroy } from '@nestjs/common';
import { BackgroundRetries } from '../background-retries.js';
import { within } from '../drain.js';
import { hashKey } from '../keys.js';
import { isOwed } from '../owed.js';
import { SyncGuardError } from '../syncguard.errors.js';
import { type CallOptions, callOptions } from '../validate.js';
import type { BudgetBackend } from './budget.backend.js';
import { BudgetConflictError, BudgetExceededError, BudgetUnavailableError } from './budget.errors.js';
import { LimitBook } from './budget.limits.js';
import type { ResolvedBudgetOptions } from './budget.options.js';
import { BudgetReaper } from './budget.reaper.js';
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
  OveragePolicy,
  ReapOptions,
  ReapResult,
  RefundResult,
  Reserved,
  ReserveOptions,
  ReserveResult,
  SetLimitOptions,
  SetLimitResult,
  VerifyResult,
} from './budget.types.js';
import {
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

/** How long a hold lasts without a sign of life. */
export const DEFAULT_TTL_MS = 60_000;
/** Pauses between the tries of a finalize or abort that Redis did not answer; each try waits for its answer besides. */
const RETRY_PAUSES_MS = [50, 250];
/** How long a run that Redis could not be told of is tried again: as long as a hold is remembered by default. */
const SETTLE_WITHIN_MS = 15 * 60_000;
/** A batch of one script call. */
const REAP_BATCH = 100;

/** What `run()` reserves, and how it settles. */
export interface RunOptions<T> extends ReserveOptions {
  /** What the result really cost. Default: the reserved amount. */
  actual?: (result: T) => Amount;
  /** When that is more than the hold. Default: `'record'`. */
  overage?: Exclude<OveragePolicy, 'reject'>;
  /** When the body throws: give the hold back, or count it as spent. Default: `'abort'`. */
  onThrow?: 'abort' | 'finalize-estimate';
}

export interface BudgetServiceOptions extends ResolvedBudgetOptions {
  /** How long a shutdown waits for runs. Default: not at all. */
  readonly shutdown?: { readonly drainMs: number };
}

export interface BudgetEvents {
  /** Holds that nobody settled: each told once, by the process that reaped it, right after it has. */
  onExpired?(root: string, ids: readonly string[]): void;
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
  readonly #runs = new Set<Promise<unknown>>();
  readonly #drainMs: number;
  readonly #book: LimitBook;
  readonly #reaper: BudgetReaper | undefined;
  readonly #retries = new BackgroundRetries();
  #isShuttingDown = false;
  #toldReaperFault = false;

  constructor(
    private readonly backend: BudgetBackend,
    options: BudgetServiceOptions,
    private readonly events: BudgetEvents = {},
  ) {
    this.#drainMs = options.shutdown?.drainMs ?? 0;
    this.#book = new LimitBook(options.limits);
    if (options.reaper)
      this.#reaper = new BudgetReaper(backend, options.reaper.everyMs, this.#onExpired, this.#onReaperFault);
  }

  /** Holds an amount in every scope and period, or in none. A denial leaves no trace. Refused once the app shuts down. */
  async reserve(options: ReserveOptions): Promise<ReserveResult> {
    const { scopes, amount, signal, ttlMs = DEFAULT_TTL_MS } = given(options);
    const valid = {
      root: validateRoot(options.root),
      scopes: validateScopes(scopes),
      amount: validateAmount('amount', amount),
      id: options.id === undefined ? createId() : validateId(options.id),
      ttlMs: validateTtl(ttlMs),
      meta: validateMeta(options.meta),
    };
    this.#refuseWhenShuttingDown();
    const limited = await this.#book.limitsOf(valid.root, valid.scopes);
    this.#reaper?.touch(valid.root);
    try {
      return present<ReserveResult>(
        await this.backend.reserve({ ...valid, scopes: limited, signal }),
        isBigint(amount),
      );
    } catch (error) {
      // It may have run, under an id that nobody knows: its hold would only stand in the way until its TTL.
      if (options.id === undefined && error instanceof BudgetUnavailableError)
        void this.abort(valid).catch(() => {});
      throw error;
    }
  }

  /**
   * Turns a hold into what was really spent. Safe to repeat; repeated by itself when Redis does not answer.
   *
   * @param ref - a result of `reserve`, or `{ root?, id }`
   */
  async finalize(ref: BudgetRef, actual: Amount, options: FinalizeOptions = {}): Promise<FinalizeResult> {
    const { overage = 'record', late = 'record', signal } = given(options);
    const request = {
      ...validateRef(ref),
      actual: validateAmount('actual', actual),
      overage: validateOneOf('overage', overage, ['record', 'cap', 'reject']),
      late: validateOneOf('late', late, ['record', 'if_available', 'reject']),
      signal,
    };
    this.#reaper?.touch(request.root);
    return present<FinalizeResult>(await retried(() => this.backend.finalize(request)), isBigint(actual));
  }

  /** Gives a hold back. Safe to repeat; repeated by itself when Redis does not answer. */
  async abort(ref: BudgetRef, options: CallOptions = {}): Promise<AbortResult> {
    const { signal } = given(options);
    const request = { ...validateRef(ref), signal };
    return present<AbortResult>(await retried(() => this.backend.abort(request)), false);
  }

  /** Replaces the rest of a hold's life, in ms, 1 to 2^31 - 1. Never brings an expired one back. */
  async extend(ref: BudgetRef, ttlMs: number, options: CallOptions = {}): Promise<ExtendHoldResult> {
    const { signal } = given(options);
    const request = { ...validateRef(ref), ttlMs: validateTtl(ttlMs), signal };
    return present<ExtendHoldResult>(await this.backend.extend(request), false);
  }

  /** Spends an amount in one step, for a cost that is known before. */
  async charge(options: ChargeOptions): Promise<ChargeResult> {
    const { scopes, amount, id, mode = 'enforce', signal } = given(options);
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
    const { signal } = given(options);
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
    const { scope, period, amount, id, signal } = given(options);
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
    const { scope, period, limit, signal } = given(options);
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
    const { scope, signal } = given(options);
    const root = validateRoot(options.root);
    const limited = await this.#limitsOf(root, scope);
    return present<Balance[]>(await this.backend.balance({ root, scope: limited, signal }), false);
  }

  /** An operation, until `retentionMs` after its end; null after that. */
  async get(ref: BudgetRef, options: CallOptions = {}): Promise<BudgetRecord | null> {
    const { signal } = given(options);
    return present<BudgetRecord | null>(await this.backend.get({ ...validateRef(ref), signal }), false);
  }

  /** Operations in no order, page by page; what is there all the while is listed at least once. */
  async list(options: BudgetListOptions = {}): Promise<BudgetListResult> {
    const { state, cursor = null, limit = 100, signal } = given(options);
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
    const { signal, max = 1_000 } = given(options);
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
    const { signal } = given(options);
    return this.backend.verify({ root: validateRoot(root), signal });
  }

  /**
   * Reserves, runs the body, finalizes what it cost; keeps the hold alive meanwhile. When the body throws, its
   * error leaves, and the hold goes back (or is counted: `onThrow`).
   *
   * @throws BudgetExceededError when there is no room, BudgetConflictError when the id's work was done before;
   * the body has not run then. BudgetUnavailableError when nothing could be reserved. What the body gives is not
   * lost to an outage that comes after it: it is finalized in the background then, for 15 minutes.
   * @example
   * const answer = await budgets.run(
   *   { scopes: [`user:${user}`], amount: maxTokens, actual: (result) => result.usage.totalTokens },
   *   () => llm.complete(prompt, maxTokens),
   * );
   */
  async run<T>(spec: RunOptions<T>, fn: (hold: Reserved) => T | Promise<T>): Promise<T> {
    const run = this.#run(spec, fn);
    this.#runs.add(run);
    try {
      return await run;
    } finally {
      this.#runs.delete(run);
    }
  }

  /**
   * Shutdown in order: nothing new is reserved, runs may end and settle for `drainMs`; what is held can be settled
   * all the while. Connections close after this, in a later phase of Nest's.
   */
  async onModuleDestroy(): Promise<void> {
    this.#isShuttingDown = true;
    const reaped = this.#reaper?.stop();
    await within(this.#drainMs, [...this.#runs]);
    if (this.#runs.size > 0)
      this.#logger.warn(
        `Still going after ${this.#drainMs} ms of shutdown: ${this.#runs.size} budget run${this.#runs.size === 1 ? '' : 's'}. What they hold goes back by its TTL.`,
      );
    await this.#retries.flush();
    await reaped;
  }

  async #run<T>(spec: RunOptions<T>, fn: (hold: Reserved) => T | Promise<T>): Promise<T> {
    const { actual, overage = 'record', onThrow = 'abort', ...options } = given(spec);
    validateFunction('run(spec, fn): fn', fn);
    if (actual !== undefined) validateFunction('actual', actual);
    validateOneOf('overage', overage, ['record', 'cap']);
    validateOneOf('onThrow', onThrow, ['abort', 'finalize-estimate']);
    const hold = await this.reserve(options);
    if (!hold.ok && hold.reason === 'exceeded') throw new BudgetExceededError(hold);
    if (!hold.ok) throw new BudgetConflictError(hold.reason, hold.record);
    const stop = this.#keepAlive(hold, options.ttlMs ?? DEFAULT_TTL_MS);
    try {
      const result = await this.#settledIfThrown(hold, onThrow, () => fn(hold));
      // Whoever cannot say what it cost has spent what was reserved.
      const cost = await this.#settledIfThrown(hold, 'finalize-estimate', () =>
        costOf(actual, result, hold.amount),
      );
      await this.#finalizeNowOrLater(hold, cost, overage);
      return result;
    } finally {
      stop();
    }
  }

  /** The work is done and its answer must not be lost: what Redis cannot be told now is told later. */
  async #finalizeNowOrLater(hold: Reserved, cost: Amount, overage: 'record' | 'cap'): Promise<void> {
    const settle = async (): Promise<void> => {
      const finalized = await this.finalize(hold, cost, { overage });
      if (finalized.ok) return;
      throw new BudgetConflictError(finalized.reason, 'record' in finalized ? finalized.record : undefined);
    };
    try {
      await settle();
    } catch (error) {
      if (!(error instanceof BudgetUnavailableError)) throw error;
      this.#logger.warn(
        `The budget of ${hashKey(hold.id)} could not be settled yet, it is tried again in the background: ${error.message}`,
      );
      const settledOrHopeless = (): Promise<boolean> =>
        settle().then(
          () => true,
          (reason: unknown) => {
            if (reason instanceof BudgetUnavailableError) throw reason;
            return true;
          },
        );
      this.#retries.start(settledOrHopeless, SETTLE_WITHIN_MS, error);
    }
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

  async #settledIfThrown<T>(
    hold: Reserved,
    how: 'abort' | 'finalize-estimate',
    fn: () => T | Promise<T>,
  ): Promise<T> {
    try {
      return await fn();
    } catch (error) {
      const settling = how === 'abort' ? this.abort(hold) : this.finalize(hold, hold.amount);
      // The body's error is the one to tell; a hold that cannot be settled now goes back by its TTL.
      await settling.catch(() => {});
      throw error;
    }
  }

  /** Extends at a third of the TTL: one beat may be lost. A hold that ended all the same is settled late. */
  #keepAlive(hold: Reserved, ttlMs: number): () => void {
    const timer = setInterval(
      () => {
        this.extend(hold, ttlMs).then(
          (result) => result.ok || clearInterval(timer),
          () => {},
        );
      },
      Math.max(1, ttlMs / 3),
    ).unref();
    return () => clearInterval(timer);
  }
}

function costOf<T>(actual: ((result: T) => Amount) | undefined, result: T, amount: Amount): Amount {
  const cost = actual ? actual(result) : amount;
  validateAmount('actual(result)', cost);
  return cost;
}

const isBigint = (amount: Amount): boolean => typeof amount === 'bigint';

/** A call without its options object fails as every other wrong call does. */
const given = <Options extends CallOptions>(options: Options): Options => checked(() => callOptions(options));

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
