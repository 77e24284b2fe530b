import { AsyncLocalStorage } from 'node:async_hooks';
import type { Amount, Reserved } from './budget.types.js';
import { MAX_AMOUNT, validateAmount } from './budget.values.js';

/** The hold that a body runs on, and what it has cost so far. */
export interface CurrentHold extends Reserved {
  /**
   * Notes that so much was spent, on top of what was noted before. A body that throws pays what it has noted, and one
   * that ends well pays at least that. A value that is no amount counts as the estimate, and is an error in the log;
   * this never throws.
   */
  spent(amount: Amount): void;
  /** The sum of all notes. */
  readonly noted: Amount;
}

/** A hold that the code now running stands on. */
interface HoldFrame {
  readonly hold: CurrentHold;
  readonly outer: HoldFrame | undefined;
  /** False once the body has ended: work left running inherits nothing. */
  active: boolean;
}

// One store for all copies of this package in the process.
const STORAGE = Symbol.for('syncguard:als:budget');
const shared = globalThis as { [STORAGE]?: AsyncLocalStorage<HoldFrame> };
const frames = (): AsyncLocalStorage<HoldFrame> => (shared[STORAGE] ??= new AsyncLocalStorage<HoldFrame>());

function innermost(): HoldFrame | undefined {
  let frame = frames().getStore();
  while (frame && !frame.active) frame = frame.outer;
  return frame;
}

/**
 * The hold that the running code stands on, the innermost if there are several; undefined outside of `run()` and
 * `@WithBudget()`.
 *
 * @example
 * const answer = await llm.complete(prompt);
 * currentHold()?.spent(answer.usage.total); // paid, also if the next line throws
 * return parse(answer);
 */
export const currentHold = (): CurrentHold | undefined => innermost()?.hold;

/** Runs a body on a hold. Resolves or rejects as the body does. */
export async function runOn<T>(hold: CurrentHold, body: (hold: CurrentHold) => T | Promise<T>): Promise<T> {
  const frame: HoldFrame = { hold, outer: innermost(), active: true };
  try {
    return await frames().run(frame, body, hold);
  } finally {
    frame.active = false;
  }
}

/** What a body has noted with `spent()`. */
export class CostNotes {
  #sum = 0n;
  /** Something was noted that is no amount: nobody knows how much was spent. */
  #isUnreadable = false;
  #isClosed = false;

  constructor(
    private readonly onUnreadable: (error: unknown) => void,
    private readonly onLate: () => void,
  ) {}

  readonly spent = (amount: Amount): void => {
    if (this.#isClosed) return this.onLate();
    try {
      this.#sum += validateAmount('spent(amount)', amount);
      if (this.#sum > MAX_AMOUNT) this.#sum = MAX_AMOUNT;
    } catch (error) {
      this.#isUnreadable = true;
      this.onUnreadable(error);
    }
  };

  get sum(): bigint {
    return this.#sum;
  }

  /** What was spent at least, as far as anybody knows: the estimate where a note could not be read. */
  known(estimate: bigint): bigint {
    return this.#isUnreadable && this.#sum < estimate ? estimate : this.#sum;
  }

  /** The hold is about to be settled. */
  close(): void {
    this.#isClosed = true;
  }
}

/** A hold as its body gets it. What is added does not show where a hold is logged or copied. */
export function withNotes(hold: Reserved, notes: CostNotes): CurrentHold {
  const noted = (): Amount => (typeof hold.amount === 'bigint' ? notes.sum : Number(notes.sum));
  return Object.defineProperties(hold, {
    spent: { value: notes.spent },
    noted: { get: noted },
  }) as CurrentHold;
}
