import { isOwed } from '../core/errors.js';
import { checkedSignal } from '../core/checked-signal.js';
import type { Claimed, OnceBackend, OnceEnd } from './once.backend.js';
import { type OnceError, lost } from './once.errors.js';
import type { OnceCall } from './once.options.js';
import type { OnceContext } from './once.types.js';
import type { ClaimAttempt } from './once.wait.js';

// As a lock, a lease is renewed after a third of its time, which leaves time for more tries.
const RENEWALS_PER_LEASE = 3;
const RETRIES_PER_LEASE = 20;

/** What a run needs of its service. */
export interface RunHost {
  readonly backend: OnceBackend;
  /** Called once, when the lease of a run has lapsed while its body ran. */
  onLost(key: string): void;
  /** Called once, when the end of a run is stored, or refused as it has lost its key. */
  onOver(call: OnceCall): void;
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
export class OnceRun {
  readonly context: OnceContext;
  readonly #host: RunHost;
  readonly #claimed: Claimed;
  readonly #call: OnceCall;
  readonly #startMs: number;
  #deadlineMs = 0;
  #wallDeadlineMs = 0;
  #timer: NodeJS.Timeout | undefined;
  #fault: unknown;
  #isOver = false;
  #lost: OnceError | undefined;
  #controller: AbortController | undefined;

  constructor(
    host: RunHost,
    call: OnceCall,
    { nonce, sentMs }: Pick<ClaimAttempt, 'nonce' | 'sentMs'>,
    { attempt, fence }: { attempt: number; fence: string },
  ) {
    this.#host = host;
    this.#claimed = { key: call.key, nonce };
    this.#call = call;
    this.#startMs = sentMs;
    this.context = new RunContext(this, call.key, attempt, fence);
    this.#extended(sentMs, this.#leaseMs(sentMs));
  }

  /** The error of the loss, if the run has lost its key. It reads the clocks. */
  get lost(): OnceError | undefined {
    this.#check();
    return this.#lost;
  }

  get signal(): AbortSignal {
    if (!this.#controller) {
      this.#controller = checkedSignal(() => this.#check());
      if (this.#lost) this.#controller.abort(this.#lost);
    }
    return this.#controller.signal;
  }

  /**
   * Ends the run. If Redis does not answer, this is repeated in the background, and the lease goes on being renewed.
   *
   * @returns when it ended, in ms since 1970. If Redis did not answer, now.
   * @throws OnceError OnceLost if another run has taken the key over
   */
  async end(end: OnceEnd): Promise<number> {
    const send = async (): Promise<number> => {
      const atMs = await this.#host.backend.end(this.#claimed, end);
      if (!this.#isOver) this.#over();
      return atMs;
    };
    try {
      const atMs = await send();
      if (atMs > 0) return atMs;
    } catch (fault) {
      this.#host.endLater(this.context.key, send, fault);
      return Date.now();
    }
    throw this.#lost ?? lost(this.context.key, 'another call has it, or it was settled or forgotten by hand');
  }

  #lose(why: string): void {
    if (this.#isOver || this.#lost) return;
    this.#lost = lost(this.context.key, why);
    clearTimeout(this.#timer);
    this.#host.onLost(this.context.key);
    this.#controller?.abort(this.#lost);
  }

  #over(): void {
    this.#isOver = true;
    clearTimeout(this.#timer);
    this.#host.onOver(this.#call);
  }

  /** How long the lease is to last from now on: never past `maxRunMs`. */
  #leaseMs(nowMs: number): number {
    const { leaseMs, maxRunMs } = this.#call.options;
    return Math.min(leaseMs, Math.floor(this.#startMs + maxRunMs - nowMs));
  }

  #extended(sentMs: number, leaseMs: number): void {
    this.#deadlineMs = sentMs + leaseMs;
    this.#wallDeadlineMs = Date.now() - (performance.now() - sentMs) + leaseMs;
    this.#wakeIn(leaseMs / RENEWALS_PER_LEASE);
  }

  #wakeIn(ms: number): void {
    clearTimeout(this.#timer);
    const leftMs = Math.max(0, this.#deadlineMs - performance.now());
    this.#timer = setTimeout(() => void this.#wake(), Math.min(ms, leftMs)).unref();
  }

  /** A clock that was set forward ends the lease early, which is safe. */
  #check(): void {
    if (performance.now() >= this.#deadlineMs || Date.now() >= this.#wallDeadlineMs)
      this.#lose('its lease has lapsed');
  }

  async #wake(): Promise<void> {
    this.#check();
    const { leaseMs } = this.#call.options;
    const sentMs = performance.now();
    const wantedMs = this.#leaseMs(sentMs);
    if (this.#isOver || this.#lost) return;
    // Nothing is left to extend, or the server owes the answer to the last renewal.
    if (wantedMs < leaseMs / RETRIES_PER_LEASE || isOwed(this.#fault))
      return this.#wakeIn(leaseMs / RETRIES_PER_LEASE);
    try {
      const isMine = await this.#host.backend.renew(this.#claimed, wantedMs);
      if (this.#isOver || this.#lost) return;
      if (isMine) this.#extended(sentMs, wantedMs);
      else this.#lose('another call has it, or it was settled or forgotten by hand');
    } catch (error) {
      this.#fault = error;
      if (!this.#isOver) this.#wakeIn(leaseMs / RETRIES_PER_LEASE);
    }
  }
}
