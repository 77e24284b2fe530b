import type { CallInFlight, ResponseState } from '../call-in-flight.js';
import type { CallEnd } from '../limit.types.js';
import type { EndingResponse, ResponseLike } from './limited-call.js';
import { MEMBER_NAME, PASSTHROUGH, REDIRECT, ROUTE_ARGS } from './rate-limit.metadata.js';
import type { Visit } from './visit.js';

/** Nest's parameter types RESPONSE and NEXT. With one of them the handler writes the response itself. */
const RESPONSE_OR_NEXT = /^[12]:/;

interface Redirect {
  readonly url?: unknown;
  readonly statusCode?: unknown;
}

/**
 * Returns how a call will be answered, now that its handler has returned a value and before the headers leave. Returns
 * undefined if the handler writes the response itself.
 */
export function endOf(
  { call: { response }, handler, type, handled, isHttp }: Visit,
  value: unknown,
): CallEnd | undefined {
  if (!isHttp || !response) return { statusCode: 200, location: undefined, value, handled };
  if (writesResponse(type, handler)) return undefined;
  const redirect = Reflect.getMetadata(REDIRECT, handler) as Redirect | undefined;
  if (typeof redirect?.url !== 'string')
    return { statusCode: response.statusCode, location: locationOf(response), value, handled };
  // As Nest does, the returned `{ url, statusCode }` is preferred to that of `@Redirect`.
  const { url, statusCode } = (value ?? {}) as Redirect;
  return {
    statusCode: [statusCode, redirect.statusCode].find(isStatus) ?? 302,
    location: [url, redirect.url].find((each) => typeof each === 'string' && each !== '') as
      string | undefined,
    value,
    handled,
  };
}

/** Reports to the policies that count a call that its handler, or something around it, threw. */
export async function handlerThrew(
  { handled }: Visit,
  calls: readonly CallInFlight[],
  error: unknown,
): Promise<void> {
  const end = { location: undefined, value: undefined, handled };
  await Promise.all(calls.map((call) => call.handlerThrew(error, end)));
}

/** Returns the `Location` header of a response. The raw response of Fastify gets its headers only when they leave. */
function locationOf(response: Pick<ResponseLike, 'getHeader'>): string | undefined {
  const location = response.getHeader?.('location');
  return typeof location === 'string' ? location : undefined;
}

/** Returns whether the handler has `@Res()` or `@Next()` without `passthrough`. */
function writesResponse(type: object, handler: { name: string; [MEMBER_NAME]?: string | symbol }): boolean {
  const key = handler[MEMBER_NAME] ?? handler.name;
  const args = (Reflect.getMetadata(ROUTE_ARGS, type, key) ?? {}) as object;
  return (
    Object.keys(args).some((arg) => RESPONSE_OR_NEXT.test(arg)) &&
    !Reflect.getMetadata(PASSTHROUGH, type, key)
  );
}

const isStatus = (value: unknown): value is number => typeof value === 'number' && value > 0;

/** Returns the HTTP response of a call, as it is at each time. */
export function stateOf(visit: Visit, response: ResponseLike): ResponseState {
  const raw = rawOf(response);
  return {
    get statusCode() {
      return response.statusCode;
    },
    // A handler may have written headers to the raw response. The reply of Fastify does not have those.
    get location() {
      return locationOf(raw.headersSent ? raw : response);
    },
    get handled() {
      return visit.handled;
    },
    get headersSent() {
      return raw.headersSent;
    },
  };
}

export const rawOf = (response: ResponseLike): EndingResponse =>
  response.raw ?? (response as unknown as EndingResponse);

/** Makes the response settle a call at the latest. If this sets a block, it is too late for this response. The next call is denied. */
export function settleByResponse(call: CallInFlight, response: ResponseLike, asksLocation: boolean): void {
  const raw = rawOf(response);
  if (response.raw && asksLocation) keepHeaders(raw);
  raw.once('finish', () => void call.responseSent().catch(() => {}));
  raw.once('close', () => void call.connectionClosed().catch(() => {}));
}

/**
 * Makes Node.js keep the headers that are passed to `writeHead`. By itself it keeps them only if a header was set before, as
 * Express does. Otherwise `getHeader` would not find the `Location` of a redirect that is written to the raw response.
 */
function keepHeaders(raw: EndingResponse): void {
  if (raw.headersSent) return;
  raw.setHeader('x-syncguard', '');
  raw.removeHeader('x-syncguard');
}
