import type { ExecutionContext } from '@nestjs/common';
import type { CallVisit } from './call-visit.js';
import { graphqlCall } from './contexts/graphql.js';
import { httpCall } from './contexts/http.js';
import { messageCall } from './contexts/rpc.js';
import { socketCall } from './contexts/ws.js';
import type { HttpRoutes } from '../../transport/http-routes.js';
import type { LimitedCall } from './limited-call.js';

const READERS: Readonly<Record<string, (context: ExecutionContext, routes: HttpRoutes) => LimitedCall>> = {
  http: httpCall,
  graphql: graphqlCall,
  ws: socketCall,
  rpc: messageCall,
};

export const limitedCall = (context: ExecutionContext, routes: HttpRoutes): LimitedCall | undefined =>
  READERS[context.getType<string>()]?.(context, routes);

/**
 * Returns an object that belongs to this call alone, and is the same in its guards and its interceptor. Over HTTP that is the
 * request. Elsewhere several fields or messages share a request. In GraphQL it is what the executor tells each field of
 * itself, otherwise the list of the handler's arguments.
 */
export function callObject(context: ExecutionContext): object {
  if (context.getType() === 'http') return context.switchToHttp().getRequest<object>();
  const args = context.getArgs<unknown[]>();
  const last = args.at(-1);
  const isField = typeof last === 'object' && last !== null && 'fieldName' in last;
  return context.getType<string>() === 'graphql' && isField ? last : args;
}

/** The visit is a property of the call. A WeakMap of all requests was measured to double the time of garbage collection. */
const VISIT = Symbol.for('syncguard:visit');

interface Visited {
  [VISIT]?: CallVisit;
}

/**
 * Returns the visit that a guard of ours has left on a request, whatever handler it was for. A middleware of Fastify leaves its
 * visit on the request of Node.js.
 */
export const visitOn = (place: unknown): CallVisit | undefined => {
  const request = place as (Visited & { readonly raw?: Visited }) | null | undefined;
  return request?.[VISIT] ?? request?.raw?.[VISIT];
};

export const leaveVisit = (place: object, visit: CallVisit): CallVisit => ((place as Visited)[VISIT] = visit);

/** Returns the visit that a guard of ours has left on this call, for this handler. */
export function visitOf(context: ExecutionContext): CallVisit | undefined {
  const visit = visitOn(callObject(context));
  return visit?.isOf(context.getHandler(), context.getClass()) ? visit : undefined;
}
