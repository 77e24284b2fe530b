import {
  type ArgumentsHost,
  Catch,
  type ExceptionFilter,
  type HttpException,
  Inject,
  Logger,
  Optional,
} from '@nestjs/common';
import { HttpAdapterHost } from '@nestjs/core';
import { type Observable, throwError } from 'rxjs';
import { BudgetInputError, BudgetUnavailableError } from '../budget/budget.errors.js';
import {
  DEFAULT_MAX_RETRY_AFTER_MS,
  errorMessage,
  GraphQLRefusal,
  httpException,
  type Refusal,
  retryFacts,
} from '../refusal.js';
import { SyncGuardConfigError, SyncGuardError } from '../syncguard.errors.js';
import { MAX_RETRY_AFTER_MS } from '../syncguard.tokens.js';

const STATUS_BY_CODE: Readonly<Record<string, number>> = {
  AcquisitionTimeout: 423,
  ServiceUnavailable: 503,
  NetworkTimeout: 503,
  AuthFailed: 503,
  Aborted: 503,
  InvalidArgument: 400,
  RateLimited: 429,
  TooManyAttempts: 429,
  BudgetConflict: 409,
  SecretConflict: 409,
};

/**
 * Answers calls that end in one of our errors, and no others: 423 for a lock that somebody else holds, 429 with
 * Retry-After for a budget that reopens and 402 for one that does not, 503 when Redis is away, 400 for a bad key, 500
 * for a lock that was lost. GraphQL gets the same as the `extensions` of an error, a client of a gateway as the event
 * `exception`, that of a microservice as the error. Hints are for operators: they go to the log with every 5xx, not to
 * the client. The module registers it; `http: false` leaves that to you.
 */
@Catch(SyncGuardError)
export class SyncGuardExceptionFilter implements ExceptionFilter<SyncGuardError> {
  readonly #logger = new Logger('SyncGuard');

  constructor(
    @Inject(HttpAdapterHost) private readonly host: HttpAdapterHost,
    @Optional() @Inject(MAX_RETRY_AFTER_MS) private readonly maxRetryAfterMs = DEFAULT_MAX_RETRY_AFTER_MS,
  ) {}

  catch(error: SyncGuardError, host: ArgumentsHost): Observable<never> | void {
    const refusal = refusalOf(error, this.maxRetryAfterMs);
    this.#log(error, refusal.statusCode);
    switch (host.getType<string>()) {
      case 'http':
        return this.#reply(refusal, host.switchToHttp().getResponse());
      case 'graphql':
        throw new GraphQLRefusal(refusal, error);
      case 'ws':
        return emitException(host.switchToWs().getClient(), errorMessage(refusal));
      case 'rpc':
        return throwError(() => errorMessage(refusal));
      default:
        throw error;
    }
  }

  #log(error: SyncGuardError, statusCode: number): void {
    if (statusCode === 503) this.#logger.warn(`${error.code}: ${error.message}`);
    else if (statusCode >= 500) this.#logger.error(`${error.code}: ${error.message}`, error.stack);
  }

  #reply(refusal: Refusal, response: unknown): void {
    const { httpAdapter } = this.host;
    if (httpAdapter.isHeadersSent(response)) {
      httpAdapter.end(response);
      return;
    }
    const { retryAfter } = refusal.context;
    if (typeof retryAfter === 'number') httpAdapter.setHeader(response, 'Retry-After', String(retryAfter));
    httpAdapter.reply(response, refusal, refusal.statusCode);
  }
}

/**
 * For exception filters of an app that catch everything: makes of one of our errors the HttpException that says the
 * same, with status and body (`{ statusCode, code, message, context }`), and leaves any other as it is. Set `http: false`
 * beside such a filter. `Retry-After` is `context.retryAfter` of the body.
 *
 * @param maxRetryAfterMs - no `context.retryAfter` is longer; a day, as `http.maxRetryAfterMs`
 *
 * @example
 * \@Catch()
 * class EveryError extends BaseExceptionFilter {
 *   override catch(error: unknown, host: ArgumentsHost): void {
 *     report(error);
 *     super.catch(toHttpException(error), host);
 *   }
 * }
 */
export const toHttpException = <E>(
  error: E,
  maxRetryAfterMs = DEFAULT_MAX_RETRY_AFTER_MS,
): E | HttpException =>
  error instanceof SyncGuardError ? httpException(refusalOf(error, maxRetryAfterMs), error) : error;

/** An outage may be over in a moment, and nobody knows when. */
const RETRY_SOON_SECS = 1;

function refusalOf(error: SyncGuardError, maxRetryAfterMs: number): Refusal {
  const statusCode = statusOf(error);
  const context = forClients(error.context);
  return {
    statusCode,
    code: error.code,
    message: error.summary,
    context: retryFacts(
      statusCode === 503 ? { retryAfter: RETRY_SOON_SECS, ...context } : context,
      maxRetryAfterMs,
    ),
  };
}

/** A client of socket.io, or a WebSocket of ws, whose `emit` would not leave this process. */
interface SocketClient {
  readonly readyState?: number;
  emit(event: string, data: unknown): unknown;
  send(text: string): unknown;
}

function emitException(client: SocketClient, data: object): void {
  if (typeof client.readyState === 'number') client.send(JSON.stringify({ event: 'exception', data }));
  else client.emit('exception', data);
}

/** A hash of a key is a label for logs, not a secret: a short key is found by trying. */
const forClients = (context: Readonly<Record<string, unknown>>): Record<string, unknown> =>
  Object.fromEntries(Object.entries(context).filter(([name]) => !name.endsWith('Hash')));

function statusOf(error: SyncGuardError): number {
  // A budget's cause is the caller's value. Else it is what Redis said: a key of ours holds something else, the client
  // is in subscriber mode. Whoever called did nothing wrong.
  const isRedis = error.cause !== undefined && !(error instanceof BudgetInputError);
  if (error.code === 'InvalidArgument' && isRedis) return 500;
  // A fault of whoever wrote the app, found at a call.
  if (error instanceof SyncGuardConfigError) return 500;
  if (error.code === 'BudgetExceeded') return typeof error.context.retryAfter === 'number' ? 429 : 402;
  // Whatever the fault is: it is not the client's. No retry helps where a key holds what we did not write.
  if (error instanceof BudgetUnavailableError) return error.code === 'InvalidArgument' ? 500 : 503;
  return STATUS_BY_CODE[error.code] ?? 500;
}

class Nothing {
  static [Symbol.hasInstance](): boolean {
    return false;
  }
}

/** Stands where the filter would, with `http: false`: a filter without a class would catch everything. */
@Catch(Nothing)
export class DisabledExceptionFilter implements ExceptionFilter<never> {
  catch(): void {}
}
