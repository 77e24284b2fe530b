import type { ResolvedPolicy } from './limit.policy.js';

/** When limits are asked: by the global guard, before the other guards of a route, or after them. */
export type Stage = 'default' | 'early' | 'late';

/** The limits of one route by stage. */
export interface Plan {
  /** By the global guard. */
  readonly default: readonly ResolvedPolicy[];
  readonly early: readonly ResolvedPolicy[];
  /** After the guards: the route's own, and those of `default`, which count where the global guard is bound. */
  readonly late: readonly ResolvedPolicy[];
  readonly lateDefault: readonly ResolvedPolicy[];
  /** Policies of ours that count, by address, what guards refuse before those which count failures are asked. */
  readonly watching: ReadonlySet<ResolvedPolicy>;
}
