import { Logger } from '@nestjs/common';
import { type Attempt, BackgroundRetries } from '../background-retries.js';
import { settleWithin } from '../settle-within.js';
import type { StreamProgress } from '../wrap-method.js';
import { hashKey } from '../keys.js';
import { BudgetConflictError, BudgetExceededError, BudgetUnavailableError } from './budget.errors.js';
import type { RunsElsewhere } from './budget.backend.js';
import { type OnThrow, settlementOf } from './budget.settlement.js';
import type {
  AbortResult,
  Amount,
  BudgetRef,
  ExtendHoldResult,
  FinalizeOptions,
  FinalizeResult,
  OveragePolicy,
  Reserved,
  ReserveOptions,
  ReserveResult,
} from './budget.types.js';
import { CostNotes, type CurrentHold, runOn, withNotes } from './current-hold.js';

/** How long a hold lasts without a sign of life. */
export const DEFAULT_TTL_MS = 60_000;
/** How long a run that Redis could not be told of is tried again: as long as a hold is remembered by default. */
const SETTLE_WITHIN_MS = 15 * 60_000;

/** What `run()` reserves, and how it settles. */
export interface RunOptions<T> extends Omit<ReserveOptions, 'renew'> {
  /**
   * What the result really cost; of a stream under `@WithBudget` by its last item. If it throws or gives no amount, the
   * estimate is counted and the log has an error. Default: what the body noted with `currentHold().spent()`, or else
   * the reserved amount.
   */
  actual?: (result: T) => Amount;
  /** When that is more than the hold. Default: `'record'`. */
  overage?: Exclude<OveragePolicy, 'reject'>;
  /**
   * When the body throws. `'auto'`: a stream of which an item has left is paid by the greater of `actual(last item)` and
   * what was noted, or else by the estimate; a body that was aborted or timed out by what was noted, or else by the
   * estimate; any other gives back all but what was noted. `'abort'`: gives all back. `'finalize-estimate'`: counts the
   * estimate. A function says what it cost, or `'abort'`. Default: `'auto'`.
   */
  onThrow?: OnThrow;
}

/** The service's operations, as runs use them. */
export interface RunSteps {
  reserve(options: Omit<ReserveOptions, 'renew'>): Promise<ReserveResult | RunsElsewhere>;
  finalize(ref: BudgetRef, actual: Amount, options: FinalizeOptions): Promise<FinalizeResult>;
  abort(ref: BudgetRef): Promise<AbortResult>;
  extend(ref: BudgetRef, ttlMs: number): Promise<ExtendHoldResult>;
}

/** What a decorator knows of its body. */
export interface BodyFacts {
  readonly args: readonly unknown[];
  readonly stream?: StreamProgress;
}

type SettledByHand = Promise<{ readonly ok: boolean; readonly generation?: number }>;

/** A body that is running on a hold. */
class BudgetRun {
  isSettled = false;
  readonly #settling = new Set<Promise<void>>();

  constructor(
    readonly hold: CurrentHold,
    readonly notes: CostNotes,
  ) {}

  /** Its hold, or another one under the same id, is being settled by hand. */
  watch(settling: SettledByHand): void {
    const { generation } = this.hold;
    const seen = settling.then(
      (result) => void (this.isSettled ||= result.ok && result.generation === generation),
      () => {},
    );
    this.#settling.add(seen);
  }

  async settledByHand(): Promise<boolean> {
    await Promise.all(this.#settling);
    return this.isSettled;
  }
}

/** Bodies that run on budgets: each reserves, is kept alive, and settles once. */
export class BudgetRuns {
  readonly #logger = new Logger('SyncGuard');
  readonly #going = new Set<Promise<unknown>>();
  readonly #byId = new Map<string, Set<BudgetRun>>();
  readonly #retries = new BackgroundRetries();

  constructor(
    private readonly steps: RunSteps,
    private readonly onUnreadableCost: (id: string) => void,
  ) {}

  async run<T>(
    fn: (hold: CurrentHold) => T | Promise<T>,
    options: RunOptions<T>,
    facts: BodyFacts,
  ): Promise<T> {
    const run = this.#run(fn, options, facts);
    this.#going.add(run);
    try {
      return await run;
    } finally {
      this.#going.delete(run);
    }
  }

  /** A hold is being settled by hand: if its body does that, it is not settled again. */
  notice({ root, id }: { readonly root: string; readonly id: string }, settling: SettledByHand): void {
    for (const run of this.#byId.get(id) ?? []) if (run.hold.root === root) run.watch(settling);
  }

  /** Does in the background what Redis did not answer in the foreground. */
  later(attempt: Attempt, forMs: number, fault: unknown): void {
    this.#retries.start(attempt, forMs, fault);
  }

  /** Lets runs end and settle for `drainMs`, and tries once more what could not be settled. */
  async drain(drainMs: number): Promise<void> {
    await settleWithin(drainMs, [...this.#going]);
    if (this.#going.size > 0)
      this.#logger.warn(
        `Still going after ${drainMs} ms of shutdown: ${this.#going.size} budget run${this.#going.size === 1 ? '' : 's'}. What they hold goes back by its TTL.`,
      );
    await this.#retries.flush();
  }

  async #run<T>(
    fn: (hold: CurrentHold) => T | Promise<T>,
    { actual, overage = 'record', onThrow = 'auto', ...options }: RunOptions<T>,
    { args, stream }: BodyFacts,
  ): Promise<T> {
    const run = this.#begin(grantedOf(await this.steps.reserve(options)));
    const { hold, notes } = run;
    const stop = this.#keepAlive(hold, options.ttlMs ?? DEFAULT_TTL_MS);
    const onUnreadable = (error: unknown): void => this.#unreadable(hold, error);
    const how = { hold, notes, stream, args, actual, onThrow, onUnreadable };
    try {
      const result = await runOn(hold, fn).catch(async (error: unknown) => {
        await this.#settle(run, { ...how, thrown: { error }, result: undefined }, overage).catch(() => {});
        throw error;
      });
      await this.#settle(run, { ...how, thrown: undefined, result }, overage);
      return result;
    } finally {
      stop();
      this.#end(run);
    }
  }

  #begin(reserved: Reserved): BudgetRun {
    const notes = new CostNotes(
      (error) => this.#unreadable(reserved, error),
      () =>
        this.#logger.warn(
          `A cost of ${hashKey(reserved.id)} was noted after its body had ended: it is not counted.`,
        ),
    );
    const run = new BudgetRun(withNotes(reserved, notes), notes);
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

  async #settle(
    run: BudgetRun,
    end: Parameters<typeof settlementOf>[0],
    overage: 'record' | 'cap',
  ): Promise<void> {
    const { hold, notes } = run;
    notes.close();
    if (await run.settledByHand()) return;
    const cost = await settlementOf(end);
    // What cannot be given back now goes back by its TTL.
    if (cost === 'abort') await this.steps.abort(hold).catch(() => {});
    else await this.#finalizeNowOrLater(hold, cost, overage);
  }

  /** The work is done and its answer must not be lost: what Redis cannot be told now is told later. */
  async #finalizeNowOrLater(hold: Reserved, cost: Amount, overage: 'record' | 'cap'): Promise<void> {
    const settle = async (): Promise<void> => {
      const finalized = await this.steps.finalize(hold, cost, { overage });
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
      this.later(settledOrHopeless, SETTLE_WITHIN_MS, error);
    }
  }

  #unreadable({ id }: Reserved, error: unknown): void {
    this.#logger.error(
      `The cost of ${hashKey(id)} cannot be read, so at least its estimate is counted: ${error instanceof Error ? error.message : typeof error}`,
    );
    this.onUnreadableCost(id);
  }

  /** Extends at a third of the TTL: one beat may be lost. A hold that ended all the same is settled late. */
  #keepAlive(hold: Reserved, ttlMs: number): () => void {
    const timer = setInterval(
      () => {
        this.steps.extend(hold, ttlMs).then(
          (result) => result.ok || clearInterval(timer),
          () => {},
        );
      },
      Math.max(1, ttlMs / 3),
    ).unref();
    return () => clearInterval(timer);
  }
}

function grantedOf(result: ReserveResult | RunsElsewhere): Reserved {
  if (result.ok) return result;
  if (result.reason === 'exceeded') throw new BudgetExceededError(result);
  throw new BudgetConflictError(
    result.reason,
    result.record,
    result.reason === 'pending' ? result.endsInMs : undefined,
  );
}
