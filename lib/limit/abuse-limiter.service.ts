import { Injectable, Logger } from '@nestjs/common';
import { monotonicMs } from '../core/clock.js';
import { describe, hashKey } from '../core/keys.js';
import { SyncGuardError } from '../core/errors.js';
import type { Emit } from '../telemetry/telemetry.types.js';
import { callOptions, type CallOptions as SignalOption, integer } from '../core/validate.js';
import { createCallId, identityOf, keyOf } from './limit.id.js';
import type { Outcome } from './call-in-flight.js';
import { DenyCache } from './deny-cache.js';
import type { BackendDecision, CallOptions, LimitBackend } from './limit.backend.js';
import { decisive, type PolicyDecision, uncounted } from './limit.decisions.js';
import { LimitError, TooManyAttemptsError } from './limit.errors.js';
import { type ResolvedLimitOptions, resolvePolicies } from './limit.options.js';
import { LimitOutage, strictest } from './limit.outage.js';
import {
  limitDuration,
  type PolicyCheck,
  type PolicySubject,
  type ResolvedPolicy,
  validateCost,
} from './limit.policy.js';
import type { LimiterDecision } from './limit.types.js';
import type { LimitPolicy } from './policy.types.js';

/** The longest reason of a block that was set by hand, in characters. */
const MAX_REASON_LENGTH = 200;

export interface LimitCallOptions {
  /**
   * How much the call counts, from 1 to 1,000. A limit without `blockMs` accepts no more than its `limit`. A fixed window
   * accepts up to its `limit`, even above 1,000. Default: the policy's `cost`.
   */
  cost?: number;
  signal?: AbortSignal;
}

/**
 * A policy: its name in the `limits` option, the policy itself, or a list of policies. A single policy needs a `name`.
 * In a list, policies without a name get the names `policy`, `policy#2` and so on. Other lists give the same names, so
 * their policies count together with these.
 */
export type PolicyRef = string | LimitPolicy | readonly LimitPolicy[];

/** The decision about one call, with everything that `settle` needs when the call has ended. */
export interface CallDecision extends PolicyDecision {
  readonly checks: readonly PolicyCheck[];
  /**
   * The decision about each check, in the order of `checks`. If the deny cache has answered, it is undefined for the checks
   * that the cache knows nothing about.
   */
  readonly decisions: readonly (BackendDecision | undefined)[];
  readonly callId: string;
  /** The backend that counted the call. Undefined if the call was not counted. */
  readonly backend: LimitBackend | undefined;
}

export interface AbuseLimiterOptions {
  readonly limit: Pick<ResolvedLimitOptions, 'onError' | 'commandTimeoutMs' | 'denyCacheMs' | 'keyBy'>;
  readonly limits: ReadonlyMap<string, readonly ResolvedPolicy[]>;
  /** Emits an event for each call that the deny cache answers. The backend emits the events of all other calls. */
  readonly emit?: Emit | undefined;
}

/**
 * Counts attempts and decides whether a call has to wait. Each decision is one atomic step, except for several policies
 * on a Cluster. The service counts over sliding windows, unless the policy's `algorithm` says otherwise.
 *
 * @example
 * const decision = await limiter.check(`export:${user.id}`, 'export');
 * if (!decision.allowed) return comeBackIn(decision.retryAfterSecs);
 */
@Injectable()
export class AbuseLimiterService {
  readonly #logger = new Logger('SyncGuard');
  readonly #outage: LimitOutage;
  readonly #denyCache: DenyCache;
  readonly #inline = new WeakMap<object, readonly ResolvedPolicy[]>();
  readonly #everyCall = new WeakMap<ResolvedPolicy, ResolvedPolicy>();

  /**
   * @internal The module creates the service.
   * @param fallback - counts in this process while `backend` does not answer and the policy's `onError` is `'memory'`
   */
  constructor(
    backend: LimitBackend,
    fallback: LimitBackend,
    private readonly options: AbuseLimiterOptions,
  ) {
    this.#outage = new LimitOutage(backend, fallback);
    // The memory backend answers without a round trip, so it needs no deny cache.
    this.#denyCache = new DenyCache(backend.backend === 'memory' ? 0 : options.limit.denyCacheMs);
  }

  /**
   * Counts one call and decides about it. The service does not learn how the call ends, so a policy with
   * `count: 'failure'` or `'success'` counts every call here. For such a policy, call `check` only after a failure, or
   * only after a success.
   *
   * @param key - identifies who makes the call, 1 to 512 UTF-8 bytes. It is hashed before it becomes part of a Redis key.
   * @throws LimitError `InvalidArgument` for a wrong call, `Aborted` for an aborted `signal`, `ServiceUnavailable` while
   * Redis does not answer and the policy is `onError: 'closed'`, `Internal` for a reply that cannot be read
   * @example await limiter.check(user.id, { name: 'export', limit: 10, windowMs: hours(1) }, { cost: files.length });
   */
  async check(key: string, policy: PolicyRef, options: LimitCallOptions = {}): Promise<LimiterDecision> {
    const { cost, signal } = checked(() => callOptions(options, ['cost']));
    const { decision } = await this.decide(this.#checks(key, policy, cost), signal);
    return decision;
  }

  /**
   * Does what `check` does, and throws if the call is denied.
   *
   * @throws TooManyAttemptsError if the call is denied: over HTTP a 429 with `Retry-After`
   * @throws LimitError as `check` does
   * @example await limiter.limiter(`verify:${email}`, 'email-verification');
   */
  async limiter(key: string, policy: PolicyRef, options: LimitCallOptions = {}): Promise<void> {
    const { cost, signal } = checked(() => callOptions(options, ['cost']));
    const { decision, policy: decisive } = await this.decide(this.#checks(key, policy, cost), signal);
    if (!decision.allowed) throw new TooManyAttemptsError(decision, decisive.code);
  }

  /**
   * Returns a decision about the key, without counting or writing anything. The key is denied while it is blocked, or while a
   * limit without `blockMs` is used up. If the limit has a `blockMs` and is used up, `peek` still allows the key, because
   * only the next call sets the block. While Redis does not answer, the policy's `onError` decides, as in `check`.
   */
  async peek(key: string, policy: PolicyRef, options: SignalOption = {}): Promise<LimiterDecision> {
    const call = this.#callOf(options);
    const subjects = this.#subjects(key, policy);
    const { result, degraded } = await this.#outage.ask(strictest(subjects), (backend) =>
      Promise.all(subjects.map((subject) => backend.peek(subject, call))),
    );
    return decisive(subjects, result ?? subjects.map(uncounted), degraded).decision;
  }

  /**
   * Forgets everything about the key: its attempts, its block and its penalties. While Redis does not answer, `reset`,
   * `block`, `unblock` and `forgive` throw. They still change what this process counts for `onError: 'memory'`.
   *
   * @throws LimitError `InvalidArgument` for a wrong call, `Aborted` for an aborted `signal`. `ServiceUnavailable`,
   * `NetworkTimeout` or `AuthFailed` if Redis did not confirm the change.
   */
  async reset(key: string, policy: PolicyRef, options: SignalOption = {}): Promise<void> {
    const call = this.#callOf(options);
    await this.#forEach(key, policy, (backend, subject) => backend.reset(subject, call));
  }

  /**
   * Blocks a key by hand. The block replaces any other block of the key. The counts of the key stay.
   *
   * @param ms - how long the block lasts, from 1 ms to 366 days
   * @param reason - becomes the `reason` of decisions, at most 200 characters. Clients do not see it.
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

  /** Ends a block. The window that had set the block starts again with no attempts. The penalties of the key stay. */
  async unblock(key: string, policy: PolicyRef, options: SignalOption = {}): Promise<void> {
    const call = this.#callOf(options);
    await this.#forEach(key, policy, (backend, subject) => backend.unblock(subject, call));
  }

  /** Takes back the newest `n` attempts, as if they had not been made. A block stays. */
  async forgive(key: string, policy: PolicyRef, n = 1, options: SignalOption = {}): Promise<void> {
    const call = this.#callOf(options);
    const count = checked(() => integer('n', n, 1));
    const callId = createCallId();
    await this.#forEach(key, policy, (backend, subject) => backend.forgive(subject, count, callId, call));
  }

  /** @internal Returns the policies that a name or an object stands for. */
  policies(policy: PolicyRef): readonly ResolvedPolicy[] {
    if (typeof policy === 'string')
      return this.options.limits.get(policy) ?? unknownPolicy(policy, this.options.limits.keys());
    if (typeof policy !== 'object' || policy === null)
      throw invalidCall(`The policy must be a name or an object, got ${describe(policy)}.`);
    let resolved = this.#inline.get(policy);
    if (!resolved) {
      const name = Array.isArray(policy) ? 'policy' : (policy as LimitPolicy).name;
      const { onError, keyBy } = this.options.limit;
      resolved = checked(() => resolvePolicies(policy, { onError, keyBy, name: name as string }));
      this.#inline.set(policy, resolved);
    }
    return resolved;
  }

  /**
   * @internal Counts one call against several limits at once. While Redis does not answer, the strictest of their `onError`
   * decides.
   */
  async decide(checks: readonly PolicyCheck[], signal?: AbortSignal): Promise<CallDecision> {
    const callId = createCallId();
    const remembered = this.#fromDenyCache(checks, callId);
    if (remembered) this.#emitDenyCacheHit(remembered);
    const decided = remembered ?? (await this.#askBackend(checks, callId, signal));
    this.#log(decided);
    return decided;
  }

  /**
   * @internal Settles a call in flight that has ended, for the limits whose policies are in `outcomes`. A limit that counts
   * this outcome counts the call. Any other takes it back. Returns the denied decision if this failure has set a block.
   * A success is never denied here, as it has happened already.
   */
  async settle(
    { backend, callId, checks }: CallDecision,
    outcomes: ReadonlyMap<ResolvedPolicy, Outcome>,
  ): Promise<PolicyDecision | undefined> {
    if (!backend) return undefined;
    const ended = checks.filter(({ policy }) => outcomes.has(policy));
    const counted = ended.filter(({ policy }) => outcomes.get(policy) === policy.count);
    const failures = counted.filter(({ policy }) => policy.count === 'failure');
    const successes = counted.filter(({ policy }) => policy.count === 'success');
    const others = ended.filter((check) => !counted.includes(check));
    const confirmed = failures.length > 0 ? this.#confirm(failures, callId, backend) : undefined;
    const rest = [
      ...(successes.length > 0 ? [this.#confirm(successes, callId, backend)] : []),
      ...others.map((check) => {
        const forget = outcomes.get(check.policy) === 'success' && check.policy.resetOnSuccess;
        return backend.withdraw(check, callId, forget, this.#call());
      }),
    ];
    const [decided] = await Promise.all([confirmed, ...rest.map((each) => each.catch(ignore))]);
    return decided && !decided.decision.allowed ? decided : undefined;
  }

  async #confirm(
    checks: readonly PolicyCheck[],
    callId: string,
    backend: LimitBackend,
  ): Promise<PolicyDecision | undefined> {
    const askedAtMs = monotonicMs();
    const { result, degraded } = await this.#outage.ask(
      strictest(checks),
      (counting) => Promise.all(checks.map((check) => counting.confirm(check, callId, this.#call()))),
      backend,
    );
    if (!result) return undefined;
    if (!degraded) this.#remember(checks, result, askedAtMs);
    return decisive(checks, result, degraded);
  }

  #fromDenyCache(checks: readonly PolicyCheck[], callId: string): CallDecision | undefined {
    if (this.#denyCache.size === 0) return undefined;
    const decisions = checks.map(({ identity }) => this.#denyCache.find(identity));
    if (!decisions.some(Boolean)) return undefined;
    const { decision, policy } = decisive(checks, decisions);
    return { decision, policy, checks, decisions, callId, backend: undefined };
  }

  async #askBackend(
    checks: readonly PolicyCheck[],
    callId: string,
    signal: AbortSignal | undefined,
  ): Promise<CallDecision> {
    const askedAtMs = monotonicMs();
    const { result, backend, degraded } = await this.#outage.ask(strictest(checks), (counting) =>
      counting.check(checks, callId, this.#call(signal)),
    );
    const decisions: readonly BackendDecision[] = result ?? checks.map(uncounted);
    if (!degraded) this.#remember(checks, decisions, askedAtMs);
    const { decision, policy } = decisive(checks, decisions, degraded);
    return { decision, policy, checks, decisions, callId, backend: result && backend };
  }

  #remember(checks: readonly PolicyCheck[], decisions: readonly BackendDecision[], askedAtMs: number): void {
    decisions.forEach((decision, i) => {
      if (decision.status === 'denied')
        this.#denyCache.add((checks[i] as PolicyCheck).identity, decision, askedAtMs);
    });
  }

  #call(signal?: AbortSignal): CallOptions {
    return { timeoutMs: this.options.limit.commandTimeoutMs, signal };
  }

  #callOf(options: SignalOption): CallOptions {
    return this.#call(checked(() => callOptions(options, [])).signal);
  }

  #checks(key: string, policy: PolicyRef, cost: number | undefined): PolicyCheck[] {
    return this.policies(policy).map((each) => checkOf(this.#countingEveryCall(each), key, cost));
  }

  #countingEveryCall(policy: ResolvedPolicy): ResolvedPolicy {
    if (policy.count === 'attempt') return policy;
    let every = this.#everyCall.get(policy);
    if (!every) this.#everyCall.set(policy, (every = { ...policy, count: 'attempt' }));
    return every;
  }

  #subjects(key: string, policy: PolicyRef): PolicySubject[] {
    return this.policies(policy).map((each) => ({
      policy: each,
      identity: checked(() => identityOf(each, key)),
    }));
  }

  /** Changes a key, and removes it from the deny cache. */
  async #forEach(
    key: string,
    policy: PolicyRef,
    operate: (backend: LimitBackend, subject: PolicySubject) => Promise<void>,
  ): Promise<void> {
    const subjects = this.#subjects(key, policy);
    try {
      await this.#outage.onBoth((backend) => settleAll(subjects.map((subject) => operate(backend, subject))));
    } finally {
      for (const { identity } of subjects) this.#denyCache.delete(identity);
    }
  }

  /** Emits the event that the backend would have emitted for this denied call. */
  #emitDenyCacheHit({ decision, policy, checks }: CallDecision): void {
    const { identity } = checks.find((check) => check.policy === policy) as PolicyCheck;
    this.options.emit?.({
      ...{ feature: 'limit', type: 'check', result: 'fail', fromDenyCache: true, durationMs: 0 },
      ...{ policy: policy.name, key: keyOf(identity) },
      ...(decision.allowed ? {} : { reason: decision.scope }),
    });
  }

  /** Logs denied calls only (ADR 0010). Nest shows debug lines by default, and a line for each call would be noise. */
  #log({ decision, policy, checks }: CallDecision): void {
    if (decision.allowed || !Logger.isLevelEnabled('debug')) return;
    const { scope, retryAfterSecs, shortCount, longCount, degraded } = decision;
    const identity = checks.find((check) => check.policy === policy)?.identity ?? '';
    const windows =
      policy.rules.longThreshold > 0
        ? `${shortCount} in the short window, ${longCount} in the long`
        : `${shortCount} in the window`;
    this.#logger.debug(
      `limit ${policy.name} ${hashKey(keyOf(identity))}: denied (${scope}) for ${retryAfterSecs} s, ${windows}${degraded ? ', without Redis' : ''}`,
    );
  }
}

/** Returns the check of a call against one policy. Throws if the key or the cost is not valid. */
export function checkOf(policy: ResolvedPolicy, key: string, cost?: number): PolicyCheck {
  if (
    policy.dynamicLimit ||
    policy.dynamicWindow ||
    (cost === undefined && typeof policy.cost === 'function')
  )
    throw invalidCall(
      `The policy ${policy.name} takes its \`limit\`, \`windowMs\` or \`cost\` from a function of the request.`,
      'Use it in @RateLimit, where there is a request. AbuseLimiterService needs numbers.',
    );
  return checked(() => ({
    policy,
    identity: identityOf(policy, key),
    cost: cost === undefined ? (policy.cost as number) : validateCost(policy, cost),
  }));
}

function validateReason(reason: unknown): string {
  if (typeof reason === 'string' && reason.length <= MAX_REASON_LENGTH) return reason.toWellFormed();
  throw invalidCall(
    `\`reason\` must be a string of at most ${MAX_REASON_LENGTH} characters, got ${describe(reason)}.`,
  );
}

function unknownPolicy(name: string, known: Iterable<string>): never {
  throw invalidCall(
    `There is no policy ${JSON.stringify(name.slice(0, 60))}.`,
    `Correct the name, or add the policy to the \`limits\` option. There are: ${[...known].join(', ') || 'none'}.`,
  );
}

const invalidCall = (message: string, hint?: string): LimitError =>
  new LimitError({ code: 'InvalidArgument', message, hint });

/** Runs a check of the arguments of a call. Throws its fault as a LimitError `InvalidArgument`. */
function checked<T>(check: () => T): T {
  try {
    return check();
  } catch (error) {
    throw error instanceof SyncGuardError ? LimitError.from(error) : error;
  }
}

function ignore(): void {
  // A call that could not be settled stays in flight for 60 s at most. Then it no longer takes up room. Under a policy
  // that counts successes, it then counts as a success.
}

/** Waits for all, and throws the first fault. */
async function settleAll(operations: readonly Promise<void>[]): Promise<void> {
  for (const each of await Promise.allSettled(operations)) if (each.status === 'rejected') throw each.reason;
}
