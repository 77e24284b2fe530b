import {
  type CallHandler,
  type ExecutionContext,
  Inject,
  Injectable,
  type NestInterceptor,
} from '@nestjs/common';
import {
  catchError,
  concat,
  concatMap,
  defer,
  finalize,
  from,
  ignoreElements,
  map,
  type Observable,
  throwError,
} from 'rxjs';
import { ROUTE_LIMITER } from './rate-limit.metadata.js';
import type { RouteLimiter } from './route-limiter.js';

/**
 * Bound by `@RateLimit`, so after all guards: asks the limits that need a user, and tells those that
 * count failures how the call has ended before its answer leaves. The failure that sets a block is answered 429.
 */
@Injectable()
export class RateLimitInterceptor implements NestInterceptor {
  constructor(@Inject(ROUTE_LIMITER) private readonly routes: RouteLimiter) {}

  intercept(
    context: ExecutionContext,
    next: CallHandler,
  ): Observable<unknown> | Promise<Observable<unknown>> {
    return this.routes.isDecided(context) ? next.handle() : this.#around(context, next);
  }

  async #around(context: ExecutionContext, next: CallHandler): Promise<Observable<unknown>> {
    await this.routes.enter(context, 'late');
    const calls = this.routes.takeInFlight(context);
    if (calls.length === 0) return next.handle();
    const answered = (value?: unknown): Promise<unknown> =>
      Promise.all(calls.map((call) => call.answered(value)));
    const failedWith = (error: unknown): Promise<unknown> =>
      Promise.all(calls.map((call) => call.failedWith(error)));
    return concat(
      next.handle().pipe(concatMap((value: unknown) => from(answered(value)).pipe(map(() => value)))),
      defer(() => answered()).pipe(ignoreElements()),
    ).pipe(
      catchError((error: unknown) => from(failedWith(error)).pipe(concatMap(() => throwError(() => error)))),
      finalize(() => calls.forEach((call) => call.unsubscribed())),
    );
  }
}
