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

/** The decision about one call, with what settles the call when it has ended. */
export interface CallDecision extends Decisive {
  readonly checks: readonly PolicyCheck[];
  /** In the order of `checks`. If the deny cache has answered, undefined where it knows nothing. */
  readonly decisions: readonly (LimiterDecision | undefined)[];
  /** Undefined if the call was not counted. */
  readonly counted: CountedCall | undefined;
}

/** How a call ended, as one policy sees it. A 404 is `neither` for a policy that counts failures. */
type Outcome = 'failure' | 'success' | 'neither';

/** What a call needs of its app when it has ended. */
export interface CallEnds {
  readonly limiter: {
    confirm(checks: readonly PolicyCheck[], counted: CountedCall): Promise<Decisive>;
    withdraw(check: PolicyCheck, counted: CountedCall, hasSucceeded: boolean): Promise<void>;
  };
  /** Rejects with the error to answer, for a failure that has set a block or could not be counted. */
  refuse(error: unknown): Promise<never>;
  /** Called for a redirect, which may mean a failure, if the policy has no `isFailure` to judge it. */
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

  /** Called when the handler, or what runs around it, has thrown. A filter may still change the status. */
  async handlerThrew(error: unknown, end: Omit<CallEnd, 'statusCode'>): Promise<void> {
    this.#error = error;
    await this.#judge(error, { ...end, statusCode: statusOfError(error) ?? 500 });
  }

  /** Called when the response was sent. */
  async responseSent(): Promise<void> {
    const { statusCode = 200, location, handled = false } = this.response ?? {};
    // A filter, or an interceptor farther out, may have changed the response since `isFailure` was asked.
    const isJudged = this.#judgedEnd?.statusCode === statusCode && this.#judgedEnd.location === location;
    if (!this.#settled && !isJudged)
      this.#askPredicates(this.#error, { statusCode, location, handled, value: this.#judgedEnd?.value });
    await this.#settleBy(statusCode);
  }

  /** Called after a stream of events has begun. If its headers were sent, their status settles the call. */
  streamStarted(): void {
    if (this.response?.headersSent) void this.responseSent().catch(() => {});
  }

  /** Takes the call back, so that no policy counts it. */
  takeBack(): void {
    void this.#settle(() => 'neither').catch(() => {});
  }

  /** Called when the connection closed. Without a response the call counts, so that hanging up is not a free guess. */
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
      // A guard refused the call, and its error is not known here. So a `false` must not hide a 401 or 403.
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
    const threw = this.#error !== undefined;
    if (policy.count === 'success') return (result ?? (threw || status >= 400)) ? 'failure' : 'success';
    if (result ?? (status === 401 || status === 403)) return 'failure';
    // 304 is no redirect: it means that nothing has changed.
    const isRedirect = status >= 300 && status < 400 && status !== 304;
    if (isRedirect && !policy.isFailure) this.ends.redirected(policy);
    return !threw && status >= 200 && status < 300 ? 'success' : 'neither';
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
    const outcomes = new Map(this.checks.map(({ policy }) => [policy, outcomeOf(policy)]));
    const confirm = async (outcome: Outcome): Promise<Decisive | undefined> => {
      const checks = this.checks.filter(
        ({ policy }) => policy.count === outcome && outcomes.get(policy) === outcome,
      );
      return checks.length > 0 ? limiter.confirm(checks, this.counted) : undefined;
    };
    const failed = confirm('failure');
    const rest: Promise<unknown>[] = this.checks
      .filter(({ policy }) => outcomes.get(policy) !== policy.count)
      .map((check) => limiter.withdraw(check, this.counted, outcomes.get(check.policy) === 'success'));
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
  // WsException and RpcException have no status of their own. They hold an object or a text of the app.
  if (typeof getError === 'function') return statusNamedBy(getError.call(error));
  return statusNamedBy(error) ?? STATUS_BY_GRAPHQL_CODE[String(extensions?.code)];
}

function statusNamedBy(value: unknown): number | undefined {
  if (typeof value !== 'object' || value === null) return undefined;
  const { status, statusCode } = value as Record<string, unknown>;
  return asStatus(statusCode) ?? asStatus(status);
}

const asStatus = (value: unknown): number | undefined => (typeof value === 'number' ? value : undefined);
