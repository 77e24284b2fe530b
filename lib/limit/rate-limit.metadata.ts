import type { LimitPolicy } from './limit.types.js';

/** Metadata of a class or method: its limits, the first decorator first. */
export const RATE_LIMITS = Symbol.for('syncguard:rate-limits');
/** Metadata of a class or method: `true`, or the names of the limits that leave it alone. */
export const SKIPPED_LIMITS = Symbol.for('syncguard:skipped-limits');
/** The one that knows the limits of every route, for guards and interceptor. */
export const ROUTE_LIMITER = Symbol.for('syncguard:RouteLimiter (is SyncGuardModule.forRoot() imported?)');

/** Nest's own: a method's or class's guards and version, a route's HTTP method. The same in Nest 11 and 12. */
export const GUARDS = '__guards__';
export const VERSION = '__version__';
export const METHOD = 'method';

export interface RateLimitEntry {
  readonly policy: string | LimitPolicy | readonly LimitPolicy[];
  readonly override: boolean;
}
