import { AsyncLocalStorage } from 'node:async_hooks';
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
import { replaceMethod } from '../../method/replace-method.js';
import { endOf, handlerThrew } from './call-end.js';
import { ownerOf } from './decorated-methods.js';
import { MEMBER_NAME, METHOD, PATTERN, ROUTE_ARGS, SSE } from './rate-limit.metadata.js';
import { type Visit, visitOf, visitOn } from './visit.js';

type Method = (this: unknown, ...args: never[]) => unknown;

/** Nest's parameter type REQUEST. Pipes do not touch it. */
const REQUEST_PARAMETER = 0;

/** The visits of calls outside of HTTP. Over HTTP a handler finds its visit by its request. */
const visits: AsyncLocalStorage<Visit> = ((
  globalThis as { [key: symbol]: AsyncLocalStorage<Visit> | undefined }
)[Symbol.for('syncguard:als:visits')] ??= new AsyncLocalStorage<Visit>());

/**
 * Reports how a handler has ended to the policies that count failures or successes, before the response leaves. If this
 * counts a failure that sets a block, the call is answered with 429. The interceptor is put at boot on the methods that
 * have such policies, around their other interceptors. All apps of a process share one instance, which finds all that
 * it needs in the visit of the call.
 */
export const OUTCOME_INTERCEPTOR: NestInterceptor = {
  intercept(context: ExecutionContext, next: CallHandler): Observable<unknown> {
    const visit = visitOf(context);
    return visit && visit.inFlight.length > 0 ? around(visit, next) : next.handle();
  },
};

function around(visit: Visit, next: CallHandler): Observable<unknown> {
  const calls = visit.inFlight.splice(0);
  for (const call of calls) call.reachedHandler();
  const returned = async (value?: unknown): Promise<void> => {
    const end = endOf(visit, value);
    // If `end` is undefined, the handler writes its own response, and the calls are settled when that was sent.
    if (end) await Promise.all(calls.map((call) => call.handlerReturned(end)));
  };
  const handling = visit.isHttp ? next.handle() : visits.run(visit, () => next.handle());
  return concat(
    handling.pipe(concatMap((value: unknown) => from(returned(value)).pipe(map(() => value)))),
    defer(() => returned()).pipe(ignoreElements()),
  ).pipe(
    catchError((error: unknown) =>
      from(handlerThrew(visit, calls, error)).pipe(concatMap(() => throwError(() => error))),
    ),
    finalize(() => calls.forEach((call) => call.unsubscribed())),
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
    return isSse && visit.inFlight.length > 0 ? callReporting(visit, call) : call();
  };
}

/**
 * How long after the handler returned to look whether the headers of a stream of events were sent, in ms. If they are sent
 * later than that, the end of the stream settles the call.
 */
const HEADERS_MS = [0, 1_000];

/**
 * Calls a handler of `@Sse` and reports how it ended. An interceptor cannot do that: Nest would send the headers with a 200
 * before the interceptor sees how the handler ended. If the handler throws, the answer can still become a 429. Once the
 * headers were sent, the call has succeeded.
 */
async function callReporting(visit: Visit, call: () => unknown): Promise<unknown> {
  const calls = visit.inFlight.splice(0);
  try {
    const stream = await call();
    for (const ms of HEADERS_MS) setTimeout(() => calls.forEach((each) => each.streamStarted()), ms).unref();
    return stream;
  } catch (error) {
    await handlerThrew(visit, calls, error);
    throw error;
  }
}
