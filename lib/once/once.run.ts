import { isOwed } from '../core/errors.js';
import { checkedSignal } from '../core/checked-signal.js';
import type { Watchdog, Watched } from '../core/watchdog.js';
import type { ClaimReply, OnceBackend, OnceEnd } from './once.backend.js';
import { type OnceError, lost } from './once.errors.js';
import type { ResolvedOnceCall } from './once.options.js';
import type { OnceContext } from './once.types.js';
import type { SentClaim } from './once.wait.js';

// As a lock, a lease is renewed after a third of its time, which leaves time for more tries.
const RENEWALS_PER_LEASE = 3;
const RETRIES_PER_LEASE = 20;

/** Why a run has lost its key, as its event says it, and in words. */
export type OnceLoss = 'lapsed' | 'overtaken';
const LOSSES: Record<OnceLoss, string> = {
  lapsed: 'its lease has lapsed',
  overtaken: 'another call has it, or it was settled or forgotten by hand',
};

/** What a run needs of its service. */
export interface RunHost {
  readonly backend: OnceBackend;
  /** Has the runs that are not over. */
  readonly watchdog: Watchdog<OnceRun>;
  /** Called once, when the end of a run is stored, or refused as it has lost its key. */
  onOver(): void;
  /** Repeats the end of a run until it is stored. Redis did not answer the first time. */
  endLater(key: string, end: () => Promise<number>, fault: unknown): void;
}

class RunContext implements OnceContext {
  readonly #run: OnceRun;

  constructor(
    run: OnceRun,
    readonly key: string,
    readonly attempt: number,
    readonly fence: string,
  ) {
    this.#run = run;
  }

  get signal(): AbortSignal {
    return this.#run.signal;
  }
}

/**
 * A run that has its key: it renews its lease, notices its loss, and is ended once. The deadline counts from before the last
 * claim or renewal was sent, by the local clocks, so it never comes later than the end of the lease on the server.
 */
export class OnceRun implements Watched {
  place = -1;
  readonly context: OnceContext;
  readonly #host: RunHost;
  readonly #claim: SentClaim;
  readonly #options: ResolvedOnceCall;
  #deadlineMs = 0;
  #wallDeadlineMs = 0;
  #renewAtMs = 0;
  #fault: unknown;
  #isOver = false;
  #lost: OnceError | undefined;
  #controller: AbortController | undefined;

  /** @param onLost - called once, when the run notices that it has lost its key */
  constructor(
    host: RunHost,
    options: ResolvedOnceCall,
    claim: SentClaim,
    { attempt, fence }: Extract<ClaimReply, { status: 'claimed' }>,
    private readonly onLost?: (loss: OnceLoss) => void,
  ) {
    this.#host = host;
    this.#options = options;
    this.#claim = claim;
    this.context = new RunContext(this, claim.key, attempt, fence);
    this.#extended(claim.sentMs, claim.leaseMs);
    host.watchdog.watch(this);
  }

  /** The error of the loss, if the run has lost its key. It reads the clocks: one that was set forward ends the lease early. */
  get lost(): OnceError | undefined {
    if (performance.now() >= this.#deadlineMs || Date.now() >= this.#wallDeadlineMs) this.#lose('lapsed');
    return this.#lost;
  }

  get signal(): AbortSignal {
    if (!this.#controller) {
      this.#controller = checkedSignal(() => void this.lost);
      if (this.#lost) this.#controller.abort(this.#lost);
    }
    return this.#controller.signal;
  }

  get wakeAtMs(): number {
    return this.#isOver || this.#lost ? Infinity : Math.min(this.#renewAtMs, this.#deadlineMs);
  }

  wake(nowMs: number): void {
    if (this.#isOver || this.lost || nowMs < this.#renewAtMs) return;
    const leftMs = this.#claim.sentMs + this.#options.maxRunMs - nowMs;
    const leaseMs = Math.min(this.#options.leaseMs, Math.floor(leftMs));
    // Nothing is left to extend, or the server owes the answer to the last renewal.
    if (leaseMs < this.#retryMs || isOwed(this.#fault)) return this.#renewLater();
    this.#renewAtMs = Infinity;
    void this.#renew(nowMs, leaseMs);
  }

  /**
   * Ends the run. If Redis does not answer, this is repeated in the background, and the lease goes on being renewed.
   *
   * @returns when it ended, in ms since 1970. If Redis did not answer, now.
   * @throws OnceError OnceLost if another run has taken the key over
   */
  async end(end: OnceEnd): Promise<number> {
    const { key } = this.#claim;
    let atMs: number;
    try {
      atMs = await this.#host.backend.end(this.#claim, end);
    } catch (fault) {
      const again = (): Promise<number> =>
        this.#host.backend.end(this.#claim, end).then((at) => this.#over(at));
      this.#host.endLater(key, again, fault);
      return Date.now();
    }
    if (this.#over(atMs) > 0) return atMs;
    throw this.#lost ?? lost(key, LOSSES.overtaken);
  }

  #lose(loss: OnceLoss): void {
    if (this.#isOver || this.#lost) return;
    this.#lost = lost(this.#claim.key, LOSSES[loss]);
    this.onLost?.(loss);
    this.#controller?.abort(this.#lost);
  }

  #over(atMs: number): number {
    if (this.#isOver) return atMs;
    this.#isOver = true;
    this.#host.watchdog.unwatch(this);
    this.#host.onOver();
    return atMs;
  }

  get #retryMs(): number {
    return this.#options.leaseMs / RETRIES_PER_LEASE;
  }

  #extended(sentMs: number, leaseMs: number): void {
    this.#deadlineMs = sentMs + leaseMs;
    this.#wallDeadlineMs = Date.now() - (performance.now() - sentMs) + leaseMs;
    this.#renewAtMs = sentMs + leaseMs / RENEWALS_PER_LEASE;
  }

  #renewLater(): void {
    this.#renewAtMs = performance.now() + this.#retryMs;
  }

  async #renew(sentMs: number, leaseMs: number): Promise<void> {
    try {
      const isMine = await this.#host.backend.renew(this.#claim, leaseMs);
      if (this.#isOver || this.#lost) return;
      if (isMine) this.#extended(sentMs, leaseMs);
      else this.#lose('overtaken');
    } catch (error) {
      this.#fault = error;
      this.#renewLater();
    }
    this.#host.watchdog.changed(this);
  }
}
