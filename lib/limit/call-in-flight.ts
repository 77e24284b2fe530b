import type { ResolvedPolicy } from './limit.policy.js';

const isFailureStatus = (status: number): boolean => status === 401 || status === 403;

/** How a call ended for a limit: only a success may forget the failures before it. */
export type Outcome = 'failure' | 'success' | 'neither';

/** The part of an HTTP response that says how a call ended: of Node's own response, and of Fastify's reply. */
export interface EndingResponse {
  readonly statusCode: number;
  readonly headersSent: boolean;
  once(event: 'finish' | 'close', listener: () => void): unknown;
}

/**
 * A request that limits which count failures have let in. It is settled once: as a failure as soon as the handler
 * shows one, so that the answer can still become a 429; as anything else when the answer was sent, by its status.
 * Until then a later guard, an interceptor or a filter may make a failure of it.
 */
export class CallInFlight {
  #settled = false;
  #error: unknown;

  /**
   * @param response - as it is now
   * @param settle - tells the limits; rejects with the 429 when this failure sets a block
   */
  constructor(
    private readonly policies: readonly ResolvedPolicy[],
    private readonly response: { readonly statusCode: number; readonly headersSent: boolean },
    private readonly settle: (outcomeOf: (policy: ResolvedPolicy) => Outcome) => Promise<void>,
  ) {}

  /** The handler gave its first answer. It may have set a status by hand. */
  async answered(): Promise<void> {
    if (isFailureStatus(this.response.statusCode)) await this.#settleBy(this.response.statusCode);
  }

  /** The handler threw. What is no failure by itself is left to the filters. */
  async failedWith(error: unknown): Promise<void> {
    this.#error = error;
    const status = statusOfError(error) ?? 0;
    if (this.policies.some((policy) => this.#outcome(policy, status) === 'failure'))
      await this.#settleBy(status);
  }

  /** The answer was sent. */
  async sent(): Promise<void> {
    await this.#settleBy(this.response.statusCode);
  }

  /** The client has left. Whoever does not wait for the answer has not shown that it was no failure. */
  async left(): Promise<void> {
    await this.#settleBy(this.response.headersSent ? this.response.statusCode : 401);
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
    await this.settle((policy) => this.#outcome(policy, status));
  }
}

/** The HTTP status that an error names: of Nest's exceptions, and of those of other libraries. */
function statusOfError(error: unknown): number | undefined {
  if (typeof error !== 'object' || error === null) return undefined;
  const { getStatus, status, statusCode } = error as Record<string, unknown>;
  const named: unknown = typeof getStatus === 'function' ? getStatus.call(error) : (status ?? statusCode);
  return typeof named === 'number' ? named : undefined;
}
