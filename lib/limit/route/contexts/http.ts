import type { ExecutionContext } from '@nestjs/common';
import type { LimitedCall, RequestLike, ResponseLike } from '../limited-call.js';
import type { HttpRoutes } from '../http-routes.js';

export type HttpRequest = RequestLike & {
  readonly method: string;
  readonly url: string;
  readonly originalUrl?: string;
  /** The matched route: `route` in Express, `routeOptions` in Fastify. */
  readonly route?: { readonly path?: string | RegExp };
  readonly routeOptions?: { readonly url?: string };
};

/** Reads a request of Express or Fastify. */
export function httpCall(context: ExecutionContext, routes: HttpRoutes): LimitedCall {
  const http = context.switchToHttp();
  const request = http.getRequest<HttpRequest>();
  return {
    request,
    route: routes.nameOf(context.getClass(), context.getHandler(), request),
    url: request.originalUrl ?? request.url,
    response: http.getResponse<ResponseLike>(),
  };
}
