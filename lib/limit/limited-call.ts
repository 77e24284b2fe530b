import { type ExecutionContext, RequestMethod } from '@nestjs/common';
import { hashKey } from '../keys.js';
import type { IdentifiedRequest } from './identity.js';
import { GATEWAY_OPTIONS, HOST, MESSAGE, METHOD, PATTERN, VERSION } from './rate-limit.metadata.js';

/** What `keyBy` looks into: an HTTP request, or what stands for one; by shape, so that Express and Fastify both fit. */
export interface RequestLike extends IdentifiedRequest {
  readonly headers: Readonly<Record<string, unknown>>;
  readonly body?: unknown;
  readonly user?: unknown;
}

/** The part of a response that is written to: of Express' own, of Fastify's reply, or of Node's. */
export interface ResponseLike {
  readonly statusCode: number;
  readonly raw?: EndingResponse;
  header?(name: string, value: string): unknown;
  setHeader?(name: string, value: string): unknown;
  getHeader?(name: string): unknown;
}

/** The part of an HTTP response that tells when it ends: of Node's own. */
export interface EndingResponse {
  readonly headersSent: boolean;
  once(event: 'finish' | 'close', listener: () => void): unknown;
}

/** A call that may be limited, whatever way it came: what guards and interceptor need to know of it. */
export interface LimitedCall {
  readonly request: RequestLike;
  /**
   * What an unnamed policy counts by: HTTP method and route template, GraphQL's parent type and field, the message of
   * a gateway, the pattern of a message handler. Never a class's name: two may be the same, and a bundler changes them.
   */
  readonly route: string;
  /** For the list of paths that are not limited: only what comes by HTTP has one. */
  readonly url?: string | undefined;
  /** Where headers go: nowhere if it is missing. */
  readonly response?: ResponseLike | undefined;
}

const READERS: Readonly<Record<string, (context: ExecutionContext) => LimitedCall>> = {
  http: httpCall,
  graphql: graphqlCall,
  ws: socketCall,
  rpc: messageCall,
};

/** Undefined for a type of context that SyncGuard does not know. */
export const limitedCall = (context: ExecutionContext): LimitedCall | undefined =>
  READERS[context.getType<string>()]?.(context);

/**
 * An object that lives as long as the call and is its alone, the same for its guards and its interceptor: the
 * request, and elsewhere the list of the handler's arguments, as several fields or messages share a request.
 */
export const identityOfCall = (context: ExecutionContext): object =>
  context.getType() === 'http' ? context.switchToHttp().getRequest<object>() : context.getArgs();

type HttpRequest = RequestLike & {
  readonly method: string;
  readonly url: string;
  readonly originalUrl?: string;
  /** Express' and Fastify's word for the matched route. */
  readonly route?: { readonly path?: string | RegExp };
  readonly routeOptions?: { readonly url?: string };
};

function httpCall(context: ExecutionContext): LimitedCall {
  const http = context.switchToHttp();
  const request = http.getRequest<HttpRequest>();
  return {
    request,
    route: httpRoute(context, request),
    url: request.originalUrl ?? request.url,
    response: http.getResponse<ResponseLike>(),
  };
}

function httpRoute(context: ExecutionContext, request: HttpRequest): string {
  const { method, host, version } = declaredOf(context.getClass(), context.getHandler());
  const template = String(request.routeOptions?.url ?? request.route?.path ?? '*');
  return asName(method ?? (request.method === 'HEAD' ? 'GET' : request.method), host + template + version);
}

/** What decorators say of a route. */
interface Declared {
  /** Where a route takes all methods, they count together: the client chooses the method. */
  readonly method: '*' | undefined;
  /** The template, never the Host that a client sends. */
  readonly host: string;
  readonly version: string;
}

const declared = new WeakMap<object, WeakMap<object, Declared>>();

/** Read once a route: a look at metadata walks the class's whole chain. */
function declaredOf(type: object, handler: object): Declared {
  let ofClass = declared.get(type);
  if (!ofClass) declared.set(type, (ofClass = new WeakMap<object, Declared>()));
  let route = ofClass.get(handler);
  if (!route) ofClass.set(handler, (route = readDeclared(type, handler)));
  return route;
}

function readDeclared(type: object, handler: object): Declared {
  const version = (Reflect.getMetadata(VERSION, handler) ?? Reflect.getMetadata(VERSION, type)) as
    string | symbol | string[] | undefined;
  const host = Reflect.getMetadata(HOST, type) as string | RegExp | (string | RegExp)[] | undefined;
  return {
    method: Reflect.getMetadata(METHOD, handler) === RequestMethod.ALL ? '*' : undefined,
    host: host === undefined ? '' : [host].flat().map(String).join(','),
    version: version === undefined ? '' : `@${String(version)}`,
  };
}

/** The request of a GraphQL context as Nest's drivers and users build it; of a subscription, that of its upgrade. */
interface GraphQLContext {
  readonly req?: GraphQLCarrier;
  readonly request?: GraphQLCarrier;
  readonly res?: ResponseLike;
  readonly reply?: ResponseLike;
  readonly user?: unknown;
  readonly extra?: { readonly request?: RequestLike & Partial<Pick<HttpRequest, 'url' | 'originalUrl'>> };
}
type GraphQLCarrier = HttpRequest & { readonly res?: ResponseLike; readonly extra?: GraphQLContext['extra'] };

function graphqlCall(context: ExecutionContext): LimitedCall {
  // Found by its shape: what resolves a reference of a federated entity takes no arguments of the field.
  const args = context.getArgs<unknown[]>();
  const at = args.findLastIndex(isFieldInfo);
  const { parentType, fieldName } = args[at] as FieldInfo;
  const shared = (args[at - 1] ?? {}) as GraphQLContext;
  const carrier = shared.req ?? shared.request ?? (shared as GraphQLCarrier);
  const request = carrier.extra?.request ?? carrier;
  return {
    request: Object.create(request, {
      headers: { value: request.headers ?? {} },
      body: { value: argumentsOf(at === 3 ? args[1] : {}) },
      // Read late: other guards find out who the user is, and note it where the context leads them.
      user: { get: () => carrier.user ?? request.user ?? shared.user },
    }) as RequestLike,
    route: asName('GraphQL', at === 3 ? `${parentType.name}.${fieldName}` : entityOf(args[0], fieldName)),
    url: request.originalUrl ?? request.url,
    response: shared.res ?? shared.reply ?? carrier.res,
  };
}

interface FieldInfo {
  readonly fieldName: string;
  readonly parentType: { readonly name: string };
}

const isFieldInfo = (arg: unknown): boolean =>
  typeof arg === 'object' && arg !== null && 'fieldName' in arg && 'parentType' in arg;

/** All references come by one field, and each type has a resolver of its own for them. */
const entityOf = (reference: unknown, fieldName: string): string =>
  `${(reference as { __typename?: string } | null)?.__typename ?? fieldName}.__resolveReference`;

/**
 * A field's arguments stand for a body, and the fields of input objects do too, however many arguments came along:
 * one that nobody has to send must not decide by whom a call is counted. Of the same name the argument counts, else the
 * input that the schema names first.
 */
function argumentsOf(args: unknown): object {
  const given = (args ?? {}) as Record<string, unknown>;
  const inputs = Object.values(given).filter(
    (value) => typeof value === 'object' && value !== null && !Array.isArray(value),
  );
  return Object.assign(Object.create(null) as object, ...inputs.reverse(), given) as object;
}

/** A client of socket.io, or of ws, which keeps its connection under a name of its own. */
interface Socket {
  readonly handshake?: {
    readonly address?: string;
    readonly headers?: Readonly<Record<string, unknown>>;
    readonly query?: unknown;
  };
  readonly request?: { readonly session?: unknown; readonly user?: unknown };
  readonly data?: { readonly user?: unknown };
  readonly user?: unknown;
  readonly _socket?: { readonly remoteAddress?: string } | null;
}

function socketCall(context: ExecutionContext): LimitedCall {
  const client = context.switchToWs().getClient<Socket>();
  const { handshake } = client;
  const remoteAddress = handshake?.address ?? client._socket?.remoteAddress;
  const gateway = (Reflect.getMetadata(GATEWAY_OPTIONS, context.getClass()) ?? {}) as {
    readonly namespace?: string | RegExp;
    readonly path?: string;
  };
  const request = {
    ip: remoteAddress,
    socket: remoteAddress === undefined ? undefined : { remoteAddress },
    headers: handshake?.headers ?? {},
    query: handshake?.query,
    session: client.request?.session,
    body: context.switchToWs().getData<unknown>(),
    get user(): unknown {
      return client.user ?? client.data?.user ?? client.request?.user;
    },
  };
  const message = patternText(Reflect.getMetadata(MESSAGE, context.getHandler()));
  const namespace = gateway.namespace ?? gateway.path;
  return {
    request,
    route: asName('WS', namespace === undefined ? message : `${String(namespace)} ${message}`),
  };
}

/** A message has no sender that one could tell: `keyBy` has to find one in its data, or in its context. */
function messageCall(context: ExecutionContext): LimitedCall {
  const patterns = [Reflect.getMetadata(PATTERN, context.getHandler()) as unknown].flat();
  return {
    request: { headers: {}, body: context.switchToRpc().getData<unknown>() },
    route: asName('RPC', patterns.map(patternText).join(',')),
  };
}

const patternText = (pattern: unknown): string =>
  typeof pattern === 'string' || pattern instanceof RegExp ? String(pattern) : JSON.stringify(pattern);

/** The name of a policy is short and printable. */
function asName(kind: string, route: string): string {
  const name = `${kind} ${route}`;
  return /^[\x20-\x7e]{1,190}$/.test(name) ? name : `${kind} ${hashKey(name)}`;
}
