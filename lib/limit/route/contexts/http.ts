import type { ExecutionContext } from '@nestjs/common';
import type { HttpRoutes } from '../../../transport/http-routes.js';
import type { HttpRequest, LimitedCall, ResponseLike } from '../limited-call.js';

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
