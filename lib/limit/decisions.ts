import { randomIds } from '../core/random-id.js';
import { Logger } from '@nestjs/common';
import { BackgroundRetries } from '../core/background-retries.js';
import { everyMinute } from '../core/every-minute.js';
import { shownHash } from '../core/keys.js';
import type { Emit } from '../telemetry/telemetry.types.js';
import { DenyCache } from './deny-cache.js';
import type { BackendDecision, CallOptions, LimitBackend } from './limit.backend.js';
import { keyOf } from './limit.identity.js';
import type { ResolvedLimits } from './limit.options.js';
import type { LimitError } from './limit.errors.js';
import { type Decisive, decisive, LimitOutage, type Operate, toDecision, UNCOUNTED } from './limit.outage.js';
import { nameWithoutShadow, type PolicyCheck } from './limit.policy.js';
import { IN_FLIGHT_MS } from './limit.times.js';
import type { AllowedDecision, DeniedDecision, LimiterDecision } from './limit.types.js';
import type { Meant } from './remembered.js';

/** Where a call was counted, and its id there. */
export interface CountedCall {
  readonly backend: LimitBackend;
  readonly callId: string;
}

/** The decision about one call, with what settles the call when it has ended. */
export interface CallDecision extends Decisive {
  readonly checks: readonly PolicyCheck[];
  /** In the order of `checks`. If the deny cache has answered, undefined where it knows nothing. */
  readonly decisions: readonly (LimiterDecision | undefined)[];
  /** Undefined if the call was not counted. */
  readonly counted: CountedCall | undefined;
}

export interface AbuseLimiterOptions extends ResolvedLimits {
  /** Emits an event for each call that the deny cache answers. The backend emits the events of all other calls. */
  readonly emit?: Emit | undefined;
}

/** Decides about calls, and settles those that were in flight. */
export class Decisions {
  readonly outage: LimitOutage;
  readonly denyCache: DenyCache;
  readonly #logger = new Logger('SyncGuard');
  readonly #retries = new BackgroundRetries();
  readonly #sayShadow = everyMinute((line) => this.#logger.log(line));

  constructor(
    backend: LimitBackend,
    fallback: LimitBackend,
    private readonly options: AbuseLimiterOptions,
  ) {
    this.outage = new LimitOutage(backend, fallback);
    // The memory backend answers without a round trip, so it needs no deny cache.
    this.denyCache = new DenyCache(backend.backend === 'memory' ? 0 : options.limit.denyCacheMs);
  }

  /**
   * Counts one call against several limits. While Redis does not answer, the strictest `onError` decides.
   *
   * @param route - follows the id of the call: see `createCallId`
   */
  decide(checks: readonly PolicyCheck[], route?: string, signal?: AbortSignal): Promise<CallDecision> {
    const known = this.#fromDenyCache(checks);
    if (known) return Promise.resolve(this.#logged(known));
    const callId = createCallId(route);
    const call = this.callOptions(signal);
    return this.#ask(checks, callId, (backend, some) => backend.check(some, callId, call));
  }

  /**
   * Asks the limits in force together, and each policy that is tried for itself: one that denies must not keep others from
   * counting.
   */
  async #askApart(
    checks: readonly PolicyCheck[],
    callId: string,
    operate: Operate,
    at: LimitBackend | undefined,
  ): Promise<CallDecision> {
    const live = checks.filter(isLive);
    const asking = live.length > 0 ? this.#ask(live, callId, operate, at) : undefined;
    // A policy does not try what is denied already. That a call has ended is told to all.
    if (!at && asking && !(await asking).decision.allowed) return asking;
    const trying = checks.filter(isShadow).map((check) => this.#try(check, callId, operate, at));
    const all = await Promise.all(asking ? [asking, ...trying] : trying);
    return {
      ...(all[0] as CallDecision),
      checks: all.flatMap((each) => each.checks),
      decisions: all.flatMap(({ decisions }) => decisions),
      counted: all.find(({ counted }) => counted)?.counted,
    };
  }

  /** Asks a policy that is tried, whose answer and whose faults nobody is refused for. */
  async #try(
    check: PolicyCheck,
    callId: string,
    operate: Operate,
    at: LimitBackend | undefined,
  ): Promise<CallDecision> {
    const asked = await this.outage.ask([check], operate, at).catch((fault: unknown) => {
      const { code, message } = fault as LimitError;
      if (code === 'Aborted') throw fault;
      this.#sayShadow(
        `RATE_LIMIT_SHADOW: A policy with \`shadow: true\` could not be asked. ${code}: ${message}`,
      );
      return undefined;
    });
    let decision = asked?.decision ?? toDecision(check.policy, UNCOUNTED);
    if (!decision.allowed) {
      this.#sayShadow(
        `RATE_LIMIT_SHADOW: The policy ${nameWithoutShadow(check.policy.name)} would have denied a call for ${decision.retryAfterSecs} s (${decision.scope}).`,
      );
      decision = letIn(decision);
    }
    if (asked?.replies) this.#note([check], asked.replies, asked.backend);
    const counted = asked?.replies && { backend: asked.backend, callId };
    return { decision, by: check, checks: [check], decisions: [decision], counted };
  }

  /**
   * Counts a call in flight that has ended with the outcome that the policies of these limits count. If Redis does
   * not answer, `onError` decides, and the call is counted in the background.
   *
   * @param blocks - whether the call may set a block
   */
  async confirm(
    checks: readonly PolicyCheck[],
    counted: CountedCall,
    blocks: boolean,
  ): Promise<CallDecision> {
    const { backend: at, callId } = counted;
    const confirm = (backend: LimitBackend, some: readonly PolicyCheck[]): Promise<BackendDecision[]> =>
      Promise.all(some.map((check) => backend.confirm(check, callId, { ...this.callOptions(), blocks })));
    const again = (fault?: unknown): void =>
      this.#retries.start(() => confirm(at, checks.filter(isLive)).then(() => true), IN_FLIGHT_MS, fault);
    try {
      const decided = await this.#ask(checks, callId, confirm, at);
      if (decided.decision.degraded && at.backend === 'redis') again();
      return decided;
    } catch (fault) {
      again(fault);
      throw fault;
    }
  }

  /**
   * Takes a call in flight back. After a success the policy may forget the failures before it. If Redis does not
   * answer, this goes on in the background.
   */
  async withdraw(check: PolicyCheck, { backend, callId }: CountedCall, hasSucceeded: boolean): Promise<void> {
    const forget = hasSucceeded && check.policy.resetOnSuccess;
    const withdraw = (): Promise<void> => backend.withdraw(check, callId, forget, this.callOptions());
    await withdraw().catch((fault: unknown) =>
      this.#retries.start(() => withdraw().then(() => true), IN_FLIGHT_MS, fault),
    );
  }

  /** Keeps a call in flight. If this fails, the next renewal may succeed. */
  renew(checks: readonly PolicyCheck[], { backend, callId }: CountedCall): void {
    for (const check of checks) backend.renew(check, callId, this.callOptions()).catch(() => {});
  }

  /** Waits for what is settled in the background. */
  flush(): Promise<void> {
    return this.#retries.flush();
  }

  #fromDenyCache(checks: readonly PolicyCheck[]): CallDecision | undefined {
    if (this.denyCache.size === 0) return undefined;
    const decisions = checks.map(({ policy, identity }) => {
      const known = this.denyCache.find(identity);
      return known && toDecision(policy, known);
    });
    if (!decisions.some(Boolean)) return undefined;
    const { decision, by } = decisive(checks, decisions);
    // The event that the backend would have emitted for this denied call.
    this.options.emit?.({
      ...{ feature: 'limit', type: 'check', result: 'fail', fromDenyCache: true, durationMs: 0 },
      ...{ policy: by.policy.name, key: keyOf(by.identity), reason: (decision as DeniedDecision).scope },
    });
    return { decision, by, checks, decisions, counted: undefined };
  }

  /** @param at - the backend that the call is counted in, if it is counted already */
  #ask(
    checks: readonly PolicyCheck[],
    callId: string,
    operate: Operate,
    at?: LimitBackend,
  ): Promise<CallDecision> {
    if (checks.some(isShadow)) return this.#askApart(checks, callId, operate, at);
    const askedAtMs = performance.now();
    return this.outage.ask(checks, operate, at).then(({ decision, by, decisions, replies, backend }) => {
      if (!decision.allowed && replies) this.#note(checks, replies, backend);
      if (!decision.allowed && !decision.degraded)
        for (const [i, { identity }] of checks.entries())
          this.denyCache.add(identity, replies?.[i], askedAtMs);
      const decided = { decision, by, checks, decisions, counted: replies && { backend, callId } };
      return at ? decided : this.#logged(decided);
    });
  }

  /** Notes the blocks that a call has set, for operators and for `lift`. If Redis does not answer, this goes on in the background. */
  #note(checks: readonly PolicyCheck[], replies: readonly BackendDecision[], backend: LimitBackend): void {
    for (const [i, { identity }] of checks.entries()) {
      const reply = replies[i];
      if (reply?.status !== 'denied' || !reply.isNew || reply.scope === 'manual') continue;
      const note = (): Promise<void> => backend.note(identity, reply.retryAfterMs, this.callOptions());
      note().catch((fault: unknown) =>
        this.#retries.start(() => note().then(() => true), reply.retryAfterMs, fault),
      );
    }
  }

  /** The next decision may come from the backend, the fallback or the deny cache. So all three change. */
  async change<Reply>(meant: Meant, operate: (backend: LimitBackend) => Promise<Reply>[]): Promise<Reply[]> {
    try {
      return await this.outage.onBoth(meant, operate);
    } finally {
      this.denyCache.forget(meant);
    }
  }

  /** What a call of a backend is told. */
  callOptions(signal?: AbortSignal): CallOptions {
    return { timeoutMs: this.options.limit.commandTimeoutMs, sparesLoop: true, signal };
  }

  /** Logs denied calls only (ADR 0010). Nest shows debug lines by default, and a line for each call would be noise. */
  #logged(decided: CallDecision): CallDecision {
    const { decision, by } = decided;
    const { policy, identity } = by;
    if (decision.allowed || !Logger.isLevelEnabled('debug')) return decided;
    const { scope, retryAfterSecs, shortCount, longCount, degraded } = decision;
    const counts =
      policy.rules.tiers.length > 1
        ? `${shortCount} in the short window, ${longCount} in the long`
        : `${shortCount} in the window`;
    this.#logger.debug(
      `limit ${policy.name} ${shownHash(keyOf(identity))}: denied (${scope}) for ${retryAfterSecs} s, ${counts}${degraded ? ', without Redis' : ''}`,
    );
    return decided;
  }
}

/** Returns the decision that lets a call in which a policy would have denied that is tried. */
export const letIn = (denied: DeniedDecision): AllowedDecision => {
  const { shortCount, longCount, retryAfterMs: resetMs } = denied;
  return { allowed: true, shortCount, longCount, remaining: 0, resetMs, shadow: denied };
};

const isShadow = ({ policy }: PolicyCheck): boolean => policy.shadow;
const isLive = (check: PolicyCheck): boolean => !isShadow(check);

const randomPart = randomIds(6);

/**
 * Returns a random id of 8 base64url characters, which names one call among those of its window.
 *
 * @param route - follows them, so that a success can forget what its own route has counted
 */
export const createCallId = (route = ''): string => randomPart() + route;
