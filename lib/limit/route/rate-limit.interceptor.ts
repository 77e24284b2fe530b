import type { CallHandler, ExecutionContext, NestInterceptor } from '@nestjs/common';
import { catchError, concat, concatMap, defer, finalize, ignoreElements, type Observable } from 'rxjs';
import { sharedStorage } from '../../core/frames.js';
import { replaceMethod } from '../../method/replace-method.js';
import type { CallVisit } from './call-visit.js';
import { ownerOf } from './decorated-methods.js';
import { METHOD, PATTERN, ROUTE_ARGS, SSE } from '../../transport/nest-metadata.js';
import { MEMBER_NAME } from './rate-limit.metadata.js';
import { visitOf, visitOn } from './visit.js';

type Method = (this: unknown, ...args: never[]) => unknown;

/** Nest's parameter type REQUEST. Pipes do not touch it. */
const REQUEST_PARAMETER = 0;

/** The visits of calls outside of HTTP. Over HTTP a handler finds its visit by its request. */
const visits = sharedStorage<CallVisit>('syncguard:als:visits');

/**
 * Reports how a handler has ended to the policies that count failures or successes, before the response leaves. If this
 * counts a failure that sets a block, the call is answered with 429. The interceptor is put at boot on the methods that
 * have such policies, around their other interceptors. All apps of a process share one instance, which finds all that
 * it needs in the visit of the call.
 */
export const OUTCOME_INTERCEPTOR: NestInterceptor = {
  intercept(context: ExecutionContext, next: CallHandler): Observable<unknown> {
    const visit = visitOf(context);
    return visit?.isInFlight ? around(visit, next) : next.handle();
  },
};

function around(visit: CallVisit, next: CallHandler): Observable<unknown> {
  visit.handlerReached();
  const handling = visit.isHttp ? next.handle() : visits.run(visit, () => next.handle());
  return concat(
    handling.pipe(concatMap((value: unknown) => visit.handlerReturned(value).then(() => value))),
    defer(() => visit.handlerReturned(undefined)).pipe(ignoreElements()),
  ).pipe(
    catchError(async (error: unknown) => {
      await visit.threw(error);
      throw error;
    }),
    finalize(() => visit.unsubscribed()),
  );
}

/**
 * Replaces a handler by one that marks the visit as handled when it is called. Guards and interceptors do not know
 * whether the handler is called, because pipes run after them. The replacement holds for all apps of the process that
 * share the class.
 *
 * Over HTTP the handler finds its visit by the request. Nest passes the request as one more argument, which the original
 * method does not get.
 */
export function noteEntry(type: { readonly prototype: object }, key: string | symbol): void {
  const owner = ownerOf(type.prototype, key);
  const descriptor = owner && Object.getOwnPropertyDescriptor(owner, key);
  const method: unknown = descriptor?.value;
  if (!owner || typeof method !== 'function' || MEMBER_NAME in method) return;
  const isHttp = Reflect.hasMetadata(METHOD, method) && !Reflect.hasMetadata(PATTERN, method);
  const place = isHttp ? addRequestArgument(owner.constructor, key, method.length) : undefined;
  replaceMethod('@RateLimit', owner, key, descriptor, (original) => notingMethod(original, place));
  const noting = descriptor?.value as object;
  // The metadata that `method` inherits is copied too. A decorator of another package may have replaced the original method
  // by a function whose prototype is the original.
  for (const name of Reflect.getMetadataKeys(method) as unknown[])
    Reflect.defineMetadata(name, Reflect.getMetadata(name, method), noting);
  Object.defineProperty(noting, MEMBER_NAME, { value: key });
  Object.defineProperty(owner, key, descriptor as PropertyDescriptor);
}

/** The index of the argument that holds the request, and how many arguments the original method gets. */
type RequestPlace = Readonly<Record<'index' | 'ownArgs', number>>;

/** Makes Nest pass the request to a method, as one argument after those of the method. */
function addRequestArgument(constructor: object, key: string | symbol, length: number): RequestPlace {
  const known = (Reflect.getMetadata(ROUTE_ARGS, constructor, key) ?? {}) as Record<
    string,
    { index: number }
  >;
  const ownArgs = Math.max(0, ...Object.values(known).map(({ index }) => index + 1));
  const index = Math.max(ownArgs, length);
  const added = { [`${REQUEST_PARAMETER}:${index}`]: { index, data: undefined, pipes: [] } };
  Reflect.defineMetadata(ROUTE_ARGS, { ...known, ...added }, constructor, key);
  return { index, ownArgs };
}

function notingMethod(original: Method, place: RequestPlace | undefined): Method {
  const isSse = Reflect.hasMetadata(SSE, original);
  return function (this: unknown, ...args: never[]): unknown {
    const isNests = place !== undefined && args.length === place.index + 1;
    const visit = isNests ? visitOn(args[place.index]) : visits.getStore();
    const call = (): unknown => original.apply(this, isNests ? args.slice(0, place.ownArgs) : args);
    if (!visit) return call();
    visit.handled = true;
    return isSse && visit.isInFlight ? callReporting(visit, call) : call();
  };
}

/**
 * Calls a handler of `@Sse` and reports what it throws. An interceptor cannot do that: Nest would send the headers with a 200
 * before the interceptor sees how the handler ended. If the handler throws, the answer can still become a 429.
 */
async function callReporting(visit: CallVisit, call: () => unknown): Promise<unknown> {
  visit.handlerReached();
  try {
    return await call();
  } catch (error) {
    await visit.threw(error);
    throw error;
  }
}
