import type { CallHandler, ExecutionContext, NestInterceptor } from '@nestjs/common';
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
import { handleFor } from './handler-entry.js';
import { type Visit, visitOf } from './visit.js';

/**
 * Reports how a handler has ended to the policies that count failures or successes, before the response leaves. If this
 * counts a failure that sets a block, the call is answered with 429. The interceptor is put at boot on the methods that
 * have such policies, around their other interceptors. All apps of a process share one instance, which finds all that
 * it needs in the visit of the call.
 */
export const OUTCOME_INTERCEPTOR: NestInterceptor = {
  intercept(context: ExecutionContext, next: CallHandler): Observable<unknown> {
    const visit = visitOf(context);
    return visit && visit.inFlight.length > 0 ? around(visit, context, next) : next.handle();
  },
};

function around(visit: Visit, context: ExecutionContext, next: CallHandler): Observable<unknown> {
  const calls = visit.inFlight.splice(0);
  for (const call of calls) call.reachedHandler();
  const returned = (value?: unknown): Promise<void> => visit.limiter.handlerReturned(visit, calls, value);
  const threw = (error: unknown): Promise<void> => visit.limiter.handlerThrew(visit, calls, error);
  return concat(
    handleFor(visit, context, next).pipe(
      concatMap((value: unknown) => from(returned(value)).pipe(map(() => value))),
    ),
    defer(() => returned()).pipe(ignoreElements()),
  ).pipe(
    catchError((error: unknown) => from(threw(error)).pipe(concatMap(() => throwError(() => error)))),
    finalize(() => calls.forEach((call) => call.unsubscribed())),
  );
}
