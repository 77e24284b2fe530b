import type { ResolvedPolicy } from '../limit.policy.js';

/** When limits are asked: by the global guard, before the other guards of a route, or after them. */
export type Stage = 'default' | 'before' | 'after';

/** The limits of one route, by the stage at which they are asked. */
export interface Plan {
  /** The limits of the policy `default` that are asked by the global guard, with their watching policies. */
  readonly default: readonly ResolvedPolicy[];
  /** The limits of the route that are asked before its guards, with their watching policies. */
  readonly before: readonly ResolvedPolicy[];
  /** The limits of the route that are asked after all guards. */
  readonly after: readonly ResolvedPolicy[];
  /** The limits of the policy `default` that are asked after all guards, if the global guard is bound. */
  readonly defaultAfter: readonly ResolvedPolicy[];
  /**
   * Policies that the limiter has added. Each stands in for a policy that counts failures and is asked after the guards: it
   * counts, by address, the calls that a guard refuses.
   */
  readonly watching: ReadonlySet<ResolvedPolicy>;
}
