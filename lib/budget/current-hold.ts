import { Logger } from '@nestjs/common';
import { type Frame, Frames } from '../core/frames.js';
import { shownHash } from '../core/keys.js';
import type { StreamProgress } from '../method/wrap-method.js';
import type { Outcome } from './budget.backend.js';
import { MAX_AMOUNT } from './budget.results.js';
import type { BudgetEvents } from './budget.options.js';
import type { AbortResult, Amount, FinalizeResult, Reserved } from './budget.types.js';
import { validateAmount } from './budget.validate.js';

const logger = new Logger('SyncGuard');

/** The hold that a body runs on, and what the body has cost so far. */
export interface CurrentHold extends Reserved {
  /**
   * Notes a cost, in addition to those noted before. With `onThrow: 'auto'`, a body that throws costs the sum of its
   * notes. A body that returns costs at least that. A value that is not an amount is logged as an error, and the notes
   * then count as at least the estimate, unless the body returns and `actual` returns its cost. Never throws.
   */
  spent(amount: Amount): void;
  /** The sum of all notes. */
  readonly noted: Amount;
  /** What a generator under `@WithBudget()` has returned. Undefined until it has ended, and for all other bodies. */
  readonly returned: unknown;
}

/** A hold that a body runs on. */
interface HoldFrame extends Frame<HoldFrame> {
  readonly hold: CurrentHold;
}

const frames = new Frames<HoldFrame>('syncguard:als:budget');

/**
 * Returns the hold of the running code, the innermost one where several are nested. Returns undefined outside
 * of `run()` and `@WithBudget()`.
 *
 * @example
 * const answer = await llm.complete(prompt);
 * currentHold()?.spent(answer.usage.total); // counts also if the next line throws
 * return parse(answer);
 */
export const currentHold = (): CurrentHold | undefined => frames.find()?.hold;

/** Runs a body on a hold. Resolves or rejects as the body does. */
export const runOn = <T>(hold: CurrentHold, body: (hold: CurrentHold) => T | Promise<T>): Promise<T> =>
  frames.during({ hold, outer: frames.find(), active: true }, () => body(hold));

/** What became of a call that ends a hold. */
export type Settled = Outcome<FinalizeResult | AbortResult>;

/** A body that runs on a hold: what it has noted, and who else settles its hold. */
export class BudgetRun {
  readonly hold: CurrentHold;
  /** The sum of the notes that could be read. */
  noted = 0;
  /** True once a note was not an amount, so that the real cost is unknown. */
  #isUnreadable = false;
  #isClosed = false;
  readonly #settling: Promise<boolean>[] = [];

  constructor(
    reserved: Reserved,
    readonly stream: StreamProgress | undefined,
    private readonly events: BudgetEvents,
  ) {
    // Not enumerable, so that logs and copies of the hold do not show it.
    this.hold = Object.defineProperties(reserved, {
      spent: { value: this.#spent },
      noted: { get: () => this.noted },
      returned: { get: () => stream?.returned },
    }) as CurrentHold;
  }

  /** The sum of the notes. If a note could not be read, the estimate where the sum is smaller. */
  get known(): Amount {
    return this.#isUnreadable ? this.estimateAtLeast : this.noted;
  }

  get estimateAtLeast(): Amount {
    return Math.max(this.hold.amount, this.noted);
  }

  /** Follows a call of the app that settles this hold, or another hold under the same id. */
  watch(settling: Promise<Settled>): void {
    const { generation } = this.hold;
    const isOwn = (result: Settled): boolean => result.ok && result.generation === generation;
    this.#settling.push(settling.then(isOwn, () => false));
  }

  /** Called before the hold is settled. Later notes are not counted. Returns whether the app has settled the hold. */
  async close(): Promise<boolean> {
    this.#isClosed = true;
    return (await Promise.all(this.#settling)).includes(true);
  }

  unreadable(error: unknown): void {
    const { id } = this.hold;
    logger.error(
      `BUDGET_COST_UNREADABLE: A cost of budget operation ${shownHash(id)} could not be read. At least the estimate is counted, unless \`actual\` or \`onThrow\` gives another cost. Correct \`actual\`, \`onThrow\` or the amount of \`spent()\`: ${error instanceof Error ? error.message : typeof error}`,
    );
    this.events.onUnreadableCost?.(id);
  }

  readonly #spent = (amount: Amount): void => {
    if (this.#isClosed)
      return logger.warn(
        `BUDGET_COST_TOO_LATE: A cost of budget operation ${shownHash(this.hold.id)} was noted after its body had ended, so it is not counted. Await the work before the body ends.`,
      );
    try {
      this.noted = Math.min(this.noted + validateAmount('spent(amount)', amount), MAX_AMOUNT);
    } catch (error) {
      this.#isUnreadable = true;
      this.unreadable(error);
    }
  };
}
