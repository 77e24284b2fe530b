import { describe } from '../keys.js';
import type { LimitCheck } from './limit.backend.js';
import { LimitError } from './limit.errors.js';
import {
  isFixedWindow,
  MAX_COUNTED,
  MAX_LIMIT_MS,
  MAX_THRESHOLD,
  type ResolvedPolicy,
  validateCost,
} from './limit.policy.js';

// What functions of the app say of one call: its limit, its window, its cost. A plan may be suspended (0) or unlimited,
// and a function may err: whoever calls did nothing wrong, so that is a 500, whose reason is for the log.

/** Nothing is counted: the limit lets all in, or none, or the call costs nothing. A block stands all the same. */
export const isUncounted = ({ policy: { rules }, cost }: LimitCheck): boolean =>
  cost === 0 || rules.tempThreshold === 0 || rules.tempThreshold === Infinity;

/** Nobody is let in: a limit of 0. */
export const letsNobodyIn = ({ rules }: ResolvedPolicy): boolean => rules.tempThreshold === 0;

/**
 * The same policy with the limit of this call.
 *
 * @param warn - told when more was asked for than a log holds
 */
export function withLimit(
  policy: ResolvedPolicy,
  limit: unknown,
  warn: (message: string) => void = () => {},
): ResolvedPolicy {
  if (limit === 'unlimited' || limit === Infinity) return withThreshold(policy, Infinity);
  if (typeof limit !== 'number' || !(limit >= 0))
    throw unusable(policy, 'limit', "a number from 0, Infinity or 'unlimited'", limit);
  const allowed = Math.min(Math.floor(limit), MAX_COUNTED);
  if (allowed === 0) return withThreshold(policy, 0);
  if (isFixedWindow(policy) || allowed < MAX_THRESHOLD) return withThreshold(policy, allowed + 1);
  if (couldBeWindow(policy)) return { ...withThreshold(policy, allowed + 1), algorithm: 'fixed-window' };
  warn(
    `RATE_LIMIT_CAPPED: the function \`limit\` of ${policy.name} gave more than ${MAX_THRESHOLD - 1}, which is the most that a policy which blocks or counts outcomes can count. That is its limit now.`,
  );
  return withThreshold(policy, MAX_THRESHOLD);
}

/** The same policy with the window of this call. */
export function withWindow(policy: ResolvedPolicy, windowMs: unknown): ResolvedPolicy {
  if (typeof windowMs !== 'number' || !(windowMs >= 1 && windowMs <= MAX_LIMIT_MS))
    throw unusable(policy, 'windowMs', `a number from 1 to ${MAX_LIMIT_MS}`, windowMs);
  const tempWindowMs = Math.floor(windowMs);
  const recordTtlMs = Math.max(policy.rules.recordTtlMs, tempWindowMs);
  return { ...policy, dynamicWindow: undefined, rules: { ...policy.rules, tempWindowMs, recordTtlMs } };
}

/** What this call costs. One that is dearer than the limit is the caller's to know (400): its size may be his. */
export function costOf(policy: ResolvedPolicy, cost: unknown): number {
  if (typeof cost !== 'number' || !(cost >= 0)) throw unusable(policy, 'cost', 'a number from 0', cost);
  const { tempThreshold } = policy.rules;
  if (cost === 0 || tempThreshold === 0 || tempThreshold === Infinity) return 0;
  try {
    return validateCost(policy, Math.ceil(cost));
  } catch (error) {
    throw LimitError.from(error);
  }
}

const withThreshold = (policy: ResolvedPolicy, tempThreshold: number): ResolvedPolicy => ({
  ...policy,
  dynamicLimit: undefined,
  rules: { ...policy.rules, tempThreshold },
});

const couldBeWindow = ({ rules, count }: ResolvedPolicy): boolean =>
  rules.tempBlockMs === 0 && count === 'attempt';

const unusable = (policy: ResolvedPolicy, option: string, bound: string, value: unknown): LimitError =>
  new LimitError({
    code: 'Internal',
    message: 'The limiter could not decide.',
    hint: `${policy.name}.${option} must be ${bound}; its function gave ${describe(value)}.`,
  });
