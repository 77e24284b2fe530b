import { Injectable, Logger } from '@nestjs/common';
import { monotonicMs } from '../clock.js';
import { describe, hashKey } from '../keys.js';
import { SyncGuardError } from '../syncguard.errors.js';
import type { Emit } from '../telemetry/telemetry.types.js';
import { callOptions, type CallOptions as SignalOption, integer } from '../validate.js';
import { BlockNotes } from './block-notes.js';
import type { Outcome } from './call-in-flight.js';
import { CircuitBreaker } from './circuit-breaker.js';
import type { CallOptions, LimitBackend, LimitCheck, LimitOutcome, Subject } from './limit.backend.js';
import { LimitError, TooManyAttemptsError } from './limit.errors.js';
import { type ResolvedLimitOptions, resolvePolicies } from './limit.options.js';
import { limitDuration, remainingOf, type ResolvedPolicy, validateCost } from './limit.policy.js';
import type {
  AllowedDecision,
  DeniedDecision,
  LimiterDecision,
  LimitPolicy,
  OnError,
} from './limit.types.js';
import { createCallId, identityOf, keyOf, MAX_REASON_LENGTH } from './limit.values.js';

export interface LimitCallOptions {
  /** How much the call counts; the policy's `cost`. 1 to 1,000; in a fixed window up to its limit. */
  cost?: number;
  signal?: AbortSignal;
}

/** A policy by its name in the `limits` option, or a policy with a `name`. */
export type PolicyRef = string | LimitPolicy | readonly LimitPolicy[];

export interface Verdict {
  readonly decision: LimiterDecision;
  /** The policy that the decision is of. */
  readonly policy: ResolvedPolicy;
}

/** A decision about one call, with what is needed to settle it later. */
export interface Ruling extends Verdict {
  readonly checks: readonly LimitCheck[];
  /** One for each check; undefined where nobody was asked. */
  readonly outcomes: readonly (LimitOutcome | undefined)[];
  readonly callId: string;
  /** Who counted the call; undefined: nobody did. */
  readonly backend: LimitBackend | undefined;
}

export interface AbuseLimiterOptions {
  readonly limit: Pick<ResolvedLimitOptions, 'onError' | 'commandTimeoutMs' | 'denyCacheMs' | 'keyBy'>;
  readonly limits: ReadonlyMap<string, readonly ResolvedPolicy[]>;
  /** Told of what the backend is not asked for: a denial that is known here. */
  readonly emit?: Emit | undefined;
}

/**
 * Counts attempts and says who has to wait. Every decision is one atomic step, over true sliding windows unless the
 * policy's `algorithm` says otherwise.
 *
 * @example
 * const decision = await limiter.check(`export:${user.id}`, 'export');
 * if (!decision.allowed) return tellToComeBackIn(decision.retryAfterSecs);
 */
@Injectable()
export class AbuseLimiterService {
  readonly #logger = new Logger('SyncGuard');
  readonly #breaker = new CircuitBreaker();
  readonly #notes: BlockNotes;
  readonly #inline = new WeakMap<object, readonly ResolvedPolicy[]>();
  readonly #everyCall = new WeakMap<ResolvedPolicy, ResolvedPolicy>();

  /**
   * @param fallback - counts in this process while `backend` does not answer and the policy says `'memory'`
   */
  constructor(
    private readonly backend: LimitBackend,
    private readonly fallback: LimitBackend,
    private readonly options: AbuseLimiterOptions,
  ) {
    // A block in this process's memory needs no note.
    this.#notes = new BlockNotes(backend.backend === 'memory' ? 0 : options.limit.denyCacheMs);
  }

  /**
   * Counts one call and decides about it. Nobody tells here how a call has ended, so a policy with
   * `count: 'failure'` counts every call: check where one has failed.
   *
   * @param key - whose call it is: 1 to 512 UTF-8 bytes, hashed before it names anything
   * @throws LimitError InvalidArgument, Aborted, Internal; ServiceUnavailable when Redis does not answer and the
   * policy is `onError: 'closed'`
   * @example await limiter.check(user.id, { name: 'export', limit: 10, windowMs: hours(1) }, { cost: files.length });
   */
  async check(key: string, policy: PolicyRef, options: LimitCallOptions = {}): Promise<LimiterDecision> {
    const { cost, signal } = checked(() => callOptions(options, ['cost']));
    const { decision } = await this.rule(this.#checks(key, policy, cost), signal);
    return decision;
  }

  /**
   * `check` that throws when the call is denied, for places that do not want to look at a result.
   *
   * @throws TooManyAttemptsError; at the HTTP edge 429 with `Retry-After`
   * @example await limiter.limiter(`verify:${email}`, 'email-verification');
   */
  async limiter(key: string, policy: PolicyRef, options: LimitCallOptions = {}): Promise<void> {
    const { cost, signal } = checked(() => callOptions(options, ['cost']));
    const { decision, policy: decisive } = await this.rule(this.#checks(key, policy, cost), signal);
    if (!decision.allowed) throw new TooManyAttemptsError(decision, decisive.code);
  }

  /**
   * What stands now, without counting or writing: denied when blocked, or when a limit without a block is used up.
   * While Redis does not answer the policy's `onError` decides, as in `check`.
   */
  async peek(key: string, policy: PolicyRef, options: SignalOption = {}): Promise<LimiterDecision> {
    const call = this.#callOf(options);
    const subjects = this.#subjects(key, policy);
    const { result, degraded } = await this.#guarded(strictest(subjects), this.backend, (backend) =>
      Promise.all(subjects.map((subject) => backend.peek(subject, call))),
    );
    return decisive(subjects, result ?? subjects.map(letIn), degraded).decision;
  }

  /**
   * Forgets everything about the key: attempts, block and strikes. While Redis does not answer, `reset`, `block`,
   * `unblock` and `forgive` change what this process counts by meanwhile, and then throw the fault.
   *
   * @throws LimitError InvalidArgument; ServiceUnavailable, NetworkTimeout, AuthFailed: Redis may not have done it
   */
  async reset(key: string, policy: PolicyRef, options: SignalOption = {}): Promise<void> {
    const call = this.#callOf(options);
    await this.#forEach(key, policy, (backend, subject) => backend.reset(subject, call));
  }

  /**
   * Blocks a key by hand, in place of whatever block there is; its counts stay.
   *
   * @param ms - how long, 1 to 366 days
   * @param reason - for those who look at the decision, at most 200 characters
   */
  async block(
    key: string,
    policy: PolicyRef,
    ms: number,
    reason = 'manual',
    options: SignalOption = {},
  ): Promise<void> {
    const call = this.#callOf(options);
    const blockMs = checked(() => limitDuration('ms', ms));
    const text = validateReason(reason);
    await this.#forEach(key, policy, (backend, subject) => backend.block(subject, blockMs, text, call));
  }

  /** Ends a block. The window that had set it begins afresh; strikes stay. */
  async unblock(key: string, policy: PolicyRef, options: SignalOption = {}): Promise<void> {
    const call = this.#callOf(options);
    await this.#forEach(key, policy, (backend, subject) => backend.unblock(subject, call));
  }

  /** Takes the newest `n` attempts back, as if they had not been made. A block stays. */
  async forgive(key: string, policy: PolicyRef, n = 1, options: SignalOption = {}): Promise<void> {
    const call = this.#callOf(options);
    const count = checked(() => integer('n', n, 1));
    const callId = createCallId();
    await this.#forEach(key, policy, (backend, subject) => backend.forgive(subject, count, callId, call));
  }

  /** @internal The policies that a name or an object stands for. */
  policies(policy: PolicyRef): readonly ResolvedPolicy[] {
    if (typeof policy === 'string') return this.options.limits.get(policy) ?? unknownPolicy(policy);
    if (typeof policy !== 'object' || policy === null)
      throw invalidCall(`a policy is a name or an object, got ${describe(policy)}.`);
    let resolved = this.#inline.get(policy);
    if (!resolved) {
      const name = Array.isArray(policy) ? 'policy' : (policy as LimitPolicy).name;
      const { onError, keyBy } = this.options.limit;
      resolved = checked(() => resolvePolicies(policy, { onError, keyBy, name: name as string }));
      this.#inline.set(policy, resolved);
    }
    return resolved;
  }

  /** @internal Counts one call against several limits at once, or degrades as their policies say. */
  async rule(checks: readonly LimitCheck[], signal?: AbortSignal): Promise<Ruling> {
    const callId = createCallId();
    const noted = this.#noted(checks, callId);
    if (noted) this.#tell(noted);
    const ruling = noted ?? (await this.#ask(checks, callId, signal));
    this.#log(ruling);
    return ruling;
  }

  /**
   * @internal A call in flight has ended for these of its limits. Returns the denial, if it was the failure that sets a
   * block. A success cannot be refused any more; one that nobody could be told of counts by lapse.
   */
  async settle(ruling: Ruling, outcomes: ReadonlyMap<ResolvedPolicy, Outcome>): Promise<Verdict | undefined> {
    const { backend, callId } = ruling;
    if (!backend) return undefined;
    const ended = ruling.checks.filter(({ policy }) => outcomes.has(policy));
    const counted = ended.filter(({ policy }) => outcomes.get(policy) === policy.count);
    const failures = counted.filter(({ policy }) => policy.count === 'failure');
    const successes = counted.filter(({ policy }) => policy.count === 'success');
    const others = ended.filter((check) => !counted.includes(check));
    const verdict = failures.length > 0 ? this.#confirm(failures, callId, backend) : undefined;
    const told = [
      ...(successes.length > 0 ? [this.#confirm(successes, callId, backend)] : []),
      ...others.map((check) => {
        const forget = outcomes.get(check.policy) === 'success' && check.policy.resetOnSuccess;
        return backend.withdraw(check, callId, forget, this.#call());
      }),
    ];
    const [decided] = await Promise.all([verdict, ...told.map((each) => each.catch(ignore))]);
    return decided && !decided.decision.allowed ? decided : undefined;
  }

  async #confirm(
    checks: readonly LimitCheck[],
    callId: string,
    backend: LimitBackend,
  ): Promise<Verdict | undefined> {
    const askedAtMs = monotonicMs();
    const { result, degraded } = await this.#guarded(strictest(checks), backend, (counting) =>
      Promise.all(checks.map((check) => counting.confirm(check, callId, this.#call()))),
    );
    if (!result) return undefined;
    if (!degraded) this.#note(checks, result, askedAtMs);
    return decisive(checks, result, degraded);
  }

  #noted(checks: readonly LimitCheck[], callId: string): Ruling | undefined {
    if (this.#notes.size === 0) return undefined;
    const outcomes = checks.map(({ identity }) => this.#notes.find(identity));
    if (!outcomes.some(Boolean)) return undefined;
    const { decision, policy } = decisive(checks, outcomes);
    return { decision, policy, checks, outcomes, callId, backend: undefined };
  }

  async #ask(
    checks: readonly LimitCheck[],
    callId: string,
    signal: AbortSignal | undefined,
  ): Promise<Ruling> {
    const askedAtMs = monotonicMs();
    const { result, backend, degraded } = await this.#guarded(strictest(checks), this.backend, (counting) =>
      counting.check(checks, callId, this.#call(signal)),
    );
    const outcomes: readonly LimitOutcome[] = result ?? checks.map(letIn);
    if (!degraded) this.#note(checks, outcomes, askedAtMs);
    const { decision, policy } = decisive(checks, outcomes, degraded);
    return { decision, policy, checks, outcomes, callId, backend: result && backend };
  }

  /** Asks a backend; where it does not answer, does what `onError` says. No result: let in uncounted. */
  async #guarded<T>(
    onError: OnError,
    backend: LimitBackend,
    ask: (backend: LimitBackend) => Promise<T>,
  ): Promise<{ result: T | undefined; backend: LimitBackend; degraded: boolean }> {
    if (backend.backend === 'memory')
      return { result: await ask(backend), backend, degraded: backend !== this.backend };
    let outage: LimitError | undefined;
    if (this.#breaker.tryEnter())
      try {
        const result = await ask(backend);
        this.#breaker.succeeded();
        return { result, backend, degraded: false };
      } catch (error) {
        outage = this.#outageOf(error, onError);
      }
    switch (onError) {
      case 'closed':
        throw this.#unavailable(outage);
      case 'memory':
        return { result: await ask(this.fallback), backend: this.fallback, degraded: true };
      case 'open':
        return { result: undefined, backend, degraded: true };
    }
  }

  /** A fault that says that Redis does not answer; all others are the caller's to see. */
  #outageOf(error: unknown, onError: OnError): LimitError {
    const fault = LimitError.from(error);
    const { code } = fault;
    if (code !== 'ServiceUnavailable' && code !== 'NetworkTimeout' && code !== 'AuthFailed') {
      // Its answer was an error, but an answer; an abort says nothing of the server.
      if (code === 'Aborted') this.#breaker.abandoned();
      else this.#breaker.succeeded();
      throw fault;
    }
    if (this.#breaker.failed())
      this.#logger.warn(
        `The limiter's Redis does not answer (${fault.code}); until it does, limits are decided by their onError, now '${onError}'.`,
      );
    return fault;
  }

  #unavailable(cause: LimitError | undefined): LimitError {
    return new LimitError({
      code: 'ServiceUnavailable',
      message: 'The limiter cannot decide, as Redis does not answer.',
      hint:
        cause?.hint ??
        'Calls are resumed as soon as it does; a policy with `onError: "memory"` goes on without it.',
      cause,
      context: { retryAfter: Math.max(1, Math.ceil(this.#breaker.pauseLeftMs / 1000)) },
    });
  }

  #note(checks: readonly LimitCheck[], outcomes: readonly LimitOutcome[], askedAtMs: number): void {
    outcomes.forEach((outcome, i) => {
      if (outcome.status === 'denied')
        this.#notes.add((checks[i] as LimitCheck).identity, outcome, askedAtMs);
    });
  }

  #call(signal?: AbortSignal): CallOptions {
    return { timeoutMs: this.options.limit.commandTimeoutMs, signal };
  }

  #callOf(options: SignalOption): CallOptions {
    return this.#call(checked(() => callOptions(options, [])).signal);
  }

  #checks(key: string, policy: PolicyRef, cost: number | undefined): LimitCheck[] {
    return this.policies(policy).map((each) => checkOf(this.#countingEveryCall(each), key, cost));
  }

  #countingEveryCall(policy: ResolvedPolicy): ResolvedPolicy {
    if (policy.count === 'attempt') return policy;
    let every = this.#everyCall.get(policy);
    if (!every) this.#everyCall.set(policy, (every = { ...policy, count: 'attempt' }));
    return every;
  }

  #subjects(key: string, policy: PolicyRef): Subject[] {
    return this.policies(policy).map((each) => ({
      policy: each,
      identity: checked(() => identityOf(each, key)),
    }));
  }

  /**
   * On the twin as well, and on the note: an operation by hand holds for whoever decides next, also while Redis does
   * not answer. Its fault is thrown once all have been asked.
   */
  async #forEach(
    key: string,
    policy: PolicyRef,
    operate: (backend: LimitBackend, subject: Subject) => Promise<void>,
  ): Promise<void> {
    const subjects = this.#subjects(key, policy);
    const onTwin = this.fallback === this.backend ? [] : subjects;
    const settled = await Promise.allSettled([
      ...subjects.map((subject) => operate(this.backend, subject)),
      ...onTwin.map((subject) => operate(this.fallback, subject)),
    ]);
    for (const { identity } of subjects) this.#notes.delete(identity);
    for (const each of settled) if (each.status === 'rejected') throw LimitError.from(each.reason);
  }

  /** What the backend's own event would say, had it been asked. */
  #tell({ decision, policy, checks }: Ruling): void {
    const { identity } = checks.find((check) => check.policy === policy) as LimitCheck;
    this.options.emit?.({
      ...{ feature: 'limit', type: 'check', result: 'fail', cached: true, durationMs: 0 },
      ...{ policy: policy.name, key: keyOf(identity) },
      ...(decision.allowed ? {} : { reason: decision.scope }),
    });
  }

  /** Denials only (ADR 0010): Nest shows debug lines by default, and a line a request is noise. */
  #log({ decision, policy, checks }: Ruling): void {
    if (decision.allowed || !Logger.isLevelEnabled('debug')) return;
    const { scope, retryAfterSecs, shortCount, longCount, degraded } = decision;
    const identity = checks.find((check) => check.policy === policy)?.identity ?? '';
    this.#logger.debug(
      `limit ${policy.name} ${hashKey(keyOf(identity))}: denied (${scope}) for ${retryAfterSecs} s, ${shortCount} in the short window, ${longCount} in the long${degraded ? ', without Redis' : ''}`,
    );
  }
}

/** One check of a call, with its key made fit and its cost looked at. */
export function checkOf(policy: ResolvedPolicy, key: string, cost?: number): LimitCheck {
  if (
    policy.dynamicLimit ||
    policy.dynamicWindow ||
    (cost === undefined && typeof policy.cost === 'function')
  )
    throw invalidCall(
      `${policy.name} takes its limit, window or cost from a request: it works in @RateLimit only.`,
    );
  return checked(() => ({
    policy,
    identity: identityOf(policy, key),
    cost: cost === undefined ? (policy.cost as number) : validateCost(policy, cost),
  }));
}

const SEVERITY: readonly OnError[] = ['open', 'memory', 'closed'];

/** Several limits of one call degrade together: as the strictest of them says. */
const strictest = (subjects: readonly Subject[]): OnError =>
  subjects.reduce<OnError>(
    (onError, { policy }) =>
      SEVERITY.indexOf(policy.onError) > SEVERITY.indexOf(onError) ? policy.onError : onError,
    'open',
  );

/** The denial that lasts longest, else the answer that leaves least. */
function decisive(
  subjects: readonly Subject[],
  outcomes: readonly (LimitOutcome | undefined)[],
  degraded = false,
): Verdict {
  let verdict: Verdict | undefined;
  for (const [i, { policy }] of subjects.entries()) {
    const outcome = outcomes[i];
    if (!outcome) continue;
    const decision = toDecision(policy, outcome, degraded);
    if (!verdict || severity(decision) > severity(verdict.decision)) verdict = { policy, decision };
  }
  return verdict as Verdict;
}

const severity = (decision: LimiterDecision): number =>
  decision.allowed ? -decision.remaining : decision.retryAfterSecs;

function toDecision(policy: ResolvedPolicy, outcome: LimitOutcome, degraded: boolean): LimiterDecision {
  const decision = outcome.status === 'allowed' ? toAllowed(policy, outcome) : toDenied(outcome);
  return degraded ? { ...decision, degraded: true } : decision;
}

const toAllowed = (
  policy: ResolvedPolicy,
  { shortCount, longCount, resetMs }: Extract<LimitOutcome, { status: 'allowed' }>,
): AllowedDecision => ({
  allowed: true,
  shortCount,
  longCount,
  remaining: remainingOf(policy, shortCount, longCount),
  resetMs,
});

const toDenied = (outcome: Extract<LimitOutcome, { status: 'denied' }>): DeniedDecision => ({
  allowed: false,
  scope: outcome.scope,
  reason: outcome.reason,
  retryAfterSecs: Math.max(1, Math.ceil(outcome.retryAfterMs / 1000)),
  shortCount: outcome.shortCount,
  longCount: outcome.longCount,
});

/** Nobody counted: what `onError: 'open'` lets in. */
const letIn = (): LimitOutcome => ({ status: 'allowed', shortCount: 0, longCount: 0, resetMs: 0 });

function validateReason(reason: unknown): string {
  if (typeof reason === 'string' && reason.length <= MAX_REASON_LENGTH) return reason.toWellFormed();
  throw invalidCall(
    `a reason is a string of at most ${MAX_REASON_LENGTH} characters, got ${describe(reason)}.`,
  );
}

function unknownPolicy(name: string): never {
  throw invalidCall(`there is no policy ${JSON.stringify(name.slice(0, 60))} in the \`limits\` option.`);
}

const invalidCall = (message: string): LimitError =>
  new LimitError({ code: 'InvalidArgument', message: `Invalid call of the limiter: ${message}` });

/** Runs the checks of a call; what they throw leaves as LimitError InvalidArgument. */
function checked<T>(check: () => T): T {
  try {
    return check();
  } catch (error) {
    throw error instanceof SyncGuardError ? LimitError.from(error) : error;
  }
}

function ignore(): void {
  // A call in flight that is not taken back stops taking up room by itself.
}
