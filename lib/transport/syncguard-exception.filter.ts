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
import {
  DEFAULT_MAX_RETRY_AFTER_MS,
  errorMessage,
  GraphQLRefusal,
  httpException,
  isException,
  type Refusal,
  retryFacts,
} from './refusal.js';
import { isHungUp } from './hang-up.decorator.js';
import { hasBrand, SyncGuardConfigError, SyncGuardError } from '../core/errors.js';
import { everyMinute } from '../core/every-minute.js';

/** The token of the longest `Retry-After`, in ms. Nest injects it, also if an app binds the filter itself. */
export const MAX_RETRY_AFTER_MS = Symbol.for('syncguard:maxRetryAfterMs');

const STATUS_BY_CODE: Readonly<Record<string, number>> = {
  AcquisitionTimeout: 423,
  TooManyWaiting: 503,
  Deadlock: 423,
  ServiceUnavailable: 503,
  NetworkTimeout: 503,
  AuthFailed: 503,
  Aborted: 503,
  InvalidArgument: 400,
  RateLimited: 429,
  TooManyAttempts: 429,
  BudgetExceeded: 429,
  BudgetConflict: 409,
  SecretConflict: 409,
  OnceInProgress: 409,
  OncePayloadMismatch: 422,
  OnceKeyMissing: 400,
  OnceKeyInvalid: 400,
  OutcomeUnknown: 409,
  ResultNotKept: 409,
  OnceLost: 409,
};

/** The errors of ours that Nest would not answer. What the guard throws is an exception of Nest as well. */
class Unanswered {
  static [Symbol.hasInstance](value: unknown): boolean {
    return value instanceof SyncGuardError && !isException(value);
  }
}

/**
 * Answers calls that end in an error of SyncGuard: a busy lock by 423, a used-up budget by 429 or 402, and others as in
 * docs/errors.md. Other errors are left to other filters.
 *
 * GraphQL clients receive the same body as the `extensions` of an error, clients of a gateway as the event `exception`,
 * and clients of a microservice as the error. Hints are for operators: a 5xx is logged with its hint, of 503 one a minute
 * for each code, and the client does not receive the hint. The module registers this filter unless `http: false` is set.
 */
@Catch(Unanswered)
export class SyncGuardExceptionFilter implements ExceptionFilter<SyncGuardError> {
  readonly #logger = new Logger('SyncGuard');
  /** By code. An outage ends every call as a 503, and so does a crowd that waits for one lock. */
  readonly #warnings = new Map<string, (line: string) => void>();

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
    if (isHungUp(error)) return; // Nobody is there, and callers could fill the log.
    if (statusCode === 503) this.#warn(error);
    else if (statusCode >= 500) this.#logger.error(`${error.code}: ${error.message}`, error.stack);
  }

  #warn({ code, message }: SyncGuardError): void {
    let warn = this.#warnings.get(code);
    if (!warn) this.#warnings.set(code, (warn = everyMinute((line) => this.#logger.warn(line))));
    warn(`${code}: ${message}`);
  }

  #reply(refusal: Refusal, response: unknown): void {
    const { httpAdapter } = this.host;
    if (httpAdapter.isHeadersSent(response)) {
      httpAdapter.end(response);
      return;
    }
    // The handler may have set another one by `@Header`. A refusal is about one call.
    httpAdapter.setHeader(response, 'Cache-Control', 'no-store');
    const { retryAfter } = refusal.context;
    if (typeof retryAfter === 'number') httpAdapter.setHeader(response, 'Retry-After', String(retryAfter));
    httpAdapter.reply(response, refusal, refusal.statusCode);
  }
}

/**
 * Turns an error of SyncGuard into an HttpException with the same status and body (`{ statusCode, code, message,
 * context }`). Returns any other error unchanged. It is for exception filters of an app that catch everything: set
 * `http: false` beside such a filter. The body has the seconds for `Retry-After` in `context.retryAfter`.
 *
 * @param maxRetryAfterMs - the longest `context.retryAfter`, in ms. Default: a day, as for `http.maxRetryAfterMs`.
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
  error instanceof SyncGuardError && !isException(error)
    ? httpException(refusalOf(error, maxRetryAfterMs), error)
    : error;

/** Nobody knows when an outage ends. It may be over in a second. */
const RETRY_SOON_SECS = 1;

/** Returns the body of the answer to an error. */
export function refusalOf(error: SyncGuardError, maxRetryAfterMs = DEFAULT_MAX_RETRY_AFTER_MS): Refusal {
  const { code, summary: message } = error;
  const statusCode = statusOf(error);
  const soon = statusCode === 503 ? { retryAfter: RETRY_SOON_SECS } : {};
  const context = retryFacts({ ...soon, ...forClients(error.context) }, maxRetryAfterMs);
  return { statusCode, code, message, context };
}

/** A client of socket.io, or a WebSocket of ws. Only the latter has a numeric `readyState`. Its `emit` sends nothing. */
interface SocketClient {
  readonly readyState?: number;
  emit(event: string, data: unknown): unknown;
  send(text: string): unknown;
}

function emitException(client: SocketClient, data: object): void {
  if (typeof client.readyState === 'number') client.send(JSON.stringify({ event: 'exception', data }));
  else client.emit('exception', data);
}

/** Removes the hashes of keys, which are for logs: anyone can find a short key by hashing guesses. */
const forClients = (context: Readonly<Record<string, unknown>>): Record<string, unknown> =>
  Object.fromEntries(Object.entries(context).filter(([name]) => !/Hash(es)?$/.test(name)));

function statusOf(error: SyncGuardError): number {
  // An InvalidArgument with a cause comes from Redis: a key has another type, or the client is in subscriber mode. The
  // caller did nothing wrong. Only a BudgetInputError has a cause that comes from the caller.
  const isRedis = error.cause !== undefined && !hasBrand(error, 'BudgetInputError');
  if (error.code === 'InvalidArgument' && isRedis) return 500;
  // The developer of the app has to mend this. It was found at a call instead of at boot.
  if (error instanceof SyncGuardConfigError) return 500;
  if (error.code === 'BudgetExceeded' && error.context.retryAfter === undefined) return 402;
  // The client did not cause an outage. A retry does not help where a key holds data of another program.
  if (hasBrand(error, 'BudgetUnavailableError')) return error.code === 'InvalidArgument' ? 500 : 503;
  return STATUS_BY_CODE[error.code] ?? 500;
}

/** Stands for the filter where `http: false` is set, and catches nothing. `@Catch()` without a class catches all. */
@Catch(class Nothing {})
export class DisabledExceptionFilter implements ExceptionFilter<never> {
  catch(): void {}
}
