import { AsyncLocalStorage } from 'node:async_hooks';
import type { CallHandler, ExecutionContext } from '@nestjs/common';
import type { Observable } from 'rxjs';
import { replaceMethod } from '../replace-method.js';
import { chainOf } from './decorated-methods.js';
import { METHOD, PATTERN, ROUTE_ARGS, SSE } from './rate-limit.metadata.js';
import { type Visit, visitOn } from './visit.js';

type Method = (this: unknown, ...args: never[]) => unknown;

/** On a method that notes when it is called: what it is called by. */
const NOTES_ENTRY = Symbol.for('syncguard:notes-entry');
/** Nest's parameter of type REQUEST, which no pipe touches. */
const REQUEST_PARAMETER = 0;

/** Where no argument leads to the call: elsewhere than over HTTP. */
const visits: AsyncLocalStorage<Visit> = ((
  globalThis as { [key: symbol]: AsyncLocalStorage<Visit> | undefined }
)[Symbol.for('syncguard:als:visits')] ??= new AsyncLocalStorage<Visit>());

/** Calls the handler, which will find its visit. */
export const handleFor = (visit: Visit, context: ExecutionContext, next: CallHandler): Observable<unknown> =>
  context.getType() === 'http' ? next.handle() : visits.run(visit, () => next.handle());

/**
 * Has a handler note that it was called, which neither guards nor interceptors can see: pipes run after them. It stands in
 * the place of the method as decorators' functions do, for all apps of the process that share the class.
 *
 * Over HTTP it finds the call by the request, for which it asks Nest in one more argument that the method does not see.
 */
export function noteEntry(type: { readonly prototype: object }, key: string | symbol): void {
  const owner = ownerOf(type.prototype, key);
  const descriptor = owner && Object.getOwnPropertyDescriptor(owner, key);
  const method: unknown = descriptor?.value;
  if (!owner || typeof method !== 'function' || NOTES_ENTRY in method) return;
  const isHttp = Reflect.hasMetadata(METHOD, method) && !Reflect.hasMetadata(PATTERN, method);
  const place = isHttp ? askForRequest(owner.constructor, key, method.length) : undefined;
  replaceMethod('@RateLimit', owner, key, descriptor, (original) => notingMethod(original, place));
  const noting = descriptor?.value as object;
  // Also what another wrapper has by inheritance.
  for (const name of Reflect.getMetadataKeys(method) as unknown[])
    Reflect.defineMetadata(name, Reflect.getMetadata(name, method), noting);
  Object.defineProperty(noting, NOTES_ENTRY, { value: key });
  Object.defineProperty(owner, key, descriptor as PropertyDescriptor);
}

/** Where in its arguments a method finds the request, and how many it takes itself. */
interface RequestPlace {
  readonly index: number;
  readonly ownArgs: number;
}

function askForRequest(constructor: object, key: string | symbol, length: number): RequestPlace {
  const known = (Reflect.getMetadata(ROUTE_ARGS, constructor, key) ?? {}) as Record<
    string,
    { index: number }
  >;
  const ownArgs = Math.max(0, ...Object.values(known).map(({ index }) => index + 1));
  const index = Math.max(ownArgs, length);
  const asked = { [`${REQUEST_PARAMETER}:${index}`]: { index, data: undefined, pipes: [] } };
  Reflect.defineMetadata(ROUTE_ARGS, { ...known, ...asked }, constructor, key);
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
    return isSse && visit.inFlight.length > 0 ? reported(visit, call) : call();
  };
}

/** How long the headers of a stream of events may take, in ms; later its end tells. */
const HEADERS_MS = [0, 1_000];

/**
 * A stream of events reports for itself: an interceptor around it would commit its 200 before anything is known. What it
 * throws can still be answered with a denial; once its headers are out it has succeeded.
 */
async function reported(visit: Visit, call: () => unknown): Promise<unknown> {
  const calls = visit.inFlight.splice(0);
  try {
    const stream = await call();
    for (const ms of HEADERS_MS)
      setTimeout(() => {
        for (const each of calls) each.streaming();
      }, ms).unref();
    return stream;
  } catch (error) {
    await visit.steward.failedWith(visit, calls, error);
    throw error;
  }
}

/** What Nest calls a method by: another decorator may have put a function of another name in its place. */
export const keyOf = (method: { readonly name: string }): string | symbol =>
  (method as { [NOTES_ENTRY]?: string | symbol })[NOTES_ENTRY] ?? method.name;

function ownerOf(prototype: object, key: string | symbol): object | undefined {
  for (const at of chainOf(prototype)) if (Object.hasOwn(at, key)) return at;
  return undefined;
}
