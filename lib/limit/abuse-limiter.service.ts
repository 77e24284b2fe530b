import { Injectable, Logger, type OnModuleDestroy } from '@nestjs/common';
import type { Page } from '../core/page.js';
import {
  callOptions,
  type CallOptions as SignalOption,
  integer,
  leavingAs,
  userKey,
} from '../core/validate.js';
import { type ByHand, byOf, type ForcedChange, tellForced } from '../telemetry/by-hand.js';
import { warningOnce } from '../core/warn-once.js';
import { type AbuseLimiterOptions, type CallDecision, createCallId, Decisions, letIn } from './decisions.js';
import { accountOf, identityIn, isTagged, keyOf, nameOf } from './limit.identity.js';
import { type CallOptions, isOfKnown, isUncounted, type LimitBackend } from './limit.backend.js';
import { decisive, foundIn, sumOf } from './limit.outage.js';
import { LimitError, refusalBy } from './limit.errors.js';
import {
  type PolicyCheck,
  type PolicySubject,
  type ResolvedPolicy,
  shortWindowWarning,
  validateCost,
} from './limit.policy.js';
import type {
  BlockedKey,
  BlockedOptions,
  BlockTag,
  FoundAttempts,
  LimiterDecision,
  PeekedDecision,
} from './limit.types.js';
import {
  invalidCall,
  isBlockTag,
  needsRequest,
  policiesInCall,
  unknownPolicy,
  validateBlock,
  validateBlocked,
  validateBlockTag,
} from './limit.validate.js';
import { NamedKeys } from './named-keys.js';
import type { KeyParts, LimitCallOptions, PolicyRef } from './policy.types.js';

const { checked, attributed } = leavingAs(LimitError.from);

/**
 * Counts attempts and decides whether a call has to wait. Each decision is one atomic step, except for several policies
 * on a Cluster. The service counts over sliding windows, unless the policy's `algorithm` says otherwise.
 *
 * @example
 * const decision = await limiter.check(`export:${user.id}`, 'export');
 * if (!decision.allowed) return comeBackIn(decision.retryAfterMs);
 */
@Injectable()
export class AbuseLimiterService implements OnModuleDestroy {
  /** @internal */
  readonly decisions: Decisions;
  readonly #backend: LimitBackend;
  readonly #options: AbuseLimiterOptions;
  readonly #keys: NamedKeys;
  readonly #inline = new WeakMap<object, readonly ResolvedPolicy[]>();
  readonly #logger = new Logger('SyncGuard');
  readonly #warnOnce = warningOnce((message) => this.#logger.warn(message));
  readonly #everyCall = new WeakMap<ResolvedPolicy, ResolvedPolicy>();

  /** @internal The module creates the service. `fallback` counts in this process, for `onError: 'memory'`. */
  constructor(backend: LimitBackend, fallback: LimitBackend, options: AbuseLimiterOptions) {
    this.#backend = backend;
    this.#options = options;
    this.#keys = new NamedKeys(options.limit);
    this.decisions = new Decisions(backend, fallback, options);
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
    const { decision } = await this.#decide(key, policy, options);
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
    const { decision, by } = await this.#decide(key, policy, options);
    if (!decision.allowed) throw refusalBy(by.policy, decision);
  }

  /**
   * Returns a decision about the key, without counting or writing anything. The key is denied while it is blocked, or while a
   * limit without `blockMs` is used up. If the limit has a `blockMs` and is used up, `peek` still allows the key, because
   * only the next call sets the block. While Redis does not answer, the policy's `onError` decides, as in `check`.
   *
   * @param key - the key, or the values by which a route counts ({@link KeyParts})
   * @param options - `cost`: decides as about a call of this cost. Default: that of the policy, or 1 if it is a function.
   * @returns the decision, with `known`: whether anything is remembered about the key
   */
  async peek(
    key: string | KeyParts,
    policy: PolicyRef,
    options: LimitCallOptions = {},
  ): Promise<PeekedDecision> {
    const { cost, signal } = checked(() => callOptions(options, ['cost']));
    const checks = this.#subjects(key, policy).map((subject) => ({
      ...subject,
      cost: costUnder(subject.policy, cost),
    }));
    const { decisions, replies = [] } = await this.decisions.outage.ask(checks, (backend) =>
      Promise.all(checks.map((check) => backend.peek(check, this.decisions.callOptions(signal)))),
    );
    const shown = decisions.map((each, i) =>
      !each.allowed && checks[i]?.policy.shadow ? letIn(each) : each,
    );
    return {
      ...decisive(checks, shown).decision,
      known: replies.some((reply, i) => isOfKnown((checks[i] as PolicyCheck).policy, reply)),
    };
  }

  /**
   * Returns the key that a route makes of a request with these values, for a name with one limit.
   *
   * @throws LimitError `InvalidArgument` if the name has several limits, or if a part is missing or unknown
   * @example await limiter.block(limiter.keyOf('signup', { ip: '203.0.113.7' }), 'signup', days(1));
   */
  keyOf(policy: PolicyRef, parts: KeyParts): string {
    const policies = this.policies(policy);
    if (policies.length > 1)
      throw invalidCall(
        `The policy ${policies[0]?.name} has ${policies.length} limits, which count by different keys.`,
        'Pass the parts in place of a key to `peek`, `reset`, `unblock` or `forgive`: they then reach all of its limits.',
      );
    return this.#keys.keysOf(policies, parts)[0] as string;
  }

  /**
   * Forgets everything about the key: its attempts, its block and its penalties. While Redis does not answer, `reset`,
   * `block`, `unblock` and `forgive` throw. They still change what this process counts for `onError: 'memory'`.
   *
   * @param key - the key, or the values by which a route counts ({@link KeyParts}): then of each limit of the name
   * @returns what was there before: of several limits whether any was blocked, and the sum of their attempts
   * @throws LimitError `InvalidArgument` for a wrong call, `Aborted` for an aborted `signal`. `ServiceUnavailable`,
   * `NetworkTimeout` or `AuthFailed` if Redis did not confirm the change.
   * @example await limiter.reset({ ip: '203.0.113.7', 'body.email': 'ann@example.org' }, 'login');
   */
  async reset(key: string | KeyParts, policy: PolicyRef, options: SignalOption = {}): Promise<FoundAttempts> {
    const call = this.#callOf(options);
    return foundIn(await this.#change(key, policy, (backend, subject) => backend.reset(subject, call)));
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
    const { blockMs, text } = checked(() => validateBlock(ms, reason));
    const call = this.#callOf(options);
    await this.#change(key, policy, (backend, subject) => backend.block(subject, blockMs, text, call));
  }

  /**
   * Lists the blocks that are in force, page by page, of policies that are tried too. On Redis it walks over all keys of the server,
   * those of other programs too, at most 5,000 a second in each process. Blocks that a process has set for itself while Redis did
   * not answer are not among them.
   *
   * @throws LimitError as `reset` does
   * @example for (const { policy, tag } of (await limiter.blocked({ policy: 'login' })).items) console.log(policy, tag);
   */
  async blocked(options: BlockedOptions = {}): Promise<Page<BlockedKey>> {
    const page = checked(() => validateBlocked(options));
    return attributed(this.#backend.blocked(page));
  }

  /**
   * Ends a block. The window that had set the block starts again with no attempts. The penalties of the key stay. The key
   * may be parts, and what was there is returned, as in `reset`.
   */
  async unblock(
    key: string | KeyParts,
    policy: PolicyRef,
    options?: SignalOption & ByHand,
  ): Promise<FoundAttempts>;
  /**
   * Ends all blocks of a tag that a log line, an event or `blocked()` shows: of each policy, or of one. On Redis it walks over all
   * keys of the server for that, as `blocked()` does, unless the block has no `policy`.
   *
   * @returns how many blocks were ended
   * @example await limiter.unblock({ tag: event.keyHash, policy: 'login' }, { by: 'ann' });
   */
  async unblock(block: BlockTag, options?: SignalOption & ByHand): Promise<{ unblocked: number }>;
  async unblock(
    which: string | KeyParts | BlockTag,
    second?: PolicyRef | (SignalOption & ByHand),
    third: SignalOption & ByHand = {},
  ): Promise<FoundAttempts | { unblocked: number }> {
    if (isBlockTag(which)) return this.#unblockTagged(which, (second ?? {}) as SignalOption & ByHand);
    const policy = second as PolicyRef;
    const call = this.#callOf(third, ['by']);
    const found = await this.#change(which, policy, (backend, subject) => backend.unblock(subject, call));
    const [{ identity }] = this.#subjects(which, policy) as [PolicySubject];
    this.#tell({ operation: 'unblock', key: keyOf(identity), policy: nameOf(identity), by: third.by });
    return foundIn(found);
  }

  async #unblockTagged(which: BlockTag, options: SignalOption & ByHand): Promise<{ unblocked: number }> {
    const block = checked(() => validateBlockTag(which));
    const call = this.#callOf(options, ['by']);
    const ended = await this.decisions.change(isTagged(block), (backend) => [
      backend.unblockTagged(block, call),
    ]);
    this.#tell({ operation: 'unblock', keyHash: block.tag, policy: block.policy, by: options.by });
    return { unblocked: sumOf(ended) };
  }

  /**
   * Takes back the newest `n` attempts, as if they had not been made. A block stays. The key may be parts, and what was
   * there is returned, as in `reset`.
   */
  async forgive(
    key: string | KeyParts,
    policy: PolicyRef,
    n = 1,
    options: SignalOption = {},
  ): Promise<FoundAttempts> {
    const count = checked(() => integer('n', n, 1));
    const id = createCallId();
    const call = this.#callOf(options);
    return foundIn(
      await this.#change(key, policy, (backend, subject) => backend.forgive(subject, count, id, call)),
    );
  }

  /**
   * Lifts the lockout of an account wherever it was locked out: ends the blocks that limits of this name have set for it, from
   * any address, and forgets what they count there. For the moment after a password reset: who resets it knows the account,
   * but not the addresses. Blocks set by hand stay. Other processes may deny for up to `denyCacheMs` more.
   *
   * @param parts - the values that name the account, as in `keyBy`, without the address
   * @returns how many blocks were lifted
   * @throws LimitError as `reset` does
   * @example await limiter.lift('login', { 'body.email': 'ann@example.org' });
   */
  async lift(
    policy: PolicyRef,
    parts: KeyParts,
    options: SignalOption & ByHand = {},
  ): Promise<{ lifted: number }> {
    const accounts = this.#keys.accountsOf(this.policies(policy), parts);
    const call = this.#callOf(options, ['by']);
    const isMeant = (identity: string): boolean => accounts.includes(accountOf(identity) ?? '');
    const lifted = await this.decisions.change(isMeant, (backend) =>
      accounts.map((account) => backend.lift(account, call)),
    );
    const [first] = accounts as [string];
    this.#tell({ operation: 'lift', key: keyOf(first), policy: nameOf(first), by: options.by });
    return { lifted: sumOf(lifted) };
  }

  /** Waits for what is settled in the background. */
  async onModuleDestroy(): Promise<void> {
    await this.decisions.flush();
  }

  /** @internal Returns the policies that a name or an object stands for. */
  policies(policy: PolicyRef): readonly ResolvedPolicy[] {
    const { limit, limits } = this.#options;
    const known = typeof policy === 'string' ? limits.get(policy) : this.#inline.get(policy);
    if (known) return known;
    if (typeof policy === 'string') throw unknownPolicy(policy, limits.keys());
    const resolved = checked(() => policiesInCall(policy, limit));
    const warning = shortWindowWarning(resolved);
    if (warning) this.#warnOnce(warning);
    this.#inline.set(policy, resolved);
    return resolved;
  }

  /** Checks the options of a change. Returns what the backend is told. */
  #callOf(options: SignalOption & ByHand, known: readonly 'by'[] = []): CallOptions {
    const { signal, ...who } = checked(() => callOptions(options, known));
    checked(() => byOf(who));
    return this.decisions.callOptions(signal);
  }

  #change<Reply>(
    key: string | KeyParts,
    policy: PolicyRef,
    operate: (backend: LimitBackend, subject: PolicySubject) => Promise<Reply>,
  ): Promise<Reply[]> {
    const subjects = this.#subjects(key, policy);
    const identities = subjects.map(({ identity }) => identity);
    return this.decisions.change(identities, (backend) =>
      subjects.map((subject) => operate(backend, subject)),
    );
  }

  #tell(change: Omit<ForcedChange, 'feature'>): void {
    tellForced({ feature: 'limit', ...change }, (line) => this.#logger.warn(line), this.#options.emit);
  }

  #decide(key: string, ref: PolicyRef, options: LimitCallOptions): Promise<CallDecision> {
    const { cost, signal } = checked(() => callOptions(options, ['cost']));
    const checks = this.policies(ref).map((policy) => {
      const isFunction = typeof (cost ?? policy.cost) === 'function';
      if (policy.dynamicLimit || policy.dynamicWindow || isFunction) throw needsRequest(policy);
      const identity = identityIn(
        policy.name,
        checked(() => userKey(key)),
      );
      const counting = policy.count === 'attempt' ? policy : this.#countingEveryCall(policy);
      return { policy: counting, identity, cost: checked(() => costUnder(policy, cost)) };
    });
    return this.decisions.decide(checks, undefined, signal);
  }

  /** The copy is kept, since a backend may keep a script for each policy. */
  #countingEveryCall(policy: ResolvedPolicy): ResolvedPolicy {
    let every = this.#everyCall.get(policy);
    if (!every) this.#everyCall.set(policy, (every = { ...policy, count: 'attempt' }));
    return every;
  }

  #subjects(key: string | KeyParts, ref: PolicyRef): PolicySubject[] {
    const policies = this.policies(ref);
    const isParts = typeof key === 'object' && key !== null;
    const keys = isParts ? this.#keys.keysOf(policies, key) : [checked(() => userKey(key))];
    return policies.map((policy, i) => ({
      policy,
      identity: identityIn(policy.name, keys[isParts ? i : 0] as string),
    }));
  }
}

/** Returns the cost of a call that the guard does not make. */
function costUnder(policy: ResolvedPolicy, given: number | undefined): number {
  if (given !== undefined) validateCost(policy, given);
  if (isUncounted(policy)) return 0;
  return given ?? (typeof policy.cost === 'number' ? policy.cost : 1);
}
