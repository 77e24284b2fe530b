import type { CallEnd } from './limit.types.js';
import type { ResolvedPolicy } from './limit.policy.js';

const isFailureStatus = (status: number): boolean => status === 401 || status === 403;

const isSuccessStatus = (status: number): boolean => status >= 200 && status < 300;

/** How a call ended for a limit: only a success may forget the failures before it. */
export type Outcome = 'failure' | 'success' | 'neither';

/** What the limits of a call are told when it has ended, and who is told what is odd about its end. */
export interface Listeners {
  /** Rejects with the denial when this failure sets a block. */
  settle(outcomes: ReadonlyMap<ResolvedPolicy, Outcome>): Promise<void>;
  /** `isFailure` threw, or said neither true, false nor undefined. */
  verdictFailed(policy: ResolvedPolicy, fault: unknown): void;
  /** The answer is a redirect, and nobody says whether that is a failure. */
  redirected(policy: ResolvedPolicy): void;
}

/** The response of HTTP as it is now. */
export interface AnswerNow extends Pick<CallEnd, 'statusCode' | 'location' | 'handled'> {
  readonly headersSent: boolean;
}

/**
 * A call that was let in by limits which count failures or successes. It is settled once: as a failure as soon as the
 * handler shows one, so that the answer can still become a denial. Over HTTP as anything else when the answer was sent,
 * by its status: until then a later guard, an interceptor or a filter may make a failure of it. Elsewhere there is no
 * status, and what the handler returns is the answer.
 */
export class CallInFlight {
  #settled = false;
  #error: unknown;
  /** What `isFailure` of each policy says, and of which end. */
  #verdicts?: ReadonlyMap<ResolvedPolicy, boolean | undefined>;
  #asked?: CallEnd;
  #expectation?: NodeJS.Timeout;

  constructor(
    private readonly policies: readonly ResolvedPolicy[],
    private readonly listeners: Listeners,
    private readonly response?: AnswerNow,
  ) {}

  /** The handler returned its answer, which has not left yet. */
  async answered(end: CallEnd): Promise<void> {
    // GraphQL takes an error that is returned for one that is thrown.
    if (!this.response && end.value instanceof Error)
      return this.failedWith(end.value, { ...end, value: undefined });
    await this.#judge(undefined, end);
  }

  /** The handler threw, or what runs around it. What is no failure by itself is left to the filters of HTTP. */
  async failedWith(error: unknown, end: Omit<CallEnd, 'statusCode'>): Promise<void> {
    this.#error = error;
    await this.#judge(error, { ...end, statusCode: statusOfError(error) ?? 500 });
  }

  /** The answer was sent. */
  async sent(): Promise<void> {
    const { statusCode = 200, location, handled = false } = this.response ?? {};
    if (!this.#settled && !this.#isAsked(statusCode, location))
      this.#verdicts = this.#ask(this.#error, { statusCode, location, handled, value: this.#asked?.value });
    await this.#settleBy(statusCode);
  }

  /** A stream of events has begun: its headers are out, or may soon be. */
  streaming(): void {
    if (this.response?.headersSent) void this.sent().catch(() => {});
  }

  /** Another limit, or what it asks, has refused the call after this one has let it in: no guess was made. */
  async refused(): Promise<void> {
    this.#verdicts = new Map();
    await this.#settleBy(429);
  }

  /** The connection closed before an answer was sent. This counts, so that hanging up is not a free guess. */
  async left(): Promise<void> {
    if (this.response?.headersSent) return this.sent();
    await this.#settle((policy) => (policy.count === 'success' ? 'success' : 'failure'));
  }

  /** Elsewhere than over HTTP: a guard after ours may refuse the call, of which nobody would be told. */
  expectHandler(withinMs: number): void {
    this.#expectation = setTimeout(() => this.unsubscribed(), withinMs).unref();
  }

  /** All guards have let the call pass. */
  reachedHandler(): void {
    clearTimeout(this.#expectation);
  }

  /** Nobody waits for the answer any more. Over HTTP the response tells so. */
  unsubscribed(): void {
    if (!this.response) void this.left().catch(() => {});
  }

  async #judge(error: unknown, end: CallEnd): Promise<void> {
    if (this.#settled) return;
    this.#verdicts ??= this.#ask(error, end);
    const isFailure = (policy: ResolvedPolicy): boolean =>
      policy.count === 'failure' && this.#outcome(policy, end.statusCode) === 'failure';
    if (!this.response || this.policies.some(isFailure)) await this.#settleBy(end.statusCode);
  }

  /** A filter, or an interceptor farther out, may have made another answer of it. */
  #isAsked(statusCode: number, location: string | undefined): boolean {
    return this.#asked?.statusCode === statusCode && this.#asked.location === location;
  }

  #ask(error: unknown, end: CallEnd): ReadonlyMap<ResolvedPolicy, boolean | undefined> {
    this.#asked = end;
    return new Map(this.policies.map((policy) => [policy, this.#verdictOf(policy, error, end)]));
  }

  #verdictOf(policy: ResolvedPolicy, error: unknown, end: CallEnd): boolean | undefined {
    const { isFailure, count } = policy;
    if (!isFailure) return undefined;
    try {
      const verdict: unknown = isFailure(error, end);
      // Of a guard's refusal it could not see the error: what has no 401 for it is no reason to let guesses go uncounted.
      if (verdict === false && error === undefined && !end.handled) return undefined;
      if (verdict === undefined || typeof verdict === 'boolean') return verdict;
      throw new TypeError(`isFailure returned ${typeof verdict}, not true, false or undefined.`);
    } catch (fault) {
      this.listeners.verdictFailed(policy, fault);
      return count === 'failure';
    }
  }

  #outcome(policy: ResolvedPolicy, status: number): Outcome {
    const verdict = this.#verdicts?.get(policy);
    const isOk = this.#error === undefined && isSuccessStatus(status);
    if (policy.count === 'success') {
      const failed = verdict ?? (this.#error !== undefined || status >= 400);
      return failed ? 'failure' : 'success';
    }
    if (verdict ?? isFailureStatus(status)) return 'failure';
    if (isRedirect(status) && !policy.isFailure) this.listeners.redirected(policy);
    return isOk ? 'success' : 'neither';
  }

  #settleBy(status: number): Promise<void> {
    return this.#settle((policy) => this.#outcome(policy, status));
  }

  async #settle(outcomeOf: (policy: ResolvedPolicy) => Outcome): Promise<void> {
    if (this.#settled) return;
    this.#settled = true;
    clearTimeout(this.#expectation);
    await this.listeners.settle(new Map(this.policies.map((policy) => [policy, outcomeOf(policy)])));
  }
}

/** Not 304, which says that nothing has changed. */
const isRedirect = (status: number): boolean => status >= 300 && status < 400 && status !== 304;

/** What GraphQL's world says in place of a status. */
const STATUS_BY_GRAPHQL_CODE: Readonly<Record<string, number>> = {
  UNAUTHENTICATED: 401,
  FORBIDDEN: 403,
  BAD_USER_INPUT: 400,
};

/** The HTTP status that an error names: of Nest's exceptions in all contexts, and of those of other libraries. */
function statusOfError(error: unknown): number | undefined {
  if (typeof error !== 'object' || error === null) return undefined;
  const { getStatus, getError, extensions } = error as {
    getStatus?: () => unknown;
    getError?: () => unknown;
    extensions?: { code?: unknown };
  };
  if (typeof getStatus === 'function') return asStatus(getStatus.call(error));
  // Of WebSockets and microservices: an object of the app's own making, or a text.
  if (typeof getError === 'function') return statusNamedBy(getError.call(error));
  return statusNamedBy(error) ?? STATUS_BY_GRAPHQL_CODE[String(extensions?.code)];
}

function statusNamedBy(value: unknown): number | undefined {
  if (typeof value !== 'object' || value === null) return undefined;
  const { status, statusCode } = value as Record<string, unknown>;
  return asStatus(statusCode) ?? asStatus(status);
}

const asStatus = (value: unknown): number | undefined => (typeof value === 'number' ? value : undefined);
