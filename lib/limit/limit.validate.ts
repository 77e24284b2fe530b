import { describe } from '../core/validate.js';
import { LimitError } from './limit.errors.js';
import { type ResolvedLimitOptions, resolvePolicies } from './limit.options.js';
import { limitDuration, type ResolvedPolicy } from './limit.policy.js';
import type { LimitPolicy, PolicyRef } from './policy.types.js';

/** The longest reason of a block that was set by hand, in characters. */
const MAX_REASON_LENGTH = 200;

/** Returns the policies of a call that has them as an object or a list. */
export function policiesInCall(
  policy: Exclude<PolicyRef, string>,
  { onError, keyBy }: Pick<ResolvedLimitOptions, 'onError' | 'keyBy'>,
): readonly ResolvedPolicy[] {
  if (typeof policy !== 'object' || policy === null)
    throw invalidCall(`The policy must be a name or an object, got ${describe(policy)}.`);
  const name = Array.isArray(policy) ? 'policy' : (policy as LimitPolicy).name;
  return resolvePolicies(policy, { onError, keyBy, name: name as string });
}

/** Checks the length and the reason of a block that is set by hand. */
export function validateBlock(ms: unknown, reason: unknown): { blockMs: number; text: string } {
  const blockMs = limitDuration('ms', ms);
  if (typeof reason === 'string' && reason.length <= MAX_REASON_LENGTH)
    return { blockMs, text: reason.toWellFormed() };
  throw invalidCall(
    `\`reason\` must be a string of at most ${MAX_REASON_LENGTH} characters, got ${describe(reason)}.`,
  );
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

const invalidCall = (message: string, hint?: string): LimitError =>
  new LimitError({ code: 'InvalidArgument', message, hint });
