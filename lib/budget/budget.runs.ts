import { Logger } from '@nestjs/common';
import { BackgroundRetries, retried } from '../core/background-retries.js';
import { settleWithin } from '../core/settle-within.js';
import type { StreamProgress } from '../method/wrap-method.js';
import { shownHash } from '../core/keys.js';
import { callOptions, invalidOption } from '../core/validate.js';
import { bodyBegins } from '../telemetry/body-runs.js';
import { BudgetConflictError, BudgetExceededError, BudgetUnavailableError } from './budget.errors.js';
import type { Outcome, ReserveOutcome } from './budget.backend.js';
import type { BudgetEvents } from './budget.options.js';
import { type BodyEnd, checkSettling, type OnThrow, SETTLING, settlementOf } from './budget.settlement.js';
import type * as budget from './budget.types.js';
import { checked, DEFAULT_TTL_MS } from './budget.validate.js';
import { CostNotes, type CurrentHold, runOn, withNotes } from './current-hold.js';

const RUN_OPTIONS = ['root', 'scopes', 'amount', 'id', 'meta', ...SETTLING] as const;
/** How long settling is retried in the background. By default an operation is remembered for as long. */
const SETTLE_WITHIN_MS = 15 * 60_000;

/** Options of `run()`: the amount that it reserves, and how it settles. */
export interface RunOptions<T> extends Omit<budget.ReserveOptions, 'renew'> {
  /**
   * Returns the actual cost of the result. For a stream under `@WithBudget()` it is called with the last item. It also gets
   * the sum that the body has noted with `currentHold().spent()`, and what a generator has returned. Where several
   * providers were paid, add up what it should: `(answer, { noted }) => noted + answer.cost`. The noted sum is the cost
   * where it is greater. If `actual` throws or returns no
   * amount, an error is logged, and the cost is the estimate, or the noted sum where that is greater. It may fail
   * because the stream did not end or a signal was aborted, so that the result is partial. Then nothing is logged, and
   * the cost is the noted sum, or the estimate if nothing was noted. Default: the noted sum, or the reserved amount if
   * nothing was noted.
   */
  actual?: (result: T, cost: Pick<CurrentHold, 'noted' | 'returned'>) => budget.Amount;
  /** How long the id is kept after the work was paid for. In ms, 1 to 400 days. Default: `budget.idTtlMs`, 24 hours. */
  idTtlMs?: number;
  /**
   * The longest time for which the hold is kept, extensions included. If the body still runs then, the hold expires, and
   * the cost is counted late. In ms, at least 1. Default: `budget.maxHoldMs`.
   */
  maxHoldMs?: number;
  /**
   * How a cost above the hold is counted. `'record'` commits all of it. `'cap'` commits the part that fits into
   * the limits. Default: `'record'`.
   */
  overage?: Exclude<budget.OveragePolicy, 'reject'>;
  /**
   * How to settle when the body throws.
   *
   * - `'auto'`: a stream that has sent an item costs `actual(last item)` or what was noted, whichever is greater.
   *   Without either it costs the estimate. A body that was aborted or timed out costs what was noted, else the
   *   estimate. Any other body costs only what was noted.
   * - `'abort'`: nothing is spent.
   * - `'finalize-estimate'`: the estimate is spent, or the noted sum where that is greater.
   * - A function returns the cost, or `'abort'`.
   *
   * Default: `'auto'`.
   */
  onThrow?: OnThrow;
}

export interface RunSteps {
  finalize(
    ref: budget.BudgetRef,
    actual: budget.Amount,
    options: budget.FinalizeOptions,
  ): Promise<budget.FinalizeResult>;
  abort(ref: budget.BudgetRef): Promise<budget.AbortResult>;
  extend(ref: budget.BudgetRef, ttlMs: number): Promise<budget.ExtendHoldResult>;
}

/** What a decorator knows of its body. */
export interface BodyFacts {
  readonly args: readonly unknown[];
  readonly stream?: StreamProgress;
}

type Settled = Outcome<budget.FinalizeResult | budget.AbortResult>;

/** A body that is running on a hold. */
class BudgetRun {
  readonly #settling: Promise<boolean>[] = [];

  constructor(
    readonly hold: CurrentHold,
    readonly notes: CostNotes,
  ) {}

  /** Follows a call of the app that settles this hold, or another hold under the same id. */
  watch(settling: Promise<Settled>): void {
    const { generation } = this.hold;
    const isOwn = (result: Settled): boolean => result.ok && result.generation === generation;
    this.#settling.push(settling.then(isOwn, () => false));
  }

  async settledByHand(): Promise<boolean> {
    return (await Promise.all(this.#settling)).includes(true);
  }
}

/** Runs bodies on budgets. Each run reserves a hold, extends it while the body runs, and settles it once. */
export class BudgetRuns {
  readonly #logger = new Logger('SyncGuard');
  readonly #running = new Set<Promise<unknown>>();
  readonly #byId = new Map<string, Set<BudgetRun>>();
  readonly retries = new BackgroundRetries();

  constructor(
    private readonly steps: RunSteps,
    private readonly reserve: (options: Omit<budget.ReserveOptions, 'renew'>) => Promise<ReserveOutcome>,
    private readonly events: BudgetEvents,
    private readonly maxHoldMs = Infinity,
  ) {}

  async run<T>(
    fn: (hold: CurrentHold) => T | Promise<T>,
    options: RunOptions<T>,
    facts: BodyFacts = { args: [options] },
  ): Promise<T> {
    checked(() => {
      if (typeof fn !== 'function') throw invalidOption('run(fn, options): fn', 'a function', fn);
      checkSettling(callOptions<RunOptions<T>>(options, RUN_OPTIONS));
    });
    const run = this.#run(fn, options, facts);
    this.#running.add(run);
    try {
      return await run;
    } finally {
      this.#running.delete(run);
    }
  }

  /**
   * Ends a hold by `attempt`, which is repeated up to twice when Redis does not answer. If a body is running on the hold,
   * its run does not settle it again.
   */
  settle<T extends Settled>(
    { root, id }: { root: string; id: string },
    attempt: () => Promise<T>,
  ): Promise<T> {
    const settling = retried(attempt);
    for (const run of this.#byId.get(id) ?? []) if (run.hold.root === root) run.watch(settling);
    return settling;
  }

  /** Waits up to `drainMs` for running bodies. Then makes a last attempt at each background retry. */
  async drain(drainMs: number): Promise<void> {
    await settleWithin(drainMs, [...this.#running]);
    if (this.#running.size > 0)
      this.#logger.warn(
        `SHUTDOWN_BUDGETS_IN_USE: After ${drainMs} ms of shutdown ${this.#running.size} budget run${this.#running.size === 1 ? ' is' : 's are'} still going. Their holds expire by their TTL. To wait longer, raise \`shutdown.drainMs\`.`,
      );
    await this.retries.flush();
  }

  async #run<T>(
    fn: (hold: CurrentHold) => T | Promise<T>,
    {
      actual,
      overage = 'record',
      onThrow = 'auto',
      idTtlMs,
      maxHoldMs = this.maxHoldMs,
      ...options
    }: RunOptions<T>,
    { args, stream }: BodyFacts,
  ): Promise<T> {
    // A hold of 0 would pass a limit that is used up.
    const amount = options.amount === 0 ? 1 : options.amount;
    const endMs = performance.now() + maxHoldMs;
    const ttlMs = Math.min(options.ttlMs ?? DEFAULT_TTL_MS, maxHoldMs);
    const run = this.#begin(reservedOrThrow(await this.reserve({ ...options, ttlMs, amount })), stream);
    const { hold, notes } = run;
    const stop = this.#keepAlive(hold, ttlMs, endMs);
    const how = { hold, notes, stream, args, actual, onThrow };
    const tell = bodyBegins(this.events.emit, 'budget', hold.id);
    try {
      const result = await runOn(hold, fn).catch(async (error: unknown) => {
        tell?.(true);
        await this.#settle(run, { ...how, thrown: { error }, result: undefined }, { overage, idTtlMs }).catch(
          () => {},
        );
        throw error;
      });
      tell?.(false);
      await this.#settle(run, { ...how, thrown: undefined, result }, { overage, idTtlMs });
      return result;
    } finally {
      stop();
      this.#end(run);
    }
  }

  #begin(reserved: budget.Reserved, stream: StreamProgress | undefined): BudgetRun {
    const notes = new CostNotes(
      (error) => this.#unreadable(reserved, error),
      () =>
        this.#logger.warn(
          `BUDGET_COST_TOO_LATE: A cost of budget operation ${shownHash(reserved.id)} was noted after its body had ended, so it is not counted. Await the work before the body ends.`,
        ),
    );
    const run = new BudgetRun(withNotes(reserved, notes, stream), notes);
    const others = this.#byId.get(reserved.id);
    if (others) others.add(run);
    else this.#byId.set(reserved.id, new Set([run]));
    return run;
  }

  #end(run: BudgetRun): void {
    const runs = this.#byId.get(run.hold.id);
    runs?.delete(run);
    if (runs?.size === 0) this.#byId.delete(run.hold.id);
  }

  async #settle(run: BudgetRun, end: BodyEnd, options: budget.FinalizeOptions): Promise<void> {
    const { hold, notes } = run;
    notes.close();
    if (await run.settledByHand()) return;
    const cost = await settlementOf(end);
    // If the abort fails, the hold expires by its TTL.
    if (cost === 'abort') await this.steps.abort(hold).catch(() => {});
    else await this.#finalizeNowOrLater(hold, cost, options);
  }

  /**
   * Finalizes now. If Redis does not answer, this retries in the background and does not throw, because the result of
   * the body must not be lost.
   */
  async #finalizeNowOrLater(
    hold: budget.Reserved,
    cost: budget.Amount,
    options: budget.FinalizeOptions,
  ): Promise<void> {
    const settle = async (): Promise<void> => {
      const finalized = await this.steps.finalize(hold, cost, options);
      if (finalized.ok) return;
      const record = 'record' in finalized ? finalized.record : undefined;
      throw new BudgetConflictError(finalized.reason, record, { bodyHasRun: true });
    };
    try {
      await settle();
    } catch (error) {
      if (!(error instanceof BudgetUnavailableError)) throw error;
      this.#logger.warn(
        `BUDGET_NOT_SETTLED: Budget operation ${shownHash(hold.id)} could not be settled yet, and is retried in the background. ${error.message}`,
      );
      const settledOrHopeless = async (): Promise<boolean> => {
        await settle().catch((reason: unknown) => {
          if (reason instanceof BudgetUnavailableError) throw reason;
        });
        return true;
      };
      this.retries.start(settledOrHopeless, SETTLE_WITHIN_MS, error);
    }
  }

  #unreadable({ id }: budget.Reserved, error: unknown): void {
    this.#logger.error(
      `BUDGET_COST_UNREADABLE: A cost of budget operation ${shownHash(id)} could not be read. At least the estimate is counted, unless \`actual\` or \`onThrow\` gives another cost. Correct \`actual\`, \`onThrow\` or the amount of \`spent()\`: ${error instanceof Error ? error.message : typeof error}`,
    );
    this.events.onUnreadableCost?.(id);
  }

  /**
   * Extends the hold at every third of its TTL, so that one failed attempt does no harm. A hold that expires
   * nevertheless, or at `endMs`, is finalized late.
   */
  #keepAlive(hold: budget.Reserved, ttlMs: number, endMs: number): () => void {
    const timer = setInterval(
      () => {
        const leftMs = Math.floor(endMs - performance.now());
        if (leftMs < 1) return clearInterval(timer);
        this.steps.extend(hold, Math.min(ttlMs, leftMs)).then(
          (result) => result.ok || clearInterval(timer),
          () => {},
        );
      },
      Math.max(1, ttlMs / 3),
    ).unref();
    return () => clearInterval(timer);
  }
}

function reservedOrThrow(result: ReserveOutcome): budget.Reserved {
  if (result.ok) return result;
  if (result.reason === 'exceeded') throw new BudgetExceededError(result);
  throw new BudgetConflictError(result.reason, result.record, {
    endsInMs: result.reason === 'pending' ? result.endsInMs : undefined,
  });
}
