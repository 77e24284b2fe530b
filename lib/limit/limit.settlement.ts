import type { AbuseLimiterService } from './abuse-limiter.service.js';
import type { CallDecision, Decisive, Outcome } from './call-in-flight.js';
import type { ResolvedPolicy } from './limit.policy.js';

/**
 * Settles a call in flight that has ended, for the limits whose policies are in `outcomes`. A limit that counts this
 * outcome counts the call. Any other takes it back. Returns the denied decision if this failure has set a block. A success
 * is never denied here, as it has happened already.
 */
export async function settle(
  limiter: AbuseLimiterService,
  { counted, checks }: CallDecision,
  outcomes: ReadonlyMap<ResolvedPolicy, Outcome>,
): Promise<Decisive | undefined> {
  if (!counted) return undefined;
  const ended = checks.filter(({ policy }) => outcomes.has(policy));
  const confirm = async (outcome: Outcome): Promise<Decisive | undefined> => {
    const counting = ended.filter(
      ({ policy }) => policy.count === outcome && outcomes.get(policy) === outcome,
    );
    return counting.length > 0 ? limiter.confirm(counting, counted) : undefined;
  };
  const failed = confirm('failure');
  const rest: Promise<unknown>[] = ended
    .filter(({ policy }) => outcomes.get(policy) !== policy.count)
    .map((check) => limiter.withdraw(check, counted, outcomes.get(check.policy) === 'success'));
  rest.push(confirm('success'));
  // A call that could not be settled stays in flight for 60 s at most. Then it no longer takes up room. Under a policy that
  // counts successes, it then counts as a success.
  const [decided] = await Promise.all([failed, Promise.allSettled(rest)]);
  return decided?.decision.allowed === false ? decided : undefined;
}
