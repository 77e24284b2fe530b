import type { ExecutionContext } from '@nestjs/common';
import type { PolicyCheck } from '../limit.policy.js';
import type { CallEnd } from '../limit.types.js';
import type { EndingResponse, LimitedCall, ResponseLike } from './limited-call.js';
import { REDIRECT, writesResponse } from '../../transport/nest-metadata.js';
import { MEMBER_NAME } from './rate-limit.metadata.js';

/** A call whose end is told by HTTP. */
export interface EndingCall {
  readonly context: ExecutionContext;
  readonly call: LimitedCall;
  readonly isHttp: boolean;
  readonly handled: boolean;
  headersWritten(statusCode: number): void;
  connectionClosed(): void;
}

interface Redirect {
  readonly url?: unknown;
  readonly statusCode?: unknown;
}

/**
 * Returns how a call will be answered, now that its handler has returned a value and before the headers leave. Returns
 * undefined if the handler writes the response itself.
 */
export function endOf(
  { call: { response }, context, handled, isHttp }: EndingCall,
  value: unknown,
): CallEnd | undefined {
  const handler: { name: string; [MEMBER_NAME]?: string | symbol } = context.getHandler();
  if (!isHttp || !response) return { statusCode: 200, location: undefined, value, handled };
  if (writesResponse(context.getClass(), handler[MEMBER_NAME] ?? handler.name)) return undefined;
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

/** Returns the `Location` header of a response. The raw response of Fastify gets its headers only when they leave. */
export function locationOf(response: Pick<ResponseLike, 'getHeader'>): string | undefined {
  const location = response.getHeader?.('location');
  return typeof location === 'string' ? location : undefined;
}

const isStatus = (value: unknown): value is number => typeof value === 'number' && value > 0;

export const rawOf = (response: ResponseLike): EndingResponse =>
  response.raw ?? (response as unknown as EndingResponse);

/**
 * Returns whether the client of a call has left. HTTP/2 has a stream for each response, HTTP/1 a socket for each request.
 * Nothing else tells: a request is destroyed as soon as its body was read, a response that waits behind another one on its
 * connection has no socket, and a response of HTTP/2 does not say whether it is destroyed.
 */
export function isGone({ request, response }: LimitedCall): boolean {
  const stream = response && rawOf(response).stream;
  return (stream ?? request.socket)?.destroyed === true || isReset(request);
}

/**
 * Returns whether the client has reset the connection, and Node.js has not noticed yet. Then the address of the peer is gone,
 * and ours is not. A Unix socket, or the adapter of a serverless platform, has neither.
 */
const isReset = ({ socket }: LimitedCall['request']): boolean =>
  socket?.remoteAddress === undefined && socket?.localAddress !== undefined;

/**
 * Reports to a call when its headers are written, by whom ever, or when its connection closes before that. A client that
 * does not read keeps a response from ending, but not its headers from being written.
 */
export function watchResponse(
  response: ResponseLike,
  call: EndingCall,
  checks: readonly PolicyCheck[],
): void {
  const raw = rawOf(response);
  if (response.raw && checks.some(({ policy }) => policy.isFailure)) keepHeaders(raw);
  const { writeHead } = raw;
  raw.writeHead = function (this: EndingResponse, ...args: [status: number, ...unknown[]]) {
    const result = writeHead.apply(this, args);
    // Below 200 more headers follow. A stream of HTTP/2 that was cancelled takes headers and does not send them.
    if (raw.statusCode >= 200 && raw.headersSent) call.headersWritten(raw.statusCode);
    return result;
  };
  // Headers may also be written past `writeHead`, by `stream.respond` of HTTP/2. A cancelled stream finishes without any.
  const ended = (): void => {
    if (raw.headersSent) call.headersWritten(raw.stream?.sentHeaders?.[':status'] ?? raw.statusCode);
    else call.connectionClosed();
  };
  raw.once('finish', ended);
  raw.once('close', ended);
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
