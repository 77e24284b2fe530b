import { type ExecutionContext, RequestMethod } from '@nestjs/common';
import { HOST, METHOD, VERSION } from '../rate-limit.metadata.js';
import type { LimitedCall, RequestLike, ResponseLike } from '../limited-call.js';

export type HttpRequest = RequestLike & {
  readonly method: string;
  readonly url: string;
  readonly originalUrl?: string;
  /** The matched route: `route` in Express, `routeOptions` in Fastify. */
  readonly route?: { readonly path?: string | RegExp };
  readonly routeOptions?: { readonly url?: string };
};

/** Reads a request of Express or Fastify. */
export function httpCall(context: ExecutionContext): LimitedCall {
  const http = context.switchToHttp();
  const request = http.getRequest<HttpRequest>();
  return {
    request,
    route: httpRoute(context, request),
    url: request.originalUrl ?? request.url,
    response: http.getResponse<ResponseLike>(),
  };
}

function httpRoute(context: ExecutionContext, request: HttpRequest): string {
  const { method, host, version } = declaredOf(context.getClass(), context.getHandler());
  const template = String(request.routeOptions?.url ?? request.route?.path ?? '*');
  return `${method ?? (request.method === 'HEAD' ? 'GET' : request.method)} ${host}${template}${version}`;
}

/** The parts of a route's name that its decorators define. */
type Declared = ReturnType<typeof readDeclared>;
const declared = new WeakMap<object, WeakMap<object, Declared>>();

/** Reads the decorators once for each route, because reading metadata walks up all bases of a class. */
function declaredOf(type: object, handler: object): Declared {
  let ofClass = declared.get(type);
  if (!ofClass) declared.set(type, (ofClass = new WeakMap<object, Declared>()));
  let route = ofClass.get(handler);
  if (!route) ofClass.set(handler, (route = readDeclared(type, handler)));
  return route;
}

function readDeclared(type: object, handler: object) {
  const version = (Reflect.getMetadata(VERSION, handler) ?? Reflect.getMetadata(VERSION, type)) as
    string | symbol | string[] | undefined;
  const host = Reflect.getMetadata(HOST, type) as string | RegExp | (string | RegExp)[] | undefined;
  return {
    // The client chooses the method of a route that takes all, so they count together.
    method: Reflect.getMetadata(METHOD, handler) === RequestMethod.ALL ? '*' : undefined,
    // The template of the host, and not the `Host` that a client sends.
    host: host === undefined ? '' : [host].flat().map(String).join(','),
    version: version === undefined ? '' : `@${String(version)}`,
  };
}
