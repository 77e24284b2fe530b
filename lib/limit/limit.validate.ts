import { pageOptions } from '../core/page.js';
import { describe, invalidOption, knownOptions } from '../core/validate.js';
import { type BlockedPage, isUncounted, type LimitRules, type TierRules } from './limit.backend.js';
import { LimitError } from './limit.errors.js';
import { type ResolvedLimitOptions, resolvePolicies } from './limit.options.js';
import {
  limitDuration,
  MAX_COUNTED,
  MAX_LIMIT_MS,
  MAX_THRESHOLD,
  type ResolvedPolicy,
  validateCost,
} from './limit.policy.js';
import type { BlockedOptions, BlockTag } from './limit.types.js';
import type { KeyParts, LimitPolicy, PolicyRef } from './policy.types.js';
import { isTag } from './limit.identity.js';

/** The longest reason of a block that was set by hand, in characters. */
const MAX_REASON_LENGTH = 200;

export function policiesInCall(
  policy: Exclude<PolicyRef, string>,
  { onError, keyBy }: ResolvedLimitOptions,
): readonly ResolvedPolicy[] {
  if (typeof policy !== 'object' || policy === null)
    throw invalidCall(`The policy must be a name or an object, got ${describe(policy)}.`);
  const given: LimitPolicy[] = [policy].flat();
  // What only a function may return is resolved as if a function had returned it.
  const asked = given.map((each) =>
    isFromFunction(each) ? ({ ...each, limit: () => each.limit } as LimitPolicy) : each,
  );
  const name = Array.isArray(policy) ? 'policy' : ((policy as LimitPolicy).name as string);
  const list = Array.isArray(policy) ? asked : (asked[0] as LimitPolicy);
  const resolved = resolvePolicies(list, { onError, keyBy, name });
  return resolved.map((each, i) => (asked[i] === given[i] ? each : withLimit(each, given[i]?.limit)));
}

/** Returns whether a policy has a limit that `@RateLimit` takes from a function only, and can be counted with it. */
function isFromFunction({ limit, algorithm, blockMs, count }: LimitPolicy): boolean {
  if (limit === 0 || limit === Infinity || limit === 'unlimited') return true;
  const isPlain = blockMs === undefined && algorithm === undefined && (count ?? 'attempt') === 'attempt';
  return isPlain && Number.isInteger(limit) && (limit as number) >= MAX_THRESHOLD;
}

export function validateBlock(ms: unknown, reason: unknown): { blockMs: number; text: string } {
  const blockMs = limitDuration('ms', ms);
  if (typeof reason === 'string' && reason.length <= MAX_REASON_LENGTH)
    return { blockMs, text: reason.toWellFormed() };
  throw invalidCall(
    `\`reason\` must be a string of at most ${MAX_REASON_LENGTH} characters, got ${describe(reason)}.`,
  );
}

export const validateBlocked = (options: BlockedOptions): BlockedPage => ({
  ...pageOptions(options, ['policy']),
  policy: nameAskedFor(options.policy),
});

export function validateBlockTag(which: BlockTag): BlockTag {
  const { tag, policy } = knownOptions('the block', which, ['tag', 'policy']);
  if (!isTag(tag)) throw invalidOption('tag', 'the `tag` of a block, or the `keyHash` of an event', tag);
  return { tag, policy: nameAskedFor(policy) };
}

/** A name that no limit has now may be that of a block. */
function nameAskedFor(policy: unknown): string | undefined {
  if (policy === undefined || (typeof policy === 'string' && policy !== '')) return policy;
  throw invalidOption('policy', 'the name of a policy', policy);
}

export const unknownPolicy = (name: string, known: Iterable<string>): LimitError =>
  invalidCall(
    `There is no policy ${JSON.stringify(name.slice(0, 60))}.`,
    `Correct the name, or add the policy to the \`limits\` option. There are: ${[...known].join(', ') || 'none'}.`,
  );

/** The fault of a call of the service under a policy whose numbers depend on a request. */
export const needsRequest = ({ name }: ResolvedPolicy): LimitError =>
  invalidCall(
    `The policy ${name} takes its \`limit\`, \`windowMs\` or \`cost\` from a function of the request.`,
    'Use it in @RateLimit, where there is a request. AbuseLimiterService needs numbers.',
  );

export const invalidCall = (message: string, hint?: string): LimitError =>
  new LimitError({ code: 'InvalidArgument', message, hint });

// What functions of the app return for one call. An unusable value is a mistake of the app: the call fails with 500, and
// the log has the reason.

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
  if (policy.rules.tiers[0].blockMs === 0 && policy.count === 'attempt')
    return { ...withThreshold(policy, allowed + 1), algorithm: 'fixed-window', isRaised: true };
  warn(
    `RATE_LIMIT_CAPPED: The function \`limit\` of the policy ${policy.name} returned more than ${MAX_THRESHOLD - 1}. A policy that blocks, or counts failures or successes, cannot count higher, so its limit is ${MAX_THRESHOLD - 1}.`,
  );
  return withThreshold(policy, MAX_THRESHOLD);
}

export function withWindow(policy: ResolvedPolicy, windowMs: unknown): ResolvedPolicy {
  if (typeof windowMs !== 'number' || !(windowMs >= 1 && windowMs <= MAX_LIMIT_MS))
    throw unusable(policy, 'windowMs', `a number from 1 to ${MAX_LIMIT_MS}`, windowMs);
  const ms = Math.floor(windowMs);
  const penaltiesTtlMs = Math.max(policy.rules.penaltiesTtlMs, ms);
  return { ...withTier(policy, { windowMs: ms }, { penaltiesTtlMs }), dynamicWindow: undefined };
}

/**
 * Returns the cost of one call, rounded up. It is 0 if the limit is 0 or unlimited. A cost that the policy can never
 * let in, or cannot count, is answered with 400 and not with 500, since it may depend on what the client sent.
 */
export function costOf(policy: ResolvedPolicy, cost: unknown): number {
  if (typeof cost !== 'number' || !(cost >= 0))
    throw unusable(policy, 'cost', 'a number of at least 0', cost);
  if (cost === 0 || isUncounted(policy)) return 0;
  try {
    return validateCost(policy, Math.ceil(cost));
  } catch (error) {
    throw LimitError.from(error);
  }
}

export const isBlockTag = (which: string | KeyParts | BlockTag): which is BlockTag =>
  typeof which === 'object' && which !== null && 'tag' in which;

const withThreshold = (policy: ResolvedPolicy, threshold: number): ResolvedPolicy => ({
  ...withTier(policy, { threshold }),
  dynamicLimit: undefined,
});

function withTier(
  policy: ResolvedPolicy,
  changed: Partial<TierRules>,
  others: Partial<LimitRules> = {},
): ResolvedPolicy {
  const [short, ...rest] = policy.rules.tiers;
  return { ...policy, rules: { ...policy.rules, ...others, tiers: [{ ...short, ...changed }, ...rest] } };
}

const unusable = (policy: ResolvedPolicy, option: string, bound: string, value: unknown): LimitError =>
  new LimitError({
    code: 'Internal',
    message: 'The limiter could not decide.',
    hint: `The function \`${option}\` of the policy ${policy.name} must return ${bound}, but returned ${describe(value)}.`,
  });
