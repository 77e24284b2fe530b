import { type Frame, Frames } from '../core/frames.js';
import type { Amount, Reserved } from './budget.types.js';
import { MAX_AMOUNT } from './budget.bounds.js';
import { validateAmount } from './budget.validate.js';

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

/** The costs that a body has noted with `spent()`. */
export class CostNotes {
  /** The sum of the notes that could be read. */
  sum = 0;
  /** True once a note was not an amount, so that the real cost is unknown. */
  #isUnreadable = false;
  #isClosed = false;

  constructor(
    /** Called with why a cost could not be read. */
    readonly onUnreadable: (error: unknown) => void,
    private readonly onLate: () => void,
  ) {}

  readonly spent = (amount: Amount): void => {
    if (this.#isClosed) return this.onLate();
    try {
      this.sum = Math.min(this.sum + validateAmount('spent(amount)', amount), MAX_AMOUNT);
    } catch (error) {
      this.#isUnreadable = true;
      this.onUnreadable(error);
    }
  };

  /** Returns the sum of the notes. If a note could not be read, returns the estimate where the sum is smaller. */
  known(estimate: Amount): Amount {
    return this.#isUnreadable && this.sum < estimate ? estimate : this.sum;
  }

  /** Called before the hold is settled. Later notes are not counted. */
  close(): void {
    this.#isClosed = true;
  }
}

/** Adds what a hold has for its body. It is not enumerable, so that logs and copies do not show it. */
export function withNotes(
  hold: Reserved,
  notes: CostNotes,
  stream: { returned?: unknown } = {},
): CurrentHold {
  return Object.defineProperties(hold, {
    spent: { value: notes.spent },
    noted: { get: () => notes.sum },
    returned: { get: () => stream.returned },
  }) as CurrentHold;
}
