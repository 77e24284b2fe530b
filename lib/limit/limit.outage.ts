import { Logger } from '@nestjs/common';
import { warningOnce } from '../core/warn-once.js';
import {
  type BackendDecision,
  countsIn,
  type CountedPolicy,
  type LimitBackend,
  type LimitRules,
} from './limit.backend.js';
import { LimitError } from './limit.errors.js';
import type { PolicyCheck } from './limit.policy.js';
import type { FoundAttempts, LimiterDecision, OnError } from './limit.types.js';
import { type Meant, Remembered } from './remembered.js';

/** A decision, and the limit that made it. */
export interface Decisive {
  readonly decision: LimiterDecision;
  readonly by: PolicyCheck;
}

/** The decisions about a call as callers get them, and how they were made. */
export interface Asked extends Decisive {
  readonly decisions: readonly LimiterDecision[];
  /** What the backend has replied. Undefined if the call was let in uncounted. */
  readonly replies: readonly BackendDecision[] | undefined;
  readonly backend: LimitBackend;
}

/** Asks a backend for one decision about each check. */
export type Operate = (
  backend: LimitBackend,
  checks: readonly PolicyCheck[],
) => Promise<readonly BackendDecision[]>;

/** Stands around the limiter's backend, and does what `onError` says while that does not answer. */
export class LimitOutage {
  readonly #logger = new Logger('SyncGuard');
  readonly #breaker = new CircuitBreaker();
  readonly #lastWords = new LastWords();
  readonly #warnOnce = warningOnce((message) => this.#logger.warn(message));

  /** @param fallback - counts in this process for policies with `onError: 'memory'` */
  constructor(
    private readonly backend: LimitBackend,
    private readonly fallback: LimitBackend,
  ) {}

  /** Asks the backend. If it does not answer, does what `onError` says. */
  ask(checks: readonly PolicyCheck[], operate: Operate, backend = this.backend): Promise<Asked> {
    if (backend.backend === 'memory')
      return operate(backend, checks).then((replies) =>
        asked(checks, backend, replies, backend !== this.backend),
      );
    if (!this.#breaker.tryEnter()) return this.#without(checks, operate, backend);
    return operate(backend, checks).then(
      (replies) => {
        this.#breaker.succeeded();
        this.#lastWords.hear(checks, replies);
        return asked(checks, backend, replies, false);
      },
      (error: unknown) => this.#without(checks, operate, backend, this.#outageOf(error, strictest(checks))),
    );
  }

  /** Does what `onError` says. */
  async #without(
    checks: readonly PolicyCheck[],
    operate: Operate,
    backend: LimitBackend,
    outage?: LimitError,
  ): Promise<Asked> {
    switch (strictest(checks)) {
      case 'closed':
        throw this.#unavailable(outage);
      case 'memory':
        this.#lastWords.tell(checks, this.fallback);
        return asked(checks, this.fallback, await operate(this.fallback, checks), true);
      case 'open':
        return asked(checks, backend, undefined, true);
    }
  }

  /** Returns the fault if it means that Redis does not answer. Throws any other fault for the caller to see. */
  #outageOf(error: unknown, onError: OnError): LimitError {
    const fault = LimitError.from(error);
    const { code } = fault;
    if (code !== 'ServiceUnavailable' && code !== 'NetworkTimeout' && code !== 'AuthFailed') {
      // An aborted call shows nothing about the server. Any other error is an answer of the server.
      if (code === 'Aborted') this.#breaker.abandoned();
      else this.#breaker.succeeded();
      throw fault;
    }
    if (fault.context.loop === true) {
      this.#breaker.abandoned();
      this.#warnOnce(
        `RATE_LIMIT_LOOP: This process was too busy to read the answers of Redis in time, so limits did what their \`onError\` says, here '${onError}'. Redis may be well. Look for what keeps the event loop busy.`,
      );
    } else if (this.#breaker.failed())
      this.#logger.warn(
        `RATE_LIMIT_OUTAGE: The Redis of the limiter does not answer (${fault.code}). Until it answers again, each limit does what its \`onError\` says, here '${onError}'.`,
      );
    return fault;
  }

  #unavailable(cause: LimitError | undefined): LimitError {
    return new LimitError({
      code: 'ServiceUnavailable',
      message: 'The limiter cannot decide, because Redis does not answer.',
      hint:
        cause?.hint ??
        'The limiter asks Redis again after a short pause. With `onError: "memory"` a policy counts in this process meanwhile.',
      cause,
      context: { retryAfter: Math.max(1, Math.ceil(this.#breaker.pauseLeftMs / 1000)) },
    });
  }

  /** Runs operations that change keys on both backends. Throws a fault when all are done. Returns what the backend replies. */
  async onBoth<Reply>(meant: Meant, operate: (backend: LimitBackend) => Promise<Reply>[]): Promise<Reply[]> {
    this.#lastWords.forget(meant);
    const replies = operate(this.backend);
    const others = this.fallback === this.backend ? [] : operate(this.fallback);
    for (const each of await Promise.allSettled([...replies, ...others]))
      if (each.status === 'rejected') throw LimitError.from(each.reason);
    return Promise.all(replies);
  }
}

const SEVERITY: readonly OnError[] = ['open', 'memory', 'closed'];

/** Returns the strictest `onError` of several limits. They are asked together, so one of them decides for all. */
const strictest = (checks: readonly PolicyCheck[]): OnError =>
  SEVERITY.findLast((onError) => checks.some(({ policy }) => policy.onError === onError)) ?? 'open';

/** Stands for the answer about a call that nobody has counted. */
export const UNCOUNTED: BackendDecision = { status: 'allowed', shortCount: 0, longCount: 0, resetMs: 0 };

function asked(
  checks: readonly PolicyCheck[],
  backend: LimitBackend,
  replies: readonly BackendDecision[] | undefined,
  degraded: boolean,
): Asked {
  const decisions = checks.map(({ policy }, i) => {
    const decision = toDecision(policy, replies?.[i] ?? UNCOUNTED);
    return degraded ? { ...decision, degraded } : decision;
  });
  const { decision, by } = decisive(checks, decisions);
  return { decision, by, decisions, replies, backend };
}

export function toDecision({ rules }: CountedPolicy, reply: BackendDecision): LimiterDecision {
  const { shortCount, longCount } = reply;
  if (reply.status === 'denied') {
    const retryAfterMs = Math.max(1, Math.ceil(reply.retryAfterMs));
    const retryAfterSecs = Math.ceil(retryAfterMs / 1000);
    const { scope, reason } = reply;
    return { allowed: false, scope, reason, retryAfterSecs, retryAfterMs, shortCount, longCount };
  }
  const [short, long] = rules.tiers;
  const left = short.threshold - 1 - shortCount;
  const remaining = Math.max(0, long ? Math.min(left, long.threshold - 1 - longCount) : left);
  return { allowed: true, shortCount, longCount, remaining, resetMs: reply.resetMs };
}

/** Returns the denied decision with the longest wait. If all limits allow the call, returns the one with least `remaining`. */
export function decisive(
  checks: readonly PolicyCheck[],
  decisions: readonly (LimiterDecision | undefined)[],
): Decisive {
  let result: Decisive | undefined;
  for (const [i, by] of checks.entries()) {
    const decision = decisions[i];
    if (decision && (!result || severity(decision) > severity(result.decision))) result = { decision, by };
  }
  return result as Decisive;
}

const severity = (decision: LimiterDecision): number =>
  decision.allowed ? -decision.remaining : decision.retryAfterMs;

const FAILURES_TO_OPEN = 5;
const FIRST_PAUSE_MS = 1_000;
const LONGEST_PAUSE_MS = 5_000;

/**
 * Stops calls to a server that does not answer. After five failures in a row it pauses for 1 s. Then it lets one call
 * through as a probe. Each probe that fails doubles the pause, up to 5 s.
 */
export class CircuitBreaker {
  #failures = 0;
  #pauseMs = FIRST_PAUSE_MS;
  #pauseEndsAtMs = 0;
  #probing = false;

  constructor(private readonly now: () => number = () => performance.now()) {}

  /** Returns whether a call may be made. After a pause only one call may, the probe, until its result is known. */
  tryEnter(): boolean {
    if (this.#failures < FAILURES_TO_OPEN) return true;
    if (this.#probing || this.now() < this.#pauseEndsAtMs) return false;
    this.#probing = true;
    return true;
  }

  get pauseLeftMs(): number {
    return this.#failures < FAILURES_TO_OPEN ? 0 : Math.max(0, this.#pauseEndsAtMs - this.now());
  }

  succeeded(): void {
    this.#failures = 0;
    this.#pauseMs = FIRST_PAUSE_MS;
    this.#probing = false;
  }

  /** Returns true if this failure starts the first pause. */
  failed(): boolean {
    const wasOpen = this.#failures >= FAILURES_TO_OPEN;
    // This call was sent before the pause began, so its failure shows nothing new.
    if (wasOpen && !this.#probing) return false;
    this.#failures++;
    this.#probing = false;
    if (this.#failures < FAILURES_TO_OPEN) return false;
    this.#pauseEndsAtMs = this.now() + this.#pauseMs;
    this.#pauseMs = Math.min(2 * this.#pauseMs, LONGEST_PAUSE_MS);
    return !wasOpen;
  }

  /** Called when the caller has given up the call, which shows nothing about the server. */
  abandoned(): void {
    this.#probing = false;
  }
}

/**
 * Remembers what Redis has said last about the keys that were at least half full. While Redis does not answer, this process
 * counts from there, so that a client gains nothing by an outage.
 */
class LastWords {
  readonly #words = new Remembered<{ readonly reply: BackendDecision; readonly atMs: number }>();

  constructor(private readonly now: () => number = () => performance.now()) {}

  hear(checks: readonly PolicyCheck[], replies: readonly BackendDecision[]): void {
    for (const [i, { identity, policy }] of checks.entries()) {
      const reply = replies[i] as BackendDecision;
      if (this.#words.size > 0) this.#words.delete(identity);
      if (isHalfFull(policy.rules, reply)) this.#words.set(identity, { reply, atMs: this.now() });
    }
  }

  /** Tells the fallback, once for each time that Redis has said something. */
  tell(checks: readonly PolicyCheck[], fallback: LimitBackend): void {
    for (const check of checks) {
      const last = this.#words.get(check.identity);
      if (!last) continue;
      this.#words.delete(check.identity);
      fallback.goOnFrom?.(check, last.reply, this.now() - last.atMs);
    }
  }

  forget(meant: Meant): void {
    this.#words.forget(meant);
  }
}

const isHalfFull = ({ tiers }: LimitRules, reply: BackendDecision): boolean =>
  reply.status === 'denied' || tiers.some(({ threshold }, i) => 2 * (countsIn(reply)[i] ?? 0) >= threshold);

export const sumOf = (numbers: readonly number[]): number => numbers.reduce((sum, each) => sum + each, 0);

/** Of several limits: whether any was blocked, and the sum of their attempts. */
export const foundIn = (found: readonly FoundAttempts[]): FoundAttempts => ({
  blocked: found.some(({ blocked }) => blocked),
  attempts: sumOf(found.map(({ attempts }) => attempts)),
});
