import type { ResolvedPolicy } from './limit.policy.js';

const isFailureStatus = (status: number): boolean => status === 401 || status === 403;

/** How a call ended for a limit: only a success may forget the failures before it. */
export type Outcome = 'failure' | 'success' | 'neither';

/**
 * A call that limits which count failures have let in. It is settled once: as a failure as soon as the handler shows
 * one, so that the answer can still become a denial. Over HTTP as anything else when the answer was sent, by its
 * status: until then a later guard, an interceptor or a filter may make a failure of it. Elsewhere there is no status,
 * and what the handler gives is the answer.
 */
export class CallInFlight {
  #settled = false;
  #error: unknown;
  #expectation?: NodeJS.Timeout;

  /**
   * @param settle - tells the limits; rejects with the denial when this failure sets a block
   * @param response - of HTTP, as it is now
   */
  constructor(
    private readonly policies: readonly ResolvedPolicy[],
    private readonly settle: (outcomeOf: (policy: ResolvedPolicy) => Outcome) => Promise<void>,
    private readonly response?: { readonly statusCode: number; readonly headersSent: boolean },
  ) {}

  /** The handler gave an answer, or ended without one. Over HTTP it may have set a status by hand. */
  async answered(value?: unknown): Promise<void> {
    // GraphQL takes an error that is returned for one that is thrown.
    if (!this.response && value instanceof Error) return this.failedWith(value);
    const status = this.response?.statusCode ?? 200;
    if (!this.response || isFailureStatus(status)) await this.#settleBy(status);
  }

  /** Another limit, or what it asks, has refused the call after this one has let it in: no guess was made. */
  async refused(): Promise<void> {
    await this.#settleBy(429);
  }

  /** The handler threw. What is no failure by itself is left to the filters of HTTP. */
  async failedWith(error: unknown): Promise<void> {
    this.#error = error;
    const status = statusOfError(error) ?? 500;
    if (!this.response || this.policies.some((policy) => this.#outcome(policy, status) === 'failure'))
      await this.#settleBy(status);
  }

  /** The answer was sent. */
  async sent(): Promise<void> {
    await this.#settleBy(this.response?.statusCode ?? 200);
  }

  /** It came to no answer, or the client has not waited for one: nobody has shown that it was no failure. */
  async left(): Promise<void> {
    await this.#settleBy(this.response?.headersSent ? this.response.statusCode : 401);
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

  #outcome({ isFailure }: ResolvedPolicy, status: number): Outcome {
    const error = this.#error;
    const failed = isFailure && error !== undefined ? isFailure(error) : isFailureStatus(status);
    if (failed) return 'failure';
    return status >= 400 || error !== undefined ? 'neither' : 'success';
  }

  async #settleBy(status: number): Promise<void> {
    if (this.#settled) return;
    this.#settled = true;
    clearTimeout(this.#expectation);
    await this.settle((policy) => this.#outcome(policy, status));
  }
}

/** What GraphQL's world says in place of 401 and 403. */
const STATUS_BY_GRAPHQL_CODE: Readonly<Record<string, number>> = { UNAUTHENTICATED: 401, FORBIDDEN: 403 };

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
