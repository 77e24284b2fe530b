import { duration, integer, invalidOption, oneOf } from '../core/validate.js';
import type { StreamProgress } from '../method/wrap-method.js';
import { LIFETIME_IDS_MS } from './budget.bounds.js';
import type { Amount } from './budget.types.js';
import { validateAmount } from './budget.validate.js';
import { type CostNotes, type CurrentHold, runOn } from './current-hold.js';
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

/** What `actual` learns beside the result: the sum of the notes, and what a generator has returned. */
export type CostFacts = Pick<CurrentHold, 'noted' | 'returned'>;

/** How a body ended, and all facts that decide its cost. */
export interface BodyEnd {
  readonly thrown: { readonly error: unknown } | undefined;
  readonly result: unknown;
  readonly hold: CurrentHold;
  readonly notes: CostNotes;
  readonly stream: StreamProgress | undefined;
  readonly args: readonly unknown[];
  readonly actual: ((result: never, cost: CostFacts) => unknown) | undefined;
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
  const { thrown, stream, onThrow } = end;
  if (thrown && onThrow !== 'auto') return byOnThrow(end, thrown.error, onThrow);
  if (stream?.isStream && !stream.completed && stream.items > 0) return costOfPart(end);
  if (thrown && isHangUp(thrown.error, end.args)) return notedOrEstimate(end);
  if (thrown) return notedCost(end) > 0 ? notedCost(end) : 'abort';
  // The caller left before the first item of the stream.
  if (stream?.isStream && !stream.completed) return notedOrEstimate(end);
  // The body may have ended early, because it noticed that its caller had hung up.
  return hasAborted(end.args) ? costOfPart(end) : costOfResult(end);
}

const estimate = ({ hold }: BodyEnd): Amount => hold.amount;

const notedCost = (end: BodyEnd): Amount => end.notes.known(estimate(end));

const notedOrEstimate = (end: BodyEnd): Amount => (notedCost(end) > 0 ? notedCost(end) : estimate(end));

const estimateAtLeast = (end: BodyEnd): Amount => Math.max(estimate(end), end.notes.sum);

async function byOnThrow(end: BodyEnd, error: unknown, how: Exclude<OnThrow, 'auto'>): Promise<Settlement> {
  if (how === 'abort') return how;
  if (how === 'finalize-estimate') return estimateAtLeast(end);
  try {
    const cost: unknown = await (how as (...args: unknown[]) => unknown)(error, {
      last: end.stream?.last,
      hold: end.hold,
    });
    return cost === 'abort' ? cost : validateAmount('onThrow(error)', cost);
  } catch (reason) {
    end.notes.onUnreadable(reason);
    return estimateAtLeast(end);
  }
}

/** The usage may be missing because the caller left early, so that is not logged as an error. */
async function costOfPart(end: BodyEnd): Promise<Amount> {
  const read = await actualOf(end, end.stream?.isStream ? end.stream.last : end.result).catch(() => 0);
  return Math.max(read ?? 0, notedCost(end)) || estimate(end);
}

async function costOfResult(end: BodyEnd): Promise<Amount> {
  try {
    const read = await actualOf(end, end.result);
    return read === undefined ? notedOrEstimate(end) : Math.max(read, end.notes.sum);
  } catch (error) {
    end.notes.onUnreadable(error);
    return estimateAtLeast(end);
  }
}

/**
 * Resolves to undefined if no `actual` function is set. Rejects if that function throws or returns no amount. The function
 * is called on the hold, so that `currentHold()` works in it.
 */
async function actualOf({ actual, hold }: BodyEnd, result: unknown): Promise<Amount | undefined> {
  if (!actual) return undefined;
  const cost = await runOn(hold, () =>
    actual(result as never, { noted: hold.noted, returned: hold.returned }),
  );
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
