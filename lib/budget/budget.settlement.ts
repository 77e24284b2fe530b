import type { StreamProgress } from '../wrap-method.js';
import type { Amount } from './budget.types.js';
import { validateAmount, validateOneOf } from './budget.values.js';
import type { CostNotes, CurrentHold } from './current-hold.js';
import { hasAborted, isHangUp } from './hang-up.js';

/** What a body that threw has cost: an amount, or nothing. */
export type OnThrow =
  | 'auto'
  | 'abort'
  | 'finalize-estimate'
  | ((error: unknown, body: { readonly last: unknown; readonly hold: CurrentHold }) => Amount | 'abort');

/** How a body ended, and all that says what it cost. */
export interface BodyEnd {
  readonly thrown: { readonly error: unknown } | undefined;
  readonly result: unknown;
  readonly hold: CurrentHold;
  readonly notes: CostNotes;
  readonly stream: StreamProgress | undefined;
  /** Where a signal may be that was aborted. */
  readonly args: readonly unknown[];
  readonly actual: ((result: never) => unknown) | undefined;
  readonly onThrow: OnThrow;
  /** The app's own function gave no amount, in a way that no caller can cause. */
  onUnreadable(error: unknown): void;
}

/** What a hold is settled by. */
export type Settlement = bigint | 'abort';

/** Who hangs up pays; who fails otherwise pays what was noted; who ends well pays the actual cost. */
export function settlementOf(end: BodyEnd): Settlement | Promise<Settlement> {
  const { thrown, stream, onThrow } = end;
  if (thrown && onThrow !== 'auto') return asTold(end, thrown.error, onThrow);
  if (stream?.isStream && !stream.completed && stream.items > 0) return ofPart(end);
  if (thrown && isHangUp(thrown.error, end.args)) return notedOrEstimate(end);
  if (thrown) return noted(end) > 0n ? noted(end) : 'abort';
  // An Observable that nobody has waited for the first item of.
  if (stream?.isStream && !stream.completed) return notedOrEstimate(end);
  // It may have ended well because it noticed that its caller had hung up.
  return hasAborted(end.args) ? ofPart(end) : ofWhole(end);
}

const estimate = ({ hold }: BodyEnd): bigint => BigInt(hold.amount);

const noted = (end: BodyEnd): bigint => end.notes.known(estimate(end));

const notedOrEstimate = (end: BodyEnd): bigint => (noted(end) > 0n ? noted(end) : estimate(end));

const estimateAtLeast = (end: BodyEnd): bigint => greater(estimate(end), end.notes.sum);

async function asTold(end: BodyEnd, error: unknown, how: Exclude<OnThrow, 'auto'>): Promise<Settlement> {
  if (how === 'abort') return how;
  if (how === 'finalize-estimate') return estimateAtLeast(end);
  try {
    const cost: unknown = await (how as (...args: unknown[]) => unknown)(error, {
      last: end.stream?.last,
      hold: end.hold,
    });
    return cost === 'abort' ? cost : validateAmount('onThrow(error)', cost);
  } catch (reason) {
    end.onUnreadable(reason);
    return estimateAtLeast(end);
  }
}

/** Of usage that has not come yet there is none: a caller can bring that about, so it is no error. */
async function ofPart(end: BodyEnd): Promise<bigint> {
  const read = await actualOf(end, end.stream?.isStream ? end.stream.last : end.result).catch(() => 0n);
  return greater(read ?? 0n, noted(end)) || estimate(end);
}

async function ofWhole(end: BodyEnd): Promise<bigint> {
  try {
    const read = await actualOf(end, end.result);
    return read === undefined ? notedOrEstimate(end) : greater(read, end.notes.sum);
  } catch (error) {
    end.onUnreadable(error);
    return estimateAtLeast(end);
  }
}

/** Undefined: nobody says. Rejects if what is said is no amount. */
async function actualOf({ actual }: BodyEnd, result: unknown): Promise<bigint | undefined> {
  return actual && validateAmount('actual(result)', await actual(result as never));
}

const greater = (a: bigint, b: bigint): bigint => (a > b ? a : b);

export const ON_THROW = ['auto', 'abort', 'finalize-estimate'] as const;

export const validateOnThrow = (onThrow: unknown): OnThrow =>
  typeof onThrow === 'function' ? (onThrow as OnThrow) : validateOneOf('onThrow', onThrow, ON_THROW);
