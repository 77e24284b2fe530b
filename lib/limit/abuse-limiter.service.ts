import { Injectable } from '@nestjs/common';
import { SyncGuardError } from '../core/errors.js';
import { describe } from '../core/keys.js';
import { callOptions, type CallOptions as SignalOption, integer } from '../core/validate.js';
import { checkOf, createCallId, identityOf } from './limit.id.js';
import type { CallOptions, LimitBackend } from './limit.backend.js';
import type { LimitDecisions } from './limit.decisions.js';
import { LimitError, TooManyAttemptsError } from './limit.errors.js';
import { type ResolvedLimitOptions, resolvePolicies } from './limit.options.js';
import {
  limitDuration,
  type PolicyCheck,
  type PolicySubject,
  type ResolvedPolicy,
  validateCost,
} from './limit.policy.js';
import type { LimiterDecision } from './limit.types.js';
import type { LimitCallOptions, LimitPolicy, PolicyRef } from './policy.types.js';

/** The longest reason of a block that was set by hand, in characters. */
const MAX_REASON_LENGTH = 200;

export interface AbuseLimiterOptions {
  readonly limit: Pick<ResolvedLimitOptions, 'onError' | 'keyBy'>;
  readonly limits: ReadonlyMap<string, readonly ResolvedPolicy[]>;
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
  readonly #inline = new WeakMap<object, readonly ResolvedPolicy[]>();
  readonly #everyCall = new WeakMap<ResolvedPolicy, ResolvedPolicy>();

  /** @internal The module creates the service. */
  constructor(
    private readonly decisions: LimitDecisions,
    private readonly options: AbuseLimiterOptions,
  ) {}

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
    const { decision } = await this.decisions.decide(this.#checks(key, policy, cost), signal);
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
    const { decision, policy: decisive } = await this.decisions.decide(
      this.#checks(key, policy, cost),
      signal,
    );
    if (!decision.allowed) throw new TooManyAttemptsError(decision, decisive.code);
  }

  /**
   * Returns a decision about the key, without counting or writing anything. The key is denied while it is blocked, or while a
   * limit without `blockMs` is used up. If the limit has a `blockMs` and is used up, `peek` still allows the key, because
   * only the next call sets the block. While Redis does not answer, the policy's `onError` decides, as in `check`.
   */
  async peek(key: string, policy: PolicyRef, options: SignalOption = {}): Promise<LimiterDecision> {
    const { signal } = checked(() => callOptions(options, []));
    return this.decisions.peek(this.#subjects(key, policy), signal);
  }

  /**
   * Forgets everything about the key: its attempts, its block and its penalties. While Redis does not answer, `reset`,
   * `block`, `unblock` and `forgive` throw. They still change what this process counts for `onError: 'memory'`.
   *
   * @throws LimitError `InvalidArgument` for a wrong call, `Aborted` for an aborted `signal`. `ServiceUnavailable`,
   * `NetworkTimeout` or `AuthFailed` if Redis did not confirm the change.
   */
  async reset(key: string, policy: PolicyRef, options: SignalOption = {}): Promise<void> {
    await this.#change(key, policy, options, (backend, subject, call) => backend.reset(subject, call));
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
    const blockMs = checked(() => limitDuration('ms', ms));
    const text = validateReason(reason);
    await this.#change(key, policy, options, (backend, subject, call) =>
      backend.block(subject, blockMs, text, call),
    );
  }

  /** Ends a block. The window that had set the block starts again with no attempts. The penalties of the key stay. */
  async unblock(key: string, policy: PolicyRef, options: SignalOption = {}): Promise<void> {
    await this.#change(key, policy, options, (backend, subject, call) => backend.unblock(subject, call));
  }

  /** Takes back the newest `n` attempts, as if they had not been made. A block stays. */
  async forgive(key: string, policy: PolicyRef, n = 1, options: SignalOption = {}): Promise<void> {
    const count = checked(() => integer('n', n, 1));
    const callId = createCallId();
    await this.#change(key, policy, options, (backend, subject, call) =>
      backend.forgive(subject, count, callId, call),
    );
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

  async #change(
    key: string,
    policy: PolicyRef,
    options: SignalOption,
    operate: (backend: LimitBackend, subject: PolicySubject, call: CallOptions) => Promise<void>,
  ): Promise<void> {
    const { signal } = checked(() => callOptions(options, []));
    await this.decisions.change(this.#subjects(key, policy), operate, signal);
  }

  #checks(key: string, policy: PolicyRef, cost: number | undefined): PolicyCheck[] {
    return this.policies(policy).map((each) => {
      const check = checkOf(withoutRequest(this.#countingEveryCall(each), cost), key);
      return cost === undefined ? check : { ...check, cost: checked(() => validateCost(each, cost)) };
    });
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
}

/** Refuses a policy whose numbers depend on a request. A cost that the call names is used in place of the policy's. */
function withoutRequest(policy: ResolvedPolicy, cost?: number): ResolvedPolicy {
  if (
    policy.dynamicLimit ||
    policy.dynamicWindow ||
    (cost === undefined && typeof policy.cost === 'function')
  )
    throw invalidCall(
      `The policy ${policy.name} takes its \`limit\`, \`windowMs\` or \`cost\` from a function of the request.`,
      'Use it in @RateLimit, where there is a request. AbuseLimiterService needs numbers.',
    );
  return policy;
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
