import type { LimitPolicy } from '../policy.types.js';

/** Metadata of a class or method: its `@RateLimit`s, the uppermost first. */
export const RATE_LIMITS = Symbol.for('syncguard:rate-limits');
/** Metadata of a class or method: the names of the limits that it skips, or `true` for all. */
export const SKIPPED_LIMITS = Symbol.for('syncguard:skipped-limits');
/** Metadata of RateLimitGuard, which applies the policy `default`. */
export const APPLIES_DEFAULT = Symbol.for('syncguard:applies-default');
/** Metadata of our guards: 'default' on RateLimitGuard, 'route' on the guard that `@RateLimit` binds. */
export const OUR_GUARD = Symbol.for('syncguard:guard');
/**
 * A property of the methods that `noteEntry` has put in place. It holds the name under which the class has the method. The
 * function itself may have another name, given by a decorator.
 */
export const MEMBER_NAME = Symbol.for('syncguard:notes-entry');
/** The token of RouteLimiter. Nest shows its description if SyncGuardModule is missing. */
export const ROUTE_LIMITER = Symbol.for('syncguard:RouteLimiter (is SyncGuardModule.forRoot() imported?)');

export interface RateLimitEntry {
  /** The name of policies in the options, or policies. */
  readonly policy: string | readonly LimitPolicy[];
  readonly override: boolean;
  /** The class or method that the decorator stands on. A subclass inherits the entries of its bases. */
  readonly place: object;
}
