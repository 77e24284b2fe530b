import { HttpException } from '@nestjs/common';

/** The body for a client whose call was refused or has failed, the same over HTTP, GraphQL, sockets and messages. */
export interface Refusal {
  readonly statusCode: number;
  readonly code: string;
  readonly message: string;
  readonly context: Readonly<Record<string, unknown>>;
}

/** A day. A client that waits as long as it is told would overflow its timer after 24.8 days. */
export const DEFAULT_MAX_RETRY_AFTER_MS = 86_400_000;

/** Limits the `retryAfter` of an error's context to the maximum for clients, and adds the instant `retryAtMs`. */
export function retryFacts(
  context: Readonly<Record<string, unknown>>,
  maxRetryAfterMs: number,
): Readonly<Record<string, unknown>> {
  const { retryAfter, retryAtMs } = context;
  if (typeof retryAfter !== 'number') return context;
  return {
    ...context,
    retryAfter: Math.min(retryAfter, Math.floor(maxRetryAfterMs / 1000)),
    retryAtMs: typeof retryAtMs === 'number' ? retryAtMs : Date.now() + retryAfter * 1000,
  };
}

/** Returns whether an error is an exception of Nest, over HTTP, GraphQL, sockets or messages. Nest answers these itself. */
export const isException = (error: object): boolean => 'getStatus' in error || 'getError' in error;

/** Makes an HttpException, which every filter handles, also if `http: false` leaves errors to the app. */
export const httpException = (refusal: Refusal, cause: unknown, body: object = refusal): HttpException =>
  new HttpException(body as Record<string, unknown>, refusal.statusCode, { cause });

/**
 * The error for GraphQL: graphql-js sends the `extensions` of an error to the client. The response of this exception
 * has no `statusCode`, because Nest's Apollo driver would then replace our code by INTERNAL_SERVER_ERROR.
 */
export class GraphQLRefusal extends HttpException {
  readonly extensions: object;

  constructor({ statusCode, code, message, context }: Refusal, cause: unknown, extensions?: object) {
    super({ code, message, context }, statusCode, { cause });
    this.extensions = extensions ?? { statusCode, code, context };
  }
}

/** Returns the message for WebSockets and microservices, in the shape of Nest's own exceptions there. */
export const errorMessage = (refusal: Refusal): Refusal & { readonly status: 'error' } => ({
  status: 'error',
  ...refusal,
});
