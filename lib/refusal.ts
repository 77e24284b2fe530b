import { HttpException } from '@nestjs/common';

/** What a client is told when a call is refused or has failed: the same words whatever way it came. */
export interface Refusal {
  readonly statusCode: number;
  readonly code: string;
  readonly message: string;
  readonly context: Readonly<Record<string, unknown>>;
}

/** A day. More than 24.8 days would overflow the timer of a client that waits as long as it was told. */
export const DEFAULT_MAX_RETRY_AFTER_MS = 86_400_000;

/**
 * The facts of an error for clients: where they hold `retryAfter`, no more of it than is allowed, and beside it the
 * instant which it stands for.
 */
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

/** For HTTP: an exception that every filter knows, also where `http: false` leaves errors to the app. */
export const httpException = (refusal: Refusal, cause: unknown): HttpException =>
  new HttpException(refusal, refusal.statusCode, { cause });

/**
 * For GraphQL: graphql-js takes the `extensions` of an error over to the client. There is no `statusCode` in the
 * response of this exception, or Nest's Apollo driver would put INTERNAL_SERVER_ERROR in place of our code.
 */
export class GraphQLRefusal extends HttpException {
  readonly extensions: Omit<Refusal, 'message'>;

  constructor({ statusCode, code, message, context }: Refusal, cause: unknown) {
    super({ code, message, context }, statusCode, { cause });
    this.extensions = { statusCode, code, context };
  }
}

/** For WebSockets and microservices: what Nest's own exceptions there carry to the client. */
export const errorMessage = (refusal: Refusal): Refusal & { readonly status: 'error' } => ({
  status: 'error',
  ...refusal,
});
