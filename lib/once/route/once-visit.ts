import { isPromiseLike } from '../../core/foreign-values.js';
import { type OnceFrame, onceFrames } from '../current-once.js';
import type { Answer } from '../once.codec.js';
import type { OnceError } from '../once.errors.js';
import type { OnceCall } from '../once.options.js';
import type { BodyRun, OnceService } from '../once.service.js';
import type { OnceOutcome } from '../once.types.js';
import type { OncePlan } from './once-plan.js';

/** Kept besides those that `headers` names. The bytes of a body mean nothing without the first two. */
const KEPT_HEADERS = ['content-type', 'content-encoding', 'location', 'etag'];
/** They are about one caller and one time, and never kept. */
const NEVER_KEPT = ['set-cookie', 'authorization', 'www-authenticate'];

/**
 * A call over HTTP on its way from the guard, which has claimed its run, to its answer. The run ends when the answer is about
 * to leave, whoever writes it, and in the way the answer tells.
 */
export class OnceVisit {
  readonly frame: OnceFrame;
  #outcome: OnceOutcome = { value: undefined };
  #hasBegun = false;
  /** The calls of the handler that have not ended. */
  readonly #running = new Set<Promise<unknown>>();
  #settled: Promise<OnceError | undefined> | undefined;

  constructor(
    private readonly service: OnceService,
    private readonly run: BodyRun,
    private readonly call: OnceCall,
    private readonly plan: OncePlan,
  ) {
    this.frame = {
      context: run.context,
      outer: onceFrames.find(),
      active: true,
      handler: plan,
      around: (body) => this.#around(body),
    };
  }

  /** Called with what the handler, or a pipe before it, has come to. */
  handled(outcome: OnceOutcome): void {
    this.#outcome = outcome;
  }

  get isAnswered(): boolean {
    return this.#settled !== undefined;
  }

  /**
   * Called when the answer is about to leave. Resolves when the end of the run is stored: to undefined, or to the error that
   * is to be answered instead.
   *
   * @param answer - undefined for a stream
   */
  answered(status: number, answer?: () => Answer): Promise<OnceError | undefined> {
    this.#settled ??= this.#settle(status, answer).finally(() => (this.frame.active = false));
    return this.#settled;
  }

  async #settle(status: number, answer?: () => Answer): Promise<OnceError | undefined> {
    if (this.#running.size > 0) {
      // A timeout, for example, has answered for the body, which goes on. So does its lease.
      void this.#endLater();
      return undefined;
    }
    const outcome = this.#outcome;
    const hasFailed = 'error' in outcome;
    const isKept = this.service.keeps(this.call, outcome, !hasFailed && status < 400);
    const nothingRan = !this.#hasBegun && (hasFailed || status >= 400);
    if (nothingRan || !isKept) {
      await this.run.end(nothingRan ? 'nothing' : 'failed').catch(() => {});
      return undefined;
    }
    const { codec } = this.service;
    const kept = answer
      ? await codec.keptAnswer(this.call.key, () => this.#shortened(answer()))
      : codec.doneWithout(this.call.key, 'it is a stream');
    return this.run.end({ kept }).then(
      () => undefined,
      (error: OnceError) => error,
    );
  }

  async #endLater(): Promise<void> {
    const { key } = this.call;
    while (this.#running.size > 0) await Promise.allSettled(this.#running);
    const end =
      'error' in this.#outcome
        ? ('failed' as const)
        : { kept: this.service.codec.doneWithout(key, 'the answer has left before the handler had ended') };
    await this.run.end(end).catch(() => {});
  }

  #shortened({ status, headers, body }: Answer): Answer {
    const names = [...KEPT_HEADERS, ...this.plan.headers].filter((name) => !NEVER_KEPT.includes(name));
    const found = names.flatMap((name) =>
      headers[name] === undefined ? [] : [[name, headers[name]] as const],
    );
    return { status, headers: Object.fromEntries(found), body };
  }

  #around(body: () => unknown): unknown {
    // Interceptors and pipes may have taken longer than the lease.
    const { lost } = this.run;
    if (lost) throw lost;
    this.#hasBegun = true;
    const tell = this.service.bodyBegins(this.call.key);
    let result: unknown;
    try {
      result = body();
    } catch (error) {
      tell?.(true);
      throw error;
    }
    if (!isPromiseLike(result)) {
      tell?.(false);
      return result;
    }
    const ended = (outcome: OnceOutcome): void => {
      tell?.('error' in outcome);
      this.#running.delete(running);
      this.#outcome = outcome;
    };
    const running: Promise<void> = Promise.resolve(result).then(
      (value) => ended({ value }),
      (error: unknown) => ended({ error }),
    );
    this.#running.add(running);
    return result;
  }
}
