import { Logger } from '@nestjs/common';
import { BackgroundRetries, retried } from '../core/background-retries.js';
import { settleWithin } from '../core/settle-within.js';
import type { StreamProgress } from '../method/wrap-method.js';
import { shownHash } from '../core/keys.js';
import { callOptions, invalidOption } from '../core/validate.js';
import { bodyBegins } from '../telemetry/body-runs.js';
import { BudgetConflictError, BudgetExceededError, BudgetUnavailableError } from './budget.errors.js';
import type { ReserveOutcome } from './budget.backend.js';
import type { BudgetEvents } from './budget.options.js';
import { type BodyEnd, checkSettling, type OnThrow, SETTLING, settlementOf } from './budget.settlement.js';
import type * as budget from './budget.types.js';
import { checked, DEFAULT_TTL_MS } from './budget.validate.js';
import { BudgetRun, type CurrentHold, runOn, type Settled } from './current-hold.js';

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

/** What is known of a body: its arguments, and how far its stream has come. */
export interface BodyFacts {
  readonly args: readonly unknown[];
  readonly stream?: StreamProgress;
}

/** Checks a call of `run()`. A decorator has checked its options when its class was defined. */
export const checkRun = <T>(fn: unknown, options: RunOptions<T>): void =>
  checked(() => {
    if (typeof fn !== 'function') throw invalidOption('run(fn, options): fn', 'a function', fn);
    checkSettling(callOptions(options, RUN_OPTIONS));
  });

/** Runs bodies on budgets. Each run reserves a hold, extends it while the body runs, and settles it once. */
export class BudgetRuns {
  readonly #logger = new Logger('SyncGuard');
  readonly #running = new Set<Promise<unknown>>();
  readonly #byId = new Map<string, Set<BudgetRun>>();
  readonly retries = new BackgroundRetries();

  constructor(
    private readonly steps: RunSteps,
    private readonly reserve: (options: budget.ReserveOptions) => Promise<ReserveOutcome>,
    private readonly events: BudgetEvents,
    private readonly maxHoldMs = Infinity,
  ) {}

  run<T>(fn: (hold: CurrentHold) => T | Promise<T>, options: RunOptions<T>, facts: BodyFacts): Promise<T> {
    const run = this.#run(fn, options, facts).finally(() => this.#running.delete(run));
    this.#running.add(run);
    return run;
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
    { actual, overage, onThrow = 'auto', idTtlMs, maxHoldMs = this.maxHoldMs, ...options }: RunOptions<T>,
    { args, stream }: BodyFacts,
  ): Promise<T> {
    // A hold of 0 would pass a limit that is used up.
    const amount = options.amount === 0 ? 1 : options.amount;
    const endMs = performance.now() + maxHoldMs;
    const ttlMs = Math.min(options.ttlMs ?? DEFAULT_TTL_MS, maxHoldMs);
    const reserved = reservedOrThrow(await this.reserve({ ...options, ttlMs, amount }));
    const run = new BudgetRun(reserved, stream, this.events);
    const { hold } = run;
    const runs = this.#byId.get(hold.id) ?? new Set();
    this.#byId.set(hold.id, runs.add(run));
    const stop = this.#keepAlive(hold, ttlMs, endMs);
    const how = { run, args, actual, onThrow };
    const tell = bodyBegins(this.events.emit, 'budget', hold.id);
    try {
      const result = await runOn(hold, fn).catch(async (error: unknown) => {
        tell?.(true);
        const end = { ...how, thrown: { error }, result: undefined };
        await this.#settle(end, { overage, idTtlMs }).catch(() => {});
        throw error;
      });
      tell?.(false);
      await this.#settle({ ...how, thrown: undefined, result }, { overage, idTtlMs });
      return result;
    } finally {
      stop();
      runs.delete(run);
      if (runs.size === 0) this.#byId.delete(hold.id);
    }
  }

  /**
   * Finalizes or aborts. If Redis does not answer, the cost is finalized in the background, because the result of the body
   * must not be lost. If the abort fails, the hold expires by its TTL.
   */
  async #settle(end: BodyEnd, options: budget.FinalizeOptions): Promise<void> {
    const { hold } = end.run;
    if (await end.run.close()) return;
    const cost = await settlementOf(end);
    if (cost === 'abort') return void (await this.steps.abort(hold).catch(() => {}));
    const finalize = (): Promise<budget.FinalizeResult> => this.steps.finalize(hold, cost, options);
    const finalized = await finalize().catch((error: unknown) => {
      if (!(error instanceof BudgetUnavailableError)) throw error;
      this.#logger.warn(
        `BUDGET_NOT_SETTLED: Budget operation ${shownHash(hold.id)} could not be settled yet, and is retried in the background. ${error.message}`,
      );
      this.retries.start(() => finalize().then(() => true), SETTLE_WITHIN_MS, error);
    });
    if (!finalized || finalized.ok) return;
    const record = 'record' in finalized ? finalized.record : undefined;
    throw new BudgetConflictError(finalized.reason, record, { bodyHasRun: true });
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
