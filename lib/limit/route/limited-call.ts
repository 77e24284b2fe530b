import { type ExecutionContext, RequestMethod } from '@nestjs/common';
import { hashKey } from '../../core/keys.js';
import type { AddressedRequest } from './key-parts.js';
import { GATEWAY_OPTIONS, HOST, MESSAGE, METHOD, PATTERN, VERSION } from './rate-limit.metadata.js';

/**
 * The object that `keyBy` reads: a request of Express or Fastify, or an object of the same shape for a call that came another
 * way.
 */
export interface RequestLike extends AddressedRequest {
  readonly headers: Readonly<Record<string, unknown>>;
  readonly body?: unknown;
  readonly user?: unknown;
}

/** The part of a response that limits use: a response of Express or Node.js, or a reply of Fastify. */
export interface ResponseLike {
  readonly statusCode: number;
  readonly raw?: EndingResponse;
  header?(name: string, value: string): unknown;
  setHeader?(name: string, value: string): unknown;
  getHeader?(name: string): unknown;
}

/** The part of a response of Node.js that limits use. */
export interface EndingResponse {
  readonly headersSent: boolean;
  getHeader(name: string): unknown;
  setHeader(name: string, value: string): unknown;
  removeHeader(name: string): void;
  once(event: 'finish' | 'close', listener: () => void): unknown;
}

/** A call that may be limited: an HTTP request, a field of GraphQL, or a message. */
export interface LimitedCall {
  readonly request: RequestLike;
  /**
   * The name of a policy without one: HTTP method and route template, parent type and field of GraphQL, message of a gateway,
   * or pattern of a message handler. It does not contain the name of a class: two classes may have the same name, and a
   * bundler changes names.
   */
  readonly route: string;
  /** The URL, for the option `limit.allow`. Messages have none. */
  readonly url?: string | undefined;
  /** The response that gets the headers, if there is one. */
  readonly response?: ResponseLike | undefined;
}

const READERS: Readonly<Record<string, (context: ExecutionContext) => LimitedCall>> = {
  http: httpCall,
  graphql: graphqlCall,
  ws: socketCall,
  rpc: messageCall,
};

/** Returns the call of a context. Undefined if SyncGuard does not know this type of context. */
export const limitedCall = (context: ExecutionContext): LimitedCall | undefined =>
  READERS[context.getType<string>()]?.(context);

/**
 * Returns an object that belongs to this call alone, and is the same in its guards and its interceptor. Over HTTP that is the
 * request. Elsewhere several fields or messages share a request, so it is the list of the handler's arguments.
 */
export const callObject = (context: ExecutionContext): object =>
  context.getType() === 'http' ? context.switchToHttp().getRequest<object>() : context.getArgs();

type HttpRequest = RequestLike & {
  readonly method: string;
  readonly url: string;
  readonly originalUrl?: string;
  /** The matched route: `route` in Express, `routeOptions` in Fastify. */
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

/** The parts of a route's name that its decorators define. */
interface Declared {
  /** `*` for a route that takes all methods. The client chooses the method, so they count together. */
  readonly method: '*' | undefined;
  /** The template of the host, and not the `Host` that a client sends. */
  readonly host: string;
  readonly version: string;
}

const declared = new WeakMap<object, WeakMap<object, Declared>>();

/** Reads the decorators once for each route, because reading metadata walks up all bases of a class. */
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

/**
 * The GraphQL context, in the shapes that drivers and apps give it. A subscription has the HTTP request that opened its
 * WebSocket.
 */
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
  // The field info is found by its shape, because a resolver of references gets other arguments than a field.
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
      // A getter, because guards find the user later, and put it on one of these objects.
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

/**
 * Returns the name of a resolver of references. All types share one field for references, so the name contains the
 * type.
 */
const entityOf = (reference: unknown, fieldName: string): string =>
  `${(reference as { __typename?: string } | null)?.__typename ?? fieldName}.__resolveReference`;

/**
 * Returns the arguments of a field and the fields of its input objects as one object, which stands for the body. All input
 * objects count, so that a client cannot change its key by an optional argument. An argument is preferred to a field of the
 * same name, and a field of an input that comes earlier in the schema to one that comes later.
 */
function argumentsOf(args: unknown): object {
  const given = (args ?? {}) as Record<string, unknown>;
  const inputs = Object.values(given).filter(
    (value) => typeof value === 'object' && value !== null && !Array.isArray(value),
  );
  return Object.assign(Object.create(null) as object, ...inputs.reverse(), given) as object;
}

/** A client of socket.io (`handshake`) or of ws (`_socket`). */
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

/** Reads a message. It has no address of a sender, so `keyBy` has to find a key in its data or context. */
function messageCall(context: ExecutionContext): LimitedCall {
  const patterns = [Reflect.getMetadata(PATTERN, context.getHandler()) as unknown].flat();
  return {
    request: { headers: {}, body: context.switchToRpc().getData<unknown>() },
    route: asName('RPC', patterns.map(patternText).join(',')),
  };
}

const patternText = (pattern: unknown): string =>
  typeof pattern === 'string' || pattern instanceof RegExp ? String(pattern) : JSON.stringify(pattern);

/** Returns a name that is valid for a policy. A route that is too long, or not printable ASCII, is hashed. */
function asName(kind: string, route: string): string {
  const name = `${kind} ${route}`;
  return /^[\x20-\x7e]{1,190}$/.test(name) ? name : `${kind} ${hashKey(name)}`;
}
