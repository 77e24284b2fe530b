// Metadata of Nest itself, the same in Nest 10, 11 and 12. They are written out, as most of them are defined in packages that
// an app may not have.

/** Guards, interceptors and exception filters of a method or class. */
export const GUARDS = '__guards__';
export const INTERCEPTORS = '__interceptors__';
export const FILTERS = '__exceptionFilters__';
/** The HTTP method, the paths, the hosts and the versions of a route, and the path that RouterModule has given to a module. */
export const METHOD = 'method';
export const PATH = 'path';
export const HOST = 'host';
export const VERSION = '__version__';
export const MODULE_PATH = '__module_path__';
/** The redirect of a route, and the mark of a route that answers with a stream of events. */
export const REDIRECT = '__redirect__';
export const SSE = '__sse__';
/**
 * Metadata of a class, by method: the arguments that Nest passes to it, and the mark that Nest sends its response although it
 * has `@Res()`.
 */
export const ROUTE_ARGS = '__routeArguments__';
const PASSTHROUGH = '__responsePassthrough__';
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

/** Nest's parameter types RESPONSE and NEXT. */
const RESPONSE_OR_NEXT = /^[12]:/;

/** Returns whether a handler writes its response itself: it takes it, or `next`, and does not pass it through. */
export const writesResponse = (type: object, name: string | symbol): boolean =>
  Object.keys((Reflect.getMetadata(ROUTE_ARGS, type, name) ?? {}) as object).some((arg) =>
    RESPONSE_OR_NEXT.test(arg),
  ) && !Reflect.getMetadata(PASSTHROUGH, type, name);
