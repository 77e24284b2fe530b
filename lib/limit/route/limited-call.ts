import type { RoutedRequest } from '../../transport/http-routes.js';
import { hashKey } from '../../core/keys.js';

/**
 * The object that `keyBy` reads: a request of Express or Fastify, or an object of the same shape for a call that came another
 * way.
 */
export interface RequestLike {
  readonly ip?: string;
  readonly socket?: {
    readonly remoteAddress?: string;
    readonly localAddress?: string;
    readonly destroyed?: boolean;
  };
  readonly headers: Readonly<Record<string, unknown>>;
  readonly body?: unknown;
  readonly user?: unknown;
}

/** A request of Express or Fastify. */
export type HttpRequest = RequestLike &
  RoutedRequest & { readonly url: string; readonly originalUrl?: string };

/** The part of a response that limits use: a response of Express or Node.js, or a reply of Fastify. */
export interface ResponseLike {
  readonly statusCode: number;
  readonly raw?: EndingResponse;
  header?(name: string, value: string): unknown;
  setHeader?(name: string, value: string): unknown;
  getHeader?(name: string): unknown;
  removeHeader?(name: string): unknown;
  /** Of Express. */
  json?(body: unknown): unknown;
}

/** The part of a response of Node.js that limits use. */
export interface EndingResponse {
  readonly statusCode: number;
  readonly headersSent: boolean;
  /** The stream of a response of HTTP/2. */
  readonly stream?: {
    readonly destroyed: boolean;
    readonly sentHeaders?: { readonly ':status'?: number };
  };
  writeHead(status: number, ...more: unknown[]): unknown;
  getHeader(name: string): unknown;
  setHeader(name: string, value: string): unknown;
  removeHeader(name: string): void;
  once(event: 'finish' | 'close', listener: () => void): unknown;
}

/** A call that may be limited: an HTTP request, a field of GraphQL, or a message. */
export interface LimitedCall {
  readonly request: RequestLike;
  /**
   * What was called: HTTP method and route template, parent type and field of GraphQL, message of a gateway,
   * or pattern of a message handler. It does not contain the name of a class: two classes may have the same name, and a
   * bundler changes names.
   */
  readonly route: string;
  /** The URL, for the option `limit.allow`. Messages have none. */
  readonly url?: string | undefined;
  /** The response that gets the headers, if there is one. */
  readonly response?: ResponseLike | undefined;
}

/** Returns the name of a policy that has none. A route that is too long for a name, or not printable ASCII, is hashed. */
export const routeName = (route: string): string =>
  /^[\x20-\x7e]{1,190}$/.test(route) ? route : `${route.slice(0, route.indexOf(' '))} ${hashKey(route)}`;

/** Returns the pattern of a message as a part of its route. */
export const patternText = (pattern: unknown): string =>
  typeof pattern === 'string' || pattern instanceof RegExp ? String(pattern) : JSON.stringify(pattern);
