import type { LimitPolicy } from './limit.types.js';

/** Metadata of a class or method: its limits, the first decorator first. */
export const RATE_LIMITS = Symbol.for('syncguard:rate-limits');
/** Metadata of a class or method: `true`, or the names of the limits that leave it alone. */
export const SKIPPED_LIMITS = Symbol.for('syncguard:skipped-limits');
/** Metadata of a guard: it applies the policy `default`. */
export const APPLIES_DEFAULT = Symbol.for('syncguard:applies-default');
/** Metadata of a guard of ours: 'default', or 'route' of that which `@RateLimit` binds. */
export const OUR_GUARD = Symbol.for('syncguard:guard');
/** The one that knows the limits of every route, for guards and interceptor. */
export const ROUTE_LIMITER = Symbol.for('syncguard:RouteLimiter (is SyncGuardModule.forRoot() imported?)');

// Nest's own, the same in Nest 11 and 12. By their texts, as most of them stand in packages that are optional.

/** Of a method or class: its guards, interceptors and version; of a controller: its host; of a route: its HTTP method. */
export const GUARDS = '__guards__';
export const INTERCEPTORS = '__interceptors__';
export const VERSION = '__version__';
export const HOST = 'host';
export const METHOD = 'method';
/** Of a route: where it redirects to, and that it answers with a stream of events. */
export const REDIRECT = '__redirect__';
export const SSE = '__sse__';
/** Of a class, by method: what Nest puts into its arguments, and that its response is Nest's to send nevertheless. */
export const ROUTE_ARGS = '__routeArguments__';
export const PASSTHROUGH = '__responsePassthrough__';
/** Of a gateway: its namespace and path; of its method: the message. */
export const GATEWAY_OPTIONS = 'websockets:gateway_options';
export const MESSAGE = 'message';
/** Of a message handler: its patterns. */
export const PATTERN = 'microservices:pattern';
/** Of a method that resolves a query, a mutation or a subscription. */
export const RESOLVER = 'graphql:resolver_type';
/** Of a method that resolves a field of an object, and of one that resolves a reference to a federated entity. */
export const FIELD_RESOLVER = 'graphql:resolve_property';
export const REFERENCE_RESOLVER = 'graphql:resolve_reference';
/** The provider that holds the options of GraphQL. */
export const GRAPHQL_OPTIONS = 'GqlModuleOptions';

export interface RateLimitEntry {
  readonly policy: string | LimitPolicy | readonly LimitPolicy[];
  readonly override: boolean;
  /** The class or method that the decorator stands on: a subclass has those of its bases too. */
  readonly place: object;
}
