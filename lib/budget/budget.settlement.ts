import { duration, integer, invalidOption, oneOf } from '../core/validate.js';
import { LIFETIME_IDS_MS } from './budget.results.js';
import type { Amount } from './budget.types.js';
import { validateAmount } from './budget.validate.js';
import { type BudgetRun, type CurrentHold, runOn } from './current-hold.js';
import { hasAborted, isHangUp } from './hang-up.js';

/** How to settle a body that threw. See `RunOptions.onThrow`. */
export type OnThrow =
  | 'auto'
  | 'abort'
  | 'finalize-estimate'
  | ((
      error: unknown,
      body: {
        /** The last value that a stream has given. Undefined if there is none. */
        readonly last: unknown;
        /** The hold of the body, with the costs that were noted. */
        readonly hold: CurrentHold;
      },
    ) => Amount | 'abort');

/** How a body ended, and all facts that decide its cost. */
export interface BodyEnd {
  readonly run: BudgetRun;
  readonly thrown: { readonly error: unknown } | undefined;
  readonly result: unknown;
  readonly args: readonly unknown[];
  readonly actual: ((result: never, cost: Pick<CurrentHold, 'noted' | 'returned'>) => unknown) | undefined;
  readonly onThrow: OnThrow;
}

/** The amount to finalize, or `'abort'`. */
type Settlement = Amount | 'abort';

/**
 * Decides what a body costs. If the body threw, an `onThrow` other than `'auto'` decides. Otherwise a caller
 * that hangs up pays for the work, a body that fails costs what it has noted, and a body that ends well costs
 * its actual amount.
 */
export function settlementOf(end: BodyEnd): Settlement | Promise<Settlement> {
  const { run, thrown, args, onThrow } = end;
  const { stream } = run;
  if (thrown && onThrow !== 'auto') return byOnThrow(run, thrown.error, onThrow);
  if (stream?.isStream && !stream.completed && stream.items > 0) return costOfPart(end);
  if (thrown && isHangUp(thrown.error, args)) return notedOrEstimate(run);
  if (thrown) return run.known || 'abort';
  // The caller left before the first item of the stream.
  if (stream?.isStream && !stream.completed) return notedOrEstimate(run);
  // The body may have ended early, because it noticed that its caller had hung up.
  return hasAborted(args) ? costOfPart(end) : costOfResult(end);
}

const notedOrEstimate = ({ known, hold }: BudgetRun): Amount => known || hold.amount;

async function byOnThrow(run: BudgetRun, error: unknown, how: Exclude<OnThrow, 'auto'>): Promise<Settlement> {
  if (how === 'abort') return how;
  if (how === 'finalize-estimate') return run.estimateAtLeast;
  try {
    const body = { last: run.stream?.last, hold: run.hold };
    const cost: unknown = await (how as (...args: unknown[]) => unknown)(error, body);
    return cost === 'abort' ? cost : validateAmount('onThrow(error)', cost);
  } catch (reason) {
    run.unreadable(reason);
    return run.estimateAtLeast;
  }
}

/** The usage may be missing because the caller left early, so that is not logged as an error. */
async function costOfPart(end: BodyEnd): Promise<Amount> {
  const { stream, known, hold } = end.run;
  const read = await actualOf(end, stream?.isStream ? stream.last : end.result).catch(() => 0);
  return Math.max(read ?? 0, known) || hold.amount;
}

async function costOfResult(end: BodyEnd): Promise<Amount> {
  const { run } = end;
  try {
    const read = await actualOf(end, end.result);
    return read === undefined ? notedOrEstimate(run) : Math.max(read, run.noted);
  } catch (error) {
    run.unreadable(error);
    return run.estimateAtLeast;
  }
}

/**
 * Resolves to undefined if no `actual` function is set. Rejects if that function throws or returns no amount. The function
 * is called on the hold, so that `currentHold()` works in it.
 */
async function actualOf({ actual, run }: BodyEnd, result: unknown): Promise<Amount | undefined> {
  if (!actual) return undefined;
  const cost = await runOn(run.hold, ({ noted, returned }) => actual(result as never, { noted, returned }));
  return validateAmount('actual(result)', cost);
}

/** The options by which a body is settled, of `run()` and of `@WithBudget()`. */
export const SETTLING = ['ttlMs', 'actual', 'overage', 'onThrow', 'idTtlMs', 'maxHoldMs'] as const;

/** @param place - what stands before the name of an option in an error */
export function checkSettling(given: Partial<Record<(typeof SETTLING)[number], unknown>>, place = ''): void {
  const { ttlMs, actual, overage, onThrow, idTtlMs, maxHoldMs } = given;
  if (ttlMs !== undefined) duration(`${place}ttlMs`, ttlMs);
  if (maxHoldMs !== undefined) duration(`${place}maxHoldMs`, maxHoldMs);
  if (idTtlMs !== undefined) integer(`${place}idTtlMs`, idTtlMs, 1, LIFETIME_IDS_MS);
  if (actual !== undefined && typeof actual !== 'function')
    throw invalidOption(`${place}actual`, 'a function of the result', actual);
  if (overage !== undefined) oneOf(`${place}overage`, overage, ['record', 'cap']);
  if (onThrow !== undefined && typeof onThrow !== 'function')
    oneOf(`${place}onThrow`, onThrow, ['auto', 'abort', 'finalize-estimate']);
}
