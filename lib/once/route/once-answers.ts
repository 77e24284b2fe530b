import { type ArgumentsHost, Catch, type ExceptionFilter } from '@nestjs/common';
import type { Answer } from '../once.codec.js';
import type { OnceVisit } from './once-visit.js';
import type { OnceError } from '../once.errors.js';
import { refusalOf } from '../../transport/syncguard-exception.filter.js';

/** The visit is a property of the request, as that of limits. */
const VISIT = Symbol.for('syncguard:once-visit');
type Visited = { [VISIT]?: OnceVisit | undefined };

export const visitOn = (request: object): OnceVisit | undefined => (request as Visited)[VISIT];

/** The parts of a response of Express (or Node.js), and of a reply of Fastify, that are used here. */
interface RawResponse {
  statusCode: number;
  getHeaders(): Record<string, number | string | string[] | undefined>;
  setHeader(name: string, value: string | readonly string[]): unknown;
  removeHeader(name: string): unknown;
  write(...args: unknown[]): boolean;
  end(...args: unknown[]): unknown;
  once(event: 'close', listener: () => void): unknown;
}
interface Reply {
  readonly raw: object;
  statusCode: number;
  code(status: number): unknown;
  getHeaders(): Record<string, number | string | string[] | undefined>;
  header(name: string, value: string | readonly string[]): unknown;
  removeHeader(name: string): unknown;
  send(body?: unknown): unknown;
}

const isReply = (response: object): response is Reply => 'raw' in response;

/** Lets the visit of a request see its answer before it leaves. */
export function watchAnswer(request: object, response: object, visit: OnceVisit): void {
  (request as Visited)[VISIT] = visit;
  if (!isReply(response)) watchEnd(response as RawResponse, visit);
}

/** Express writes each answer by one `end()`, and streams by `write()`. */
function watchEnd(response: RawResponse, visit: OnceVisit): void {
  const { write, end } = response;
  let isStream = false;
  response.write = function (this: RawResponse, ...args) {
    isStream = true;
    return write.apply(this, args);
  };
  response.end = function (this: RawResponse, ...args) {
    response.write = write;
    response.end = end;
    const [chunk, encoding] = args;
    const answer = (): Answer => ({ ...headOf(response), body: bytesOf(chunk, encoding) });
    void visit.answered(response.statusCode, isStream ? undefined : answer).then((error) => {
      if (!error || isStream) return end.apply(response, args);
      response.end(refuse(response, error, (status) => (response.statusCode = status)));
    });
    return this;
  };
  // A stream that breaks has no end.
  response.once('close', () => isStream && void visit.answered(response.statusCode));
}

/** Fastify's hook `onSend`: the body is what its serializers have made. */
export function onSend(
  request: object,
  reply: Reply,
  payload: unknown,
  done: (error: null, payload: unknown) => void,
): void {
  const visit = visitOn(request);
  if (!visit) return done(null, payload);
  // Nest 11 does not wait for a redirect, for which Fastify sends an empty answer too. The first one is on its way.
  if (visit.isAnswered) return;
  const isBody =
    payload === undefined || payload === null || typeof payload === 'string' || Buffer.isBuffer(payload);
  const answer = (): Answer => ({ ...headOf(reply), body: bytesOf(payload) });
  void visit.answered(reply.statusCode, isBody ? answer : undefined).then((error) => {
    (request as Visited)[VISIT] = undefined;
    done(null, error && isBody ? refuse(reply, error, (status) => reply.code(status)) : payload);
  });
}

const headOf = (response: RawResponse | Reply): Omit<Answer, 'body'> => ({
  status: response.statusCode,
  headers: Object.fromEntries(
    Object.entries(response.getHeaders()).map(([name, value]) => [
      name.toLowerCase(),
      typeof value === 'number' ? String(value) : (value as string),
    ]),
  ),
});

function bytesOf(chunk: unknown, encoding?: unknown): Buffer {
  if (typeof chunk === 'string') return Buffer.from(chunk, encoding as BufferEncoding);
  return chunk instanceof Uint8Array ? Buffer.from(chunk) : Buffer.alloc(0);
}

/** Puts a refusal in the place of an answer, and returns its body. */
function refuse(
  response: RawResponse | Reply,
  error: OnceError,
  setStatus: (status: number) => void,
): string {
  const refusal = refusalOf(error);
  for (const name of Object.keys(response.getHeaders()))
    if (/^(content-|transfer-|etag$|location$|set-cookie$)/i.test(name)) response.removeHeader(name);
  setStatus(refusal.statusCode);
  const body = JSON.stringify(refusal);
  setHeader(response, 'Content-Type', 'application/json; charset=utf-8');
  setHeader(response, 'Content-Length', String(Buffer.byteLength(body)));
  setHeader(response, 'Retry-After', '1');
  return body;
}

const setHeader = (
  response: RawResponse | Reply,
  name: string,
  value: string | readonly string[],
): unknown =>
  'header' in response && isReply(response) ? response.header(name, value) : response.setHeader(name, value);

/**
 * Thrown by the guard in place of running the handler: nothing that stands behind guards runs. ReplayFilter is the first
 * filter of its method, so no filter of the app sees it.
 */
export class OnceReplay {
  constructor(readonly answer: Answer) {}
}

@Catch(OnceReplay)
export class ReplayFilter implements ExceptionFilter<OnceReplay> {
  catch({ answer: { status, headers, body } }: OnceReplay, host: ArgumentsHost): void {
    const response = host.switchToHttp().getResponse<RawResponse | Reply>();
    for (const [name, value] of Object.entries(headers)) setHeader(response, name, value);
    setHeader(response, 'Idempotency-Replayed', 'true');
    if (isReply(response)) {
      response.code(status);
      response.send(body.length > 0 ? body : undefined);
    } else {
      response.statusCode = status;
      if (body.length > 0) setHeader(response, 'Content-Length', String(body.length));
      response.end(body);
    }
  }
}
