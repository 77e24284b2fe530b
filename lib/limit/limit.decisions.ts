import { Logger } from '@nestjs/common';
import { hashKey } from '../core/keys.js';
import type { Emit } from '../telemetry/telemetry.types.js';
import type { Outcome } from './call-in-flight.js';
import { DenyCache } from './deny-cache.js';
import { createCallId, keyOf } from './limit.id.js';
import { type BackendDecision, type CallOptions, type LimitBackend, toDecision } from './limit.backend.js';
import type { ResolvedLimitOptions } from './limit.options.js';
import { LimitOutage, strictest } from './limit.outage.js';
import type { PolicyCheck, PolicySubject, ResolvedPolicy } from './limit.policy.js';
import type { LimiterDecision } from './limit.types.js';

/** A decision, and the policy that made it. */
export interface PolicyDecision {
  readonly decision: LimiterDecision;
  readonly policy: ResolvedPolicy;
}

/** The decision about one call, with everything that `settle` needs when the call has ended. */
export interface CallDecision extends PolicyDecision {
  readonly checks: readonly PolicyCheck[];
  /**
   * The decision about each check, in the order of `checks`. If the deny cache has answered, it is undefined for the checks
   * that the cache knows nothing about.
   */
  readonly decisions: readonly (BackendDecision | undefined)[];
  /** Where the call was counted, and its id there. Undefined if the call was not counted. */
  readonly counted: { readonly backend: LimitBackend; readonly callId: string } | undefined;
}

export interface LimitDecisionsOptions extends Pick<
  ResolvedLimitOptions,
  'commandTimeoutMs' | 'denyCacheMs'
> {
  /** Emits an event for each call that the deny cache answers. The backend emits the events of all other calls. */
  readonly emit?: Emit | undefined;
}

/** Stands around the limiter's backend: asks the deny cache first, then the backend, and makes one decision of the replies. */
export class LimitDecisions {
  readonly #logger = new Logger('SyncGuard');
  readonly #outage: LimitOutage;
  readonly #denyCache: DenyCache;

  /** @param fallback - counts in this process while `backend` does not answer and the policy's `onError` is `'memory'` */
  constructor(
    backend: LimitBackend,
    fallback: LimitBackend,
    private readonly options: LimitDecisionsOptions,
  ) {
    this.#outage = new LimitOutage(backend, fallback);
    // The memory backend answers without a round trip, so it needs no deny cache.
    this.#denyCache = new DenyCache(backend.backend === 'memory' ? 0 : options.denyCacheMs);
  }

  /**
   * Counts one call against several limits at once. While Redis does not answer, the strictest of their `onError` decides.
   */
  async decide(checks: readonly PolicyCheck[], signal?: AbortSignal): Promise<CallDecision> {
    const decided = this.#fromDenyCache(checks) ?? (await this.#askBackend(checks, signal));
    this.#log(decided);
    return decided;
  }

  /**
   * Settles a call in flight that has ended, for the limits whose policies are in `outcomes`. A limit that counts this
   * outcome counts the call. Any other takes it back. Returns the denied decision if this failure has set a block. A
   * success is never denied here, as it has happened already.
   */
  async settle(
    { counted: call, checks }: CallDecision,
    outcomes: ReadonlyMap<ResolvedPolicy, Outcome>,
  ): Promise<PolicyDecision | undefined> {
    if (!call) return undefined;
    const { backend, callId } = call;
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

  /** Returns the decision that a call would get now. Counts nothing. */
  async peek(subjects: readonly PolicySubject[], signal?: AbortSignal): Promise<LimiterDecision> {
    const { result, degraded } = await this.#outage.ask(strictest(subjects), (backend) =>
      Promise.all(subjects.map((subject) => backend.peek(subject, this.#call(signal)))),
    );
    return decisive(subjects, result ?? subjects.map(uncounted), degraded).decision;
  }

  /**
   * Runs an operation on the backend and on the fallback, and removes the key from the deny cache. The next decision may
   * come from any of the three. Throws a fault only after all of them are done.
   */
  async change(
    subjects: readonly PolicySubject[],
    operate: (backend: LimitBackend, subject: PolicySubject, call: CallOptions) => Promise<void>,
    signal?: AbortSignal,
  ): Promise<void> {
    const call = this.#call(signal);
    try {
      await this.#outage.onBoth((backend) =>
        settleAll(subjects.map((subject) => operate(backend, subject, call))),
      );
    } finally {
      for (const { identity } of subjects) this.#denyCache.delete(identity);
    }
  }

  async #confirm(
    checks: readonly PolicyCheck[],
    callId: string,
    backend: LimitBackend,
  ): Promise<PolicyDecision | undefined> {
    const askedAtMs = performance.now();
    const { result, degraded } = await this.#outage.ask(
      strictest(checks),
      (counting) => Promise.all(checks.map((check) => counting.confirm(check, callId, this.#call()))),
      backend,
    );
    if (!result) return undefined;
    if (!degraded) this.#remember(checks, result, askedAtMs);
    return decisive(checks, result, degraded);
  }

  #fromDenyCache(checks: readonly PolicyCheck[]): CallDecision | undefined {
    if (this.#denyCache.size === 0) return undefined;
    const decisions = checks.map(({ identity }) => this.#denyCache.find(identity));
    if (!decisions.some(Boolean)) return undefined;
    const { decision, policy } = decisive(checks, decisions);
    // The event that the backend would have emitted for this denied call.
    this.options.emit?.({
      ...{ feature: 'limit', type: 'check', result: 'fail', fromDenyCache: true, durationMs: 0 },
      ...{ policy: policy.name, key: keyOf(identityFor(policy, checks)) },
      ...(decision.allowed ? {} : { reason: decision.scope }),
    });
    return { decision, policy, checks, decisions, counted: undefined };
  }

  async #askBackend(checks: readonly PolicyCheck[], signal: AbortSignal | undefined): Promise<CallDecision> {
    const callId = createCallId();
    const askedAtMs = performance.now();
    const { result, backend, degraded } = await this.#outage.ask(strictest(checks), (counting) =>
      counting.check(checks, callId, this.#call(signal)),
    );
    const decisions: readonly BackendDecision[] = result ?? checks.map(uncounted);
    if (!degraded) this.#remember(checks, decisions, askedAtMs);
    const { decision, policy } = decisive(checks, decisions, degraded);
    return { decision, policy, checks, decisions, counted: result && { backend, callId } };
  }

  #remember(checks: readonly PolicyCheck[], decisions: readonly BackendDecision[], askedAtMs: number): void {
    decisions.forEach((decision, i) => {
      if (decision.status === 'denied')
        this.#denyCache.add((checks[i] as PolicyCheck).identity, decision, askedAtMs);
    });
  }

  #call(signal?: AbortSignal): CallOptions {
    return { timeoutMs: this.options.commandTimeoutMs, signal };
  }

  /** Logs denied calls only (ADR 0010). Nest shows debug lines by default, and a line for each call would be noise. */
  #log({ decision, policy, checks }: CallDecision): void {
    if (decision.allowed || !Logger.isLevelEnabled('debug')) return;
    const { scope, retryAfterSecs, shortCount, longCount, degraded } = decision;
    const counts =
      policy.rules.longThreshold > 0
        ? `${shortCount} in the short window, ${longCount} in the long`
        : `${shortCount} in the window`;
    this.#logger.debug(
      `limit ${policy.name} ${hashKey(keyOf(identityFor(policy, checks)))}: denied (${scope}) for ${retryAfterSecs} s, ${counts}${degraded ? ', without Redis' : ''}`,
    );
  }
}

const identityFor = (policy: ResolvedPolicy, checks: readonly PolicyCheck[]): string =>
  checks.find((check) => check.policy === policy)?.identity ?? '';

/** Returns the denied decision with the longest wait. If all limits allow the call, returns the one with least `remaining`. */
function decisive(
  subjects: readonly PolicySubject[],
  decisions: readonly (BackendDecision | undefined)[],
  degraded = false,
): PolicyDecision {
  let result: PolicyDecision | undefined;
  for (const [i, { policy }] of subjects.entries()) {
    const ofBackend = decisions[i];
    if (!ofBackend) continue;
    const decision = toDecision(policy, ofBackend, degraded);
    if (!result || severity(decision) > severity(result.decision)) result = { policy, decision };
  }
  return result as PolicyDecision;
}

const severity = (decision: LimiterDecision): number =>
  decision.allowed ? -decision.remaining : decision.retryAfterSecs;

/** The decision about a call that `onError: 'open'` lets in uncounted. */
const uncounted = (): BackendDecision => ({ status: 'allowed', shortCount: 0, longCount: 0, resetMs: 0 });

function ignore(): void {
  // A call that could not be settled stays in flight for 60 s at most. Then it no longer takes up room. Under a policy
  // that counts successes, it then counts as a success.
}

/** Waits for all, and throws the first fault. */
async function settleAll(operations: readonly Promise<void>[]): Promise<void> {
  for (const each of await Promise.allSettled(operations)) if (each.status === 'rejected') throw each.reason;
}
