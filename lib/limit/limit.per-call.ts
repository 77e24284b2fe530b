import { describe } from '../core/validate.js';
import { LimitError } from './limit.errors.js';
import {
  MAX_COUNTED,
  MAX_LIMIT_MS,
  MAX_THRESHOLD,
  type ResolvedPolicy,
  validateCost,
} from './limit.policy.js';

// This file checks the limit, the window and the cost of one call, which functions of the app return. A function
// `limit` may return 0 for a suspended plan, and Infinity or 'unlimited' for an unlimited one. Limit and cost must be
// at least 0, and a window must be from 1 to MAX_LIMIT_MS. Any other value is a mistake of the app. Then the call fails
// with 500, and the log has the reason.

/**
 * Returns the policy with the limit of one call.
 *
 * @param warn - called if the limit is higher than the policy can count
 */
export function withLimit(
  policy: ResolvedPolicy,
  limit: unknown,
  warn: (message: string) => void = () => {},
): ResolvedPolicy {
  if (limit === 'unlimited' || limit === Infinity) return withThreshold(policy, Infinity);
  if (typeof limit !== 'number' || !(limit >= 0))
    throw unusable(policy, 'limit', "a number of at least 0, Infinity or 'unlimited'", limit);
  const allowed = Math.min(Math.floor(limit), MAX_COUNTED);
  if (allowed === 0) return withThreshold(policy, 0);
  if (policy.algorithm === 'fixed-window' || allowed < MAX_THRESHOLD)
    return withThreshold(policy, allowed + 1);
  if (couldBeWindow(policy)) return { ...withThreshold(policy, allowed + 1), algorithm: 'fixed-window' };
  warn(
    `RATE_LIMIT_CAPPED: The function \`limit\` of the policy ${policy.name} returned more than ${MAX_THRESHOLD - 1}. A policy that blocks, or counts failures or successes, cannot count higher, so its limit is ${MAX_THRESHOLD - 1}.`,
  );
  return withThreshold(policy, MAX_THRESHOLD);
}

/** Returns the policy with the window of one call. */
export function withWindow(policy: ResolvedPolicy, windowMs: unknown): ResolvedPolicy {
  if (typeof windowMs !== 'number' || !(windowMs >= 1 && windowMs <= MAX_LIMIT_MS))
    throw unusable(policy, 'windowMs', `a number from 1 to ${MAX_LIMIT_MS}`, windowMs);
  const shortWindowMs = Math.floor(windowMs);
  const penaltiesTtlMs = Math.max(policy.rules.penaltiesTtlMs, shortWindowMs);
  return { ...policy, dynamicWindow: undefined, rules: { ...policy.rules, shortWindowMs, penaltiesTtlMs } };
}

/**
 * Returns the cost of one call, rounded up. It is 0 if the limit is 0 or unlimited. A cost that the policy can never
 * let in, or cannot count, is answered with 400 and not with 500, since it may depend on what the client sent.
 */
export function costOf(policy: ResolvedPolicy, cost: unknown): number {
  if (typeof cost !== 'number' || !(cost >= 0))
    throw unusable(policy, 'cost', 'a number of at least 0', cost);
  const { shortThreshold } = policy.rules;
  if (cost === 0 || shortThreshold === 0 || shortThreshold === Infinity) return 0;
  try {
    return validateCost(policy, Math.ceil(cost));
  } catch (error) {
    throw LimitError.from(error);
  }
}

const withThreshold = (policy: ResolvedPolicy, shortThreshold: number): ResolvedPolicy => ({
  ...policy,
  dynamicLimit: undefined,
  rules: { ...policy.rules, shortThreshold },
});

const couldBeWindow = ({ rules, count }: ResolvedPolicy): boolean =>
  rules.shortBlockMs === 0 && count === 'attempt';

const unusable = (policy: ResolvedPolicy, option: string, bound: string, value: unknown): LimitError =>
  new LimitError({
    code: 'Internal',
    message: 'The limiter could not decide.',
    hint: `The function \`${option}\` of the policy ${policy.name} must return ${bound}, but returned ${describe(value)}.`,
  });
