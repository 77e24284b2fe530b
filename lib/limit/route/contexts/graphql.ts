import type { ExecutionContext } from '@nestjs/common';
import type { HttpRequest, LimitedCall, RequestLike, ResponseLike } from '../limited-call.js';

/**
 * The GraphQL context, in the shapes that drivers and apps give it. A subscription has the HTTP request that opened its
 * WebSocket.
 */
interface GraphQLContext {
  readonly req?: GraphQLCarrier;
  readonly request?: GraphQLCarrier;
  readonly res?: ResponseLike;
  readonly reply?: ResponseLike;
  readonly user?: unknown;
  readonly extra?: { readonly request?: RequestLike & Partial<Pick<HttpRequest, 'url' | 'originalUrl'>> };
}
type GraphQLCarrier = HttpRequest & { readonly res?: ResponseLike; readonly extra?: GraphQLContext['extra'] };

/** Reads a field of GraphQL, or the resolver of a reference. */
export function graphqlCall(context: ExecutionContext): LimitedCall {
  // The field info is found by its shape, because a resolver of references gets other arguments than a field.
  const args = context.getArgs<unknown[]>();
  const at = args.findLastIndex(isFieldInfo);
  const { parentType, fieldName } = args[at] as FieldInfo;
  const shared = (args[at - 1] ?? {}) as GraphQLContext;
  const carrier = shared.req ?? shared.request ?? (shared as GraphQLCarrier);
  const request = carrier.extra?.request ?? carrier;
  return {
    request: Object.create(request, {
      headers: { value: request.headers ?? {} },
      body: { value: argumentsOf(at === 3 ? args[1] : {}) },
      // A getter, because guards find the user later, and put it on one of these objects.
      user: { get: () => carrier.user ?? request.user ?? shared.user },
    }) as RequestLike,
    route: `GraphQL ${at === 3 ? `${parentType.name}.${fieldName}` : entityOf(args[0], fieldName)}`,
    url: request.originalUrl ?? request.url,
    response: shared.res ?? shared.reply ?? carrier.res,
  };
}

interface FieldInfo {
  readonly fieldName: string;
  readonly parentType: { readonly name: string };
}

const isFieldInfo = (arg: unknown): boolean =>
  typeof arg === 'object' && arg !== null && 'fieldName' in arg && 'parentType' in arg;

/** All types share one field for references, so a resolver of references is named by its type. */
const entityOf = (reference: unknown, fieldName: string): string =>
  `${(reference as { __typename?: string } | null)?.__typename ?? fieldName}.__resolveReference`;

/**
 * Returns the arguments of a field and the fields of its input objects as one object, which stands for the body. All input
 * objects count, so that a client cannot change its key by an optional argument. An argument is preferred to a field of the
 * same name, and a field of an input that comes earlier in the schema to one that comes later.
 */
function argumentsOf(args: unknown): object {
  const given = (args ?? {}) as Record<string, unknown>;
  const inputs = Object.values(given).filter(
    (value) => typeof value === 'object' && value !== null && !Array.isArray(value),
  );
  return Object.assign(Object.create(null) as object, ...inputs.reverse(), given) as object;
}
