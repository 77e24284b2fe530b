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

// Metadata of Nest itself, the same in Nest 10, 11 and 12. They are written out, as most of them are defined in packages that
// an app may not have.

/** Guards and interceptors of a method or class, and the HTTP method of a route. */
export const GUARDS = '__guards__';
export const INTERCEPTORS = '__interceptors__';
export const METHOD = 'method';
/** The redirect of a route, and the mark of a route that answers with a stream of events. */
export const REDIRECT = '__redirect__';
export const SSE = '__sse__';
/**
 * Metadata of a class, by method: the arguments that Nest passes to it, and the mark that Nest sends its response although it
 * has `@Res()`.
 */
export const ROUTE_ARGS = '__routeArguments__';
export const PASSTHROUGH = '__responsePassthrough__';
/** The options of a gateway (namespace and path), and the message of one of its methods. */
export const GATEWAY_OPTIONS = 'websockets:gateway_options';
export const MESSAGE = 'message';
/** The patterns of a message handler. */
export const PATTERN = 'microservices:pattern';
/** The mark of a method that resolves a query, a mutation or a subscription. */
export const RESOLVER = 'graphql:resolver_type';
/** The marks of methods that resolve a field of an object, and a reference to a federated entity. */
export const FIELD_RESOLVER = 'graphql:resolve_property';
export const REFERENCE_RESOLVER = 'graphql:resolve_reference';
/** The token of the options of GraphQLModule. */
export const GRAPHQL_OPTIONS = 'GqlModuleOptions';

export interface RateLimitEntry {
  /** The name of policies in the options, or policies. */
  readonly policy: string | readonly LimitPolicy[];
  readonly override: boolean;
  /** The class or method that the decorator stands on. A subclass inherits the entries of its bases. */
  readonly place: object;
}
