import type { ResolvedPolicy } from './limit.policy.js';

const isFailureStatus = (status: number): boolean => status === 401 || status === 403;

/** The part of an HTTP response that says how a call ended: of Node's own response, and of Fastify's reply. */
export interface EndingResponse {
  readonly statusCode: number;
  once(event: 'finish', listener: () => void): unknown;
}

/**
 * A request that limits which count failures have let in. It is settled once: by what the handler gives or
 * throws, or, if nobody could tell by then (a later guard refused, a filter decides), by the status that was sent.
 */
export class CallInFlight {
  #settled = false;
  #error: unknown;

  /**
   * @param statusOf - of the response as it is now
   * @param settle - tells the limits; rejects with the 429 when this failure sets a block
   */
  constructor(
    private readonly policies: readonly ResolvedPolicy[],
    private readonly statusOf: () => number,
    private readonly settle: (failed: (policy: ResolvedPolicy) => boolean) => Promise<void>,
  ) {}

  /** The handler gave its first answer. It may have set a status by hand. */
  async answered(): Promise<void> {
    await this.#settleOnce(() => isFailureStatus(this.statusOf()));
  }

  /** The handler threw. An error without a status is left to the filters. */
  async failedWith(error: unknown): Promise<void> {
    this.#error = error;
    const status = statusOfError(error);
    if (status === undefined && this.policies.some(({ isFailure }) => !isFailure)) return;
    await this.#settleOnce(this.#failedBy(status ?? 0));
  }

  /** The answer was sent. */
  async sent(): Promise<void> {
    await this.#settleOnce(this.#failedBy(this.statusOf()));
  }

  #failedBy(status: number): (policy: ResolvedPolicy) => boolean {
    const error = this.#error;
    return ({ isFailure }) => (isFailure && error !== undefined ? isFailure(error) : isFailureStatus(status));
  }

  async #settleOnce(failed: (policy: ResolvedPolicy) => boolean): Promise<void> {
    if (this.#settled) return;
    this.#settled = true;
    await this.settle(failed);
  }
}

/** The HTTP status that an error names: of Nest's exceptions, and of those of other libraries. */
function statusOfError(error: unknown): number | undefined {
  if (typeof error !== 'object' || error === null) return undefined;
  const { getStatus, status, statusCode } = error as Record<string, unknown>;
  const named: unknown = typeof getStatus === 'function' ? getStatus.call(error) : (status ?? statusCode);
  return typeof named === 'number' ? named : undefined;
}
