import { Logger } from '@nestjs/common';
import type { LimitBackend } from './limit.backend.js';
import { TooManyAttemptsError } from './limit.errors.js';
import type { PolicyCheck, ResolvedPolicy } from './limit.policy.js';
import type { CallEnd, LimiterDecision } from './limit.types.js';

const logger = new Logger('SyncGuard');

/** A decision, and the limit that made it. */
export interface Decisive<Subject = PolicyCheck> {
  readonly decision: LimiterDecision;
  readonly by: Subject;
}

/** Where a call was counted, and its id there. */
export interface CountedCall {
  readonly backend: LimitBackend;
  readonly callId: string;
}

/** The decision about one call, with everything that is needed to settle the call when it has ended. */
export interface CallDecision extends Decisive {
  readonly checks: readonly PolicyCheck[];
  /**
   * The decision about each check, in the order of `checks`. If the deny cache has answered, it is undefined for the checks
   * that the cache knows nothing about.
   */
  readonly decisions: readonly (LimiterDecision | undefined)[];
  /** Undefined if the call was not counted. */
  readonly counted: CountedCall | undefined;
}

const isFailureStatus = (status: number): boolean => status === 401 || status === 403;

const isSuccessStatus = (status: number): boolean => status >= 200 && status < 300;

/**
 * How a call ended, as one policy sees it. A 404 is `neither` for a policy that counts failures. Only a `success` can
 * make the policy forget the failures before it.
 */
export type Outcome = 'failure' | 'success' | 'neither';

/** What a call needs of its app when it has ended. */
export interface CallEnds {
  readonly limiter: {
    confirm(checks: readonly PolicyCheck[], counted: CountedCall): Promise<Decisive>;
    withdraw(check: PolicyCheck, counted: CountedCall, hasSucceeded: boolean): Promise<void>;
  };
  /** Rejects with the error to answer, for a failure that has set a block or could not be counted. */
  refuse(error: unknown): Promise<never>;
  /** Called when the response is a redirect, which may mean a failure, and the policy has no `isFailure` to judge it. */
  redirected(policy: ResolvedPolicy): void;
}

/** The HTTP response in its present state. */
export interface ResponseState extends Pick<CallEnd, 'statusCode' | 'location' | 'handled'> {
  readonly headersSent: boolean;
}

/**
 * A call that was let in by policies which count failures or successes. It is settled once.
 *
 * A failure that the handler shows settles the call at once, so that the response can still become a 429. Over HTTP, any other
 * call is settled by its status after the response was sent: until then a guard, an interceptor or a filter may turn it into
 * a failure. Outside of HTTP the call is settled when the handler has returned or thrown.
 */
export class CallInFlight {
  #settled = false;
  #error: unknown;
  /** The results of `isFailure` by policy. */
  #predicateResults?: ReadonlyMap<ResolvedPolicy, boolean | undefined>;
  /** The end of the call that `isFailure` was asked about last. */
  #judgedEnd?: CallEnd;
  #expectation?: NodeJS.Timeout;

  /** @param checks - those by which the call has entered, and that count it by how it ends */
  constructor(
    private readonly checks: readonly PolicyCheck[],
    private readonly counted: CountedCall,
    private readonly ends: CallEnds,
    private readonly response?: ResponseState,
  ) {}

  /** Called when the handler has returned. Its response has not left yet. */
  async handlerReturned(end: CallEnd): Promise<void> {
    // GraphQL treats an error that is returned as one that was thrown.
    if (!this.response && end.value instanceof Error)
      return this.handlerThrew(end.value, { ...end, value: undefined });
    await this.#judge(undefined, end);
  }

  /**
   * Called when the handler, or something that runs around the handler, has thrown. A filter may still change the
   * status.
   */
  async handlerThrew(error: unknown, end: Omit<CallEnd, 'statusCode'>): Promise<void> {
    this.#error = error;
    await this.#judge(error, { ...end, statusCode: statusOfError(error) ?? 500 });
  }

  /** Called when the response was sent. */
  async responseSent(): Promise<void> {
    const { statusCode = 200, location, handled = false } = this.response ?? {};
    if (!this.#settled && !this.#hasJudged(statusCode, location))
      this.#askPredicates(this.#error, { statusCode, location, handled, value: this.#judgedEnd?.value });
    await this.#settleBy(statusCode);
  }

  /** Called after a stream of events has begun. If its headers were sent, their status settles the call. */
  streamStarted(): void {
    if (this.response?.headersSent) void this.responseSent().catch(() => {});
  }

  /**
   * Takes the call back, so that no policy counts it. Called when these policies have let the call in, but the limiter
   * has then refused it. Also called for policies that count only what guards refuse, when all guards have let the call
   * pass.
   */
  takeBack(): void {
    void this.#settle(() => 'neither').catch(() => {});
  }

  /**
   * Called when the connection closed. If no response was sent before, the call counts. Otherwise a client could hang up
   * early and guess without being counted.
   */
  async connectionClosed(): Promise<void> {
    if (this.response?.headersSent) return this.responseSent();
    await this.#settle((policy) => (policy.count === 'success' ? 'success' : 'failure'));
  }

  /**
   * Settles the call as if its connection had closed, unless it reaches its handler within this time. Outside of HTTP
   * nothing else reports that a later guard has refused the call.
   */
  expectHandler(withinMs: number): void {
    this.#expectation = setTimeout(() => this.unsubscribed(), withinMs).unref();
  }

  /** Called when all guards have let the call pass. */
  reachedHandler(): void {
    clearTimeout(this.#expectation);
  }

  /** Called when nothing waits for the result any more. Does nothing over HTTP, where the response reports the call's end. */
  unsubscribed(): void {
    if (!this.response) void this.connectionClosed().catch(() => {});
  }

  async #judge(error: unknown, end: CallEnd): Promise<void> {
    if (this.#settled) return;
    if (!this.#predicateResults) this.#askPredicates(error, end);
    const isFailure = (policy: ResolvedPolicy): boolean =>
      policy.count === 'failure' && this.#outcome(policy, end.statusCode) === 'failure';
    if (!this.response || this.checks.some(({ policy }) => isFailure(policy)))
      await this.#settleBy(end.statusCode);
  }

  /**
   * Returns whether `isFailure` was asked about this very response. A filter, or an interceptor farther out, may have changed
   * it since.
   */
  #hasJudged(statusCode: number, location: string | undefined): boolean {
    return this.#judgedEnd?.statusCode === statusCode && this.#judgedEnd.location === location;
  }

  #askPredicates(error: unknown, end: CallEnd): void {
    this.#judgedEnd = end;
    this.#predicateResults = new Map(
      this.checks.map(({ policy }) => [policy, this.#predicateResult(policy, error, end)]),
    );
  }

  #predicateResult(policy: ResolvedPolicy, error: unknown, end: CallEnd): boolean | undefined {
    const { isFailure, count } = policy;
    if (!isFailure) return undefined;
    try {
      const result: unknown = isFailure(error, end);
      // A guard refused the call, and its error is not known here. So a `false` of `isFailure` must not hide a 401 or
      // 403.
      if (result === false && error === undefined && !end.handled) return undefined;
      if (result === undefined || typeof result === 'boolean') return result;
      throw new TypeError(
        `It returned a value of type ${typeof result}. It must return true, false or undefined.`,
      );
    } catch (fault) {
      logger.error(
        `RATE_LIMIT_IS_FAILURE_THREW: The function \`isFailure\` of the policy ${policy.name} failed, so the call counts. Correct the function. ${String(fault)}`,
        fault instanceof Error ? fault.stack : undefined,
      );
      return count === 'failure';
    }
  }

  #outcome(policy: ResolvedPolicy, status: number): Outcome {
    const result = this.#predicateResults?.get(policy);
    const isOk = this.#error === undefined && isSuccessStatus(status);
    if (policy.count === 'success') {
      const failed = result ?? (this.#error !== undefined || status >= 400);
      return failed ? 'failure' : 'success';
    }
    if (result ?? isFailureStatus(status)) return 'failure';
    if (isRedirect(status) && !policy.isFailure) this.ends.redirected(policy);
    return isOk ? 'success' : 'neither';
  }

  #settleBy(status: number): Promise<void> {
    return this.#settle((policy) => this.#outcome(policy, status));
  }

  /** A limit that counts this outcome counts the call. Any other takes it back. */
  async #settle(outcomeOf: (policy: ResolvedPolicy) => Outcome): Promise<void> {
    if (this.#settled) return;
    this.#settled = true;
    clearTimeout(this.#expectation);
    const { limiter } = this.ends;
    const ended = this.checks.map((check) => ({ check, outcome: outcomeOf(check.policy) }));
    const confirm = async (counts: 'failure' | 'success'): Promise<Decisive | undefined> => {
      const checks = ended.filter(
        ({ check, outcome }) => outcome === counts && check.policy.count === counts,
      );
      if (checks.length === 0) return undefined;
      return limiter.confirm(
        checks.map(({ check }) => check),
        this.counted,
      );
    };
    const failed = confirm('failure');
    const rest: Promise<unknown>[] = ended
      .filter(({ check, outcome }) => outcome !== check.policy.count)
      .map(({ check, outcome }) => limiter.withdraw(check, this.counted, outcome === 'success'));
    try {
      // A call that could not be settled stays in flight for 60 s at most. Then it no longer takes up room. Under a policy
      // that counts successes, it then counts as a success.
      const [decided] = await Promise.all([failed, Promise.allSettled([...rest, confirm('success')])]);
      // A success is never denied here, as it has happened already.
      if (decided?.decision.allowed === false)
        throw new TooManyAttemptsError(decided.decision, decided.by.policy.code);
    } catch (error) {
      await this.ends.refuse(error);
    }
  }
}

/** Returns whether a status is a redirect. 304 is in that range, but means that nothing has changed. */
const isRedirect = (status: number): boolean => status >= 300 && status < 400 && status !== 304;

/** The statuses that GraphQL's error codes stand for. */
const STATUS_BY_GRAPHQL_CODE: Readonly<Record<string, number>> = {
  UNAUTHENTICATED: 401,
  FORBIDDEN: 403,
  BAD_USER_INPUT: 400,
};

/** Returns the HTTP status that an error names: an exception of Nest in any context, or an error of another library. */
function statusOfError(error: unknown): number | undefined {
  if (typeof error !== 'object' || error === null) return undefined;
  const { getStatus, getError, extensions } = error as {
    getStatus?: () => unknown;
    getError?: () => unknown;
    extensions?: { code?: unknown };
  };
  if (typeof getStatus === 'function') return asStatus(getStatus.call(error));
  // WsException and RpcException have no status of their own. They hold an object or a text of the app, which may name
  // one.
  if (typeof getError === 'function') return statusNamedBy(getError.call(error));
  return statusNamedBy(error) ?? STATUS_BY_GRAPHQL_CODE[String(extensions?.code)];
}

function statusNamedBy(value: unknown): number | undefined {
  if (typeof value !== 'object' || value === null) return undefined;
  const { status, statusCode } = value as Record<string, unknown>;
  return asStatus(statusCode) ?? asStatus(status);
}

const asStatus = (value: unknown): number | undefined => (typeof value === 'number' ? value : undefined);
