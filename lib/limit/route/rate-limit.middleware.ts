import type { ExecutionContext, INestApplicationContext } from '@nestjs/common';
import { SyncGuardConfigError } from '../../core/errors.js';
import type { ResolvedPolicy } from '../limit.policy.js';
import { CallVisit, type Plan } from './call-visit.js';
import type { EndingResponse, HttpRequest, ResponseLike } from './limited-call.js';
import { ROUTE_LIMITER } from './rate-limit.metadata.js';
import type { RouteLimiter } from './route-limiter.js';
import { leaveVisit, visitOn } from './visit.js';

type Next = (error?: unknown) => void;
type Middleware = (request: object, response: object, next: Next) => void;

/**
 * Returns a middleware that applies a policy of the `limits` option to what no guard sees: unknown paths, static files, routers of
 * other packages. It works on Express and on Fastify. A denied request gets the same 429 as from the guard, by the filters of the app.
 * What it has counted for `default`, `RateLimitGuard` does not count again, except for fields of GraphQL.
 *
 * It runs before routes, bodies and users are known: a policy by `body.*`, `params.*`, `'route'` or `'user'`, or with `ask: 'after'` or `judgedBy: 'guards'`, is refused.
 *
 * @param app - the app, before it listens
 * @param policy - a name in the `limits` option. Default: `'default'`.
 * @throws SyncGuardConfigError for a policy that it cannot ask
 * @throws SyncGuardConfigError `RATE_LIMIT_UNKNOWN_POLICY` if there is no such policy
 * @example
 * const app = await NestFactory.create(AppModule);
 * app.use(rateLimit(app));
 * app.useStaticAssets('public');
 */
export function rateLimit(
  app: Pick<INestApplicationContext, 'get'>,
  policy = 'default',
): (request: object, response: object, next: (error?: unknown) => void) => void {
  const routes = app.get<RouteLimiter>(ROUTE_LIMITER, { strict: false });
  const policies = routes.policiesNamed(policy);
  for (const each of policies) refuseUnknowable(policy, each);
  const plan: Plan = { routeTag: 'midw', default: policies, before: [], after: [], defaultAfter: [] };
  // Other policies than `default` are none that the guard would ask.
  const stage = policy === 'default' ? 'default' : 'before';
  return function rateLimitMiddleware(request, response, next): void {
    const context = middlewareContext(rateLimitMiddleware, request, response, next);
    const { originalUrl, url } = request as HttpRequest;
    const call = {
      ...{ request: request as HttpRequest, response: response as ResponseLike & EndingResponse },
      ...{ route: 'middleware', url: originalUrl ?? url },
    };
    const visit = new CallVisit(context, call, plan, routes);
    visit.follows(visitOn(request));
    const passed = routes.pass(leaveVisit(request, visit), stage, policies);
    // A client that has left gets no answer.
    passed.then((isThere) => (isThere ? next() : undefined)).catch(next);
  };
}

/** Throws for a policy that needs what a middleware does not know. */
function refuseUnknowable(name: string, { keyBy, ask, judgedBy }: ResolvedPolicy): void {
  const unknown = [keyBy]
    .flat()
    .find((part) => typeof part === 'string' && /^(body|params|user|route)\b/.test(part));
  if (unknown === undefined && ask === 'before' && judgedBy !== 'guards') return;
  const what =
    unknown !== undefined
      ? `counts by '${unknown as string}'`
      : ask === 'after'
        ? 'is asked after the guards'
        : 'is judged by the guards';
  throw new SyncGuardConfigError(
    `rateLimit(app, '${name}') cannot ask a policy that ${what}, because a middleware runs before that is known.`,
    {
      hint: "Use a policy by 'ip', a header or a function with `ask: 'before'`, and leave this one to the guard.",
    },
  );
}

/** A middleware stands where Nest has no context yet. */
class RateLimitMiddleware {}

function middlewareContext(handler: Middleware, ...args: [object, object, Next]): ExecutionContext {
  const http = { getRequest: () => args[0], getResponse: () => args[1], getNext: () => args[2] };
  const notHere = (): never => {
    throw new TypeError('A middleware has no context of messages.');
  };
  return {
    getClass: () => RateLimitMiddleware,
    getHandler: () => handler,
    getArgs: () => args,
    getArgByIndex: (index: number) => args[index],
    getType: () => 'http',
    switchToHttp: () => http,
    switchToRpc: notHere,
    switchToWs: notHere,
  } as unknown as ExecutionContext;
}
