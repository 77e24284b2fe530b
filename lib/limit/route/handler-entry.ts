import { AsyncLocalStorage } from 'node:async_hooks';
import type { CallHandler, ExecutionContext } from '@nestjs/common';
import type { Observable } from 'rxjs';
import { replaceMethod } from '../../method/replace-method.js';
import { chainOf } from './decorated-methods.js';
import { METHOD, PATTERN, ROUTE_ARGS, SSE } from './rate-limit.metadata.js';
import { type Visit, visitOn } from './visit.js';

type Method = (this: unknown, ...args: never[]) => unknown;

/** A property of the methods that `noteEntry` has put in place. It holds the name under which the class has the method. */
const NOTES_ENTRY = Symbol.for('syncguard:notes-entry');
/** Nest's parameter type REQUEST. Pipes do not touch it. */
const REQUEST_PARAMETER = 0;

/** The visits of calls outside of HTTP. Over HTTP a handler finds its visit by its request. */
const visits: AsyncLocalStorage<Visit> = ((
  globalThis as { [key: symbol]: AsyncLocalStorage<Visit> | undefined }
)[Symbol.for('syncguard:als:visits')] ??= new AsyncLocalStorage<Visit>());

/**
 * Calls the handler in a way that lets it find its visit, which holds what the guard and the interceptor know about
 * this call.
 */
export const handleFor = (visit: Visit, context: ExecutionContext, next: CallHandler): Observable<unknown> =>
  context.getType() === 'http' ? next.handle() : visits.run(visit, () => next.handle());

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
  if (!owner || typeof method !== 'function' || NOTES_ENTRY in method) return;
  const isHttp = Reflect.hasMetadata(METHOD, method) && !Reflect.hasMetadata(PATTERN, method);
  const place = isHttp ? addRequestArgument(owner.constructor, key, method.length) : undefined;
  replaceMethod('@RateLimit', owner, key, descriptor, (original) => notingMethod(original, place));
  const noting = descriptor?.value as object;
  // The metadata that `method` inherits is copied too. A decorator of another package may have replaced the original method
  // by a function whose prototype is the original.
  for (const name of Reflect.getMetadataKeys(method) as unknown[])
    Reflect.defineMetadata(name, Reflect.getMetadata(name, method), noting);
  Object.defineProperty(noting, NOTES_ENTRY, { value: key });
  Object.defineProperty(owner, key, descriptor as PropertyDescriptor);
}

interface RequestPlace {
  /** The index of the argument that holds the request. */
  readonly index: number;
  /** How many arguments the original method gets. */
  readonly ownArgs: number;
}

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
    for (const ms of HEADERS_MS)
      setTimeout(() => {
        for (const each of calls) each.streamStarted();
      }, ms).unref();
    return stream;
  } catch (error) {
    await visit.limiter.handlerThrew(visit, calls, error);
    throw error;
  }
}

/** Returns the name under which the class has a method. The function itself may have another name, given by a decorator. */
export const memberNameOf = (method: { readonly name: string }): string | symbol =>
  (method as { [NOTES_ENTRY]?: string | symbol })[NOTES_ENTRY] ?? method.name;

function ownerOf(prototype: object, key: string | symbol): object | undefined {
  for (const at of chainOf(prototype)) if (Object.hasOwn(at, key)) return at;
  return undefined;
}
