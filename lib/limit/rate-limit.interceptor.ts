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
 * Tells limits that count failures or successes how the call has ended before its answer leaves. The failure that sets
 * a block is answered 429. Bound at boot, to the methods that have such limits, around their other interceptors. One
 * instance serves all apps of the process: the call has what it needs to know.
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
  const answered = (value?: unknown): Promise<void> => visit.steward.answered(visit, calls, value);
  const failedWith = (error: unknown): Promise<void> => visit.steward.failedWith(visit, calls, error);
  return concat(
    handleFor(visit, context, next).pipe(
      concatMap((value: unknown) => from(answered(value)).pipe(map(() => value))),
    ),
    defer(() => answered()).pipe(ignoreElements()),
  ).pipe(
    catchError((error: unknown) => from(failedWith(error)).pipe(concatMap(() => throwError(() => error)))),
    finalize(() => calls.forEach((call) => call.unsubscribed())),
  );
}
