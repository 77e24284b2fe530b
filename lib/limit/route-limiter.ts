import { type ExecutionContext, Injectable, Logger, type OnModuleInit } from '@nestjs/common';
import type { ModuleRef, ModulesContainer } from '@nestjs/core';
import { retryFacts } from '../refusal.js';
import { SyncGuardError } from '../syncguard.errors.js';
import { type AbuseLimiterService, checkOf, type Ruling } from './abuse-limiter.service.js';
import { type AnswerNow, CallInFlight, type Listeners } from './call-in-flight.js';
import { BootChecks } from './boot-checks.js';
import { IdentityResolver } from './identity-resolver.js';
import { type LimitCheck, MAX_CHECKS } from './limit.backend.js';
import { LimitError, TooManyAttemptsError } from './limit.errors.js';
import { costOf, isUncounted, withLimit, withWindow } from './limit.per-call.js';
import type { ResolvedPolicy } from './limit.policy.js';
import type { FromContext } from './limit.types.js';
import { GUARDS_MS, identityOf } from './limit.values.js';
import {
  type EndingResponse,
  identityOfCall,
  limitedCall,
  type LimitedCall,
  type ResponseLike,
} from './limited-call.js';
import { exceptionFor } from './rate-limit.exception.js';
import { type Answer, rateLimitHeaders } from './rate-limit.headers.js';
import type { Stage } from './plan.js';
import { isByAddress, type RouteLimits, RoutePlans } from './route-plans.js';
import { bindRoutes } from './route-binding.js';
import { endOf, locationOf } from './route-answer.js';
import { leaveVisit, type Steward, type Visit, visitOn } from './visit.js';

/** On a response: what the limits of all calls that it answers have said. */
const ANSWERS = Symbol.for('syncguard:answers');

interface Answering extends ResponseLike {
  [ANSWERS]?: Map<string, Answer>;
}

/** Asks the limits of a call at each stage, and tells what they said: what stands behind guards and interceptor. */
@Injectable()
export class RouteLimiter implements OnModuleInit, Steward {
  readonly #logger = new Logger('SyncGuard');
  readonly #identities: IdentityResolver;
  readonly #plans: RoutePlans;
  readonly #warned = new Set<string>();

  constructor(
    private readonly limiter: AbuseLimiterService,
    private readonly options: RouteLimits,
    private readonly modules: ModulesContainer,
    private readonly moduleRef: ModuleRef,
  ) {
    this.#identities = new IdentityResolver(moduleRef, options.limit, (message) =>
      this.#logger.warn(message),
    );
    this.#plans = new RoutePlans(options, this.#identities);
    // Now that all modules are known, and before Nest resolves the first route.
    bindRoutes(modules, this.#plans);
  }

  onModuleInit(): void {
    const warn = (message: string): void => this.#logger.warn(message);
    new BootChecks(this.modules).run(this.options.limit.strictBoot, warn);
    this.#plans.verify(this.modules, this.moduleRef, warn);
  }

  /**
   * Counts a call against the limits of one stage.
   *
   * @throws what Nest expects of the context (over HTTP an HttpException with `Retry-After`): 429 when it has to
   * wait, 503 when nobody can decide, 400 when it does not say who makes it or costs more than there is
   */
  enter(context: ExecutionContext, stage: Stage): Promise<boolean> | true {
    const visit = this.#visitOf(context);
    return visit
      ? this.#enter(context, visit, stage, visit.plan[stage])
      : this.#passUnknown(context.getType<string>());
  }

  /** For the guard of a whole app: what it stands before counts as well, be it another global guard. */
  enterApp(context: ExecutionContext): Promise<boolean> | true {
    const visit = this.#visitOf(context);
    if (!visit) return this.#passUnknown(context.getType<string>());
    const { plan } = visit;
    const asked = this.#enter(context, visit, 'default', plan.default);
    return plan.early.length === 0
      ? asked
      : asked.then(() => this.#enter(context, visit, 'early', plan.early));
  }

  guardsPassed(context: ExecutionContext, visit: Visit): Promise<boolean> | true {
    if (visit.passed.has('late')) return true;
    // The guards have refused nothing: what watched them gives its room back.
    for (const call of visit.watching.splice(0)) void call.refused().catch(() => {});
    const { late, lateDefault } = visit.plan;
    const policies = visit.passed.has('default') ? [...lateDefault, ...late] : late;
    return this.#enter(context, visit, 'late', policies);
  }

  async answered(visit: Visit, calls: readonly CallInFlight[], value: unknown): Promise<void> {
    const end = endOf(visit, value);
    // The handler writes its own response: what that is shows when it was sent.
    if (end) await Promise.all(calls.map((call) => call.answered(end)));
  }

  async failedWith({ handled }: Visit, calls: readonly CallInFlight[], error: unknown): Promise<void> {
    const end = { location: undefined, value: undefined, handled };
    await Promise.all(calls.map((call) => call.failedWith(error, end)));
  }

  async #enter(
    context: ExecutionContext,
    visit: Visit,
    stage: Stage,
    policies: readonly ResolvedPolicy[],
  ): Promise<boolean> {
    if (visit.passed.has(stage)) return true;
    visit.passed.add(stage);
    if (policies.length === 0) return true;
    try {
      visit.exempt ??= this.#isExempt(context, visit.call);
      if (!(await visit.exempt)) await this.#ask(policies, context, visit, stage);
      return true;
    } catch (error) {
      // What has let the call in before must not take a denial for a failure.
      const isOurs = error instanceof SyncGuardError;
      const calls = [...visit.inFlight, ...visit.watching];
      if (isOurs) {
        visit.inFlight.length = visit.watching.length = 0;
        for (const call of calls) void call.refused().catch(() => {});
      } else void this.failedWith(visit, calls, error).catch(() => {});
      return this.#refuseFault(context, visit, error);
    }
  }

  async #ask(
    policies: readonly ResolvedPolicy[],
    context: ExecutionContext,
    visit: Visit,
    stage: Stage,
  ): Promise<void> {
    // Late limits of a route and of `default` may be more than one script takes.
    if (policies.length > MAX_CHECKS) {
      await this.#ask(policies.slice(0, MAX_CHECKS), context, visit, stage);
      return this.#ask(policies.slice(MAX_CHECKS), context, visit, stage);
    }
    const checks = await this.#checksOf(policies, context, visit, stage);
    if (checks.length === 0) return;
    const ruling = await this.limiter.rule(checks);
    this.#tellWhatIsLeft(visit, ruling);
    if (!ruling.decision.allowed) throw new TooManyAttemptsError(ruling.decision, ruling.policy.code);
    this.#watch(context, visit, ruling);
  }

  #watch(context: ExecutionContext, visit: Visit, ruling: Ruling): void {
    const pending = ruling.checks
      .filter((check) => check.policy.count !== 'attempt' && !isUncounted(check))
      .map(({ policy }) => policy);
    if (pending.length === 0) return;
    const { watching } = visit.plan;
    this.#expectEnd(
      context,
      visit,
      ruling,
      visit.inFlight,
      pending.filter((policy) => !watching.has(policy)),
    );
    this.#expectEnd(
      context,
      visit,
      ruling,
      visit.watching,
      pending.filter((policy) => watching.has(policy)),
    );
  }

  #expectEnd(
    context: ExecutionContext,
    visit: Visit,
    ruling: Ruling,
    list: CallInFlight[],
    policies: readonly ResolvedPolicy[],
  ): void {
    if (policies.length === 0) return;
    const listeners = this.#listeners(context, visit, ruling);
    // A response of GraphQL answers several calls, and tells of none of them how it ended.
    const { response } = visit.call;
    const call =
      visit.isHttp && response
        ? watchedByResponse(policies, listeners, visit, response)
        : new CallInFlight(policies, listeners);
    if (!visit.isHttp) call.expectHandler(GUARDS_MS);
    list.push(call);
  }

  #listeners(context: ExecutionContext, visit: Visit, ruling: Ruling): Listeners {
    return {
      settle: async (outcomes) => {
        try {
          const verdict = await this.limiter.settle(ruling, outcomes);
          if (verdict && !verdict.decision.allowed)
            throw new TooManyAttemptsError(verdict.decision, verdict.policy.code);
        } catch (error) {
          await this.#refuseFault(context, visit, error);
        }
      },
      verdictFailed: ({ name }, fault) =>
        this.#logger.error(
          `isFailure of ${name} failed, so the call counts: ${String(fault)}`,
          fault instanceof Error ? fault.stack : undefined,
        ),
      redirected: ({ name }) =>
        this.#warnOnce(
          `RATE_LIMIT_NO_VERDICT: ${visit.call.route} answers with a redirect, and ${name}, which counts failures, cannot tell whether that is one: it counts for nothing. Give the policy an \`isFailure\` that looks at \`location\`.`,
        ),
    };
  }

  async #checksOf(
    policies: readonly ResolvedPolicy[],
    context: ExecutionContext,
    { call, plan }: Visit,
    stage: Stage,
  ): Promise<LimitCheck[]> {
    const counted = policies.filter(
      (policy) =>
        policy.count === 'attempt' || !isOfDefault(plan, policy, stage) || this.#isToldOfEnd(context),
    );
    const checks = counted.map(async (policy) => {
      const key = await this.#identities.identityOf(policy.keyBy, context, call);
      if (key === undefined)
        return plan.watching.has(policy) ? undefined : this.#passWithoutKey(policy, context, stage);
      const isStatic = !policy.dynamicLimit && !policy.dynamicWindow && typeof policy.cost !== 'function';
      return isStatic ? checkOf(policy, key) : this.#dynamicCheckOf(policy, key, context);
    });
    return (await Promise.all(checks)).filter((check) => check !== undefined);
  }

  async #dynamicCheckOf(policy: ResolvedPolicy, key: string, context: ExecutionContext): Promise<LimitCheck> {
    const from = <T>(value: T | FromContext<T>): T | Promise<T> =>
      typeof value === 'function' ? this.#identities.resolver(value as FromContext<T>)(context) : value;
    let current = policy;
    if (policy.dynamicWindow) current = withWindow(current, await from<unknown>(policy.dynamicWindow));
    if (policy.dynamicLimit)
      current = withLimit(current, await from<unknown>(policy.dynamicLimit), (message) => {
        this.#warnOnce(message);
      });
    const cost = costOf(current, await from<unknown>(policy.cost));
    // A window of another length is another count: what was counted in a day must not stand in an hour.
    const name = policy.dynamicWindow ? `${policy.name};w=${current.rules.tempWindowMs}` : policy.name;
    return { policy: current, identity: identityOf({ name }, key), cost };
  }

  #visitOf(context: ExecutionContext): Visit | undefined {
    const place = identityOfCall(context);
    const handler = context.getHandler();
    const type = context.getClass();
    const known = visitOn(place);
    if (known?.handler === handler && known.type === type) return known;
    const call = limitedCall(context);
    if (!call) return undefined;
    return leaveVisit(place, {
      handler,
      type,
      call,
      plan: this.#plans.planOf(context, call.route),
      // A handler that hands its request on to another with `next()`: the global limit was asked, theirs were not.
      passed: new Set<Stage>(known?.passed.has('default') ? ['default'] : undefined),
      inFlight: [],
      watching: [],
      steward: this,
      isHttp: context.getType() === 'http',
      handled: false,
    });
  }

  async #isExempt(context: ExecutionContext, { url }: LimitedCall): Promise<boolean> {
    const { allow, skipIf } = this.options.limit;
    if (url !== undefined && allow.length > 0 && isAllowed(pathOf(url), allow)) return true;
    return skipIf ? this.#identities.resolver<boolean>(skipIf)(context) : false;
  }

  #tellWhatIsLeft({ call: { response }, plan }: Visit, { checks, outcomes }: Ruling): void {
    const { headers } = this.options.limit;
    if (headers.length === 0 || !response) return;
    const answers = ((response as Answering)[ANSWERS] ??= new Map<string, Answer>());
    checks.forEach((check, i) => {
      const { policy } = check;
      const outcome = outcomes[i];
      // What nothing was counted for has nothing left to tell.
      const tells = outcome?.status === 'denied' || !isUncounted(check);
      if (outcome && tells && !plan.watching.has(policy)) answers.set(policy.name, { policy, outcome });
    });
    for (const [name, value] of rateLimitHeaders(headers, [...answers.values()]))
      setHeader(response, name, value);
  }

  /** A denial, or a fault: 503 where nobody can decide, as it is not the client's doing. Others go on as they are. */
  async #refuseFault(context: ExecutionContext, visit: Visit, error: unknown): Promise<never> {
    if (error instanceof TooManyAttemptsError) throw await this.#refusal(context, visit, 429, error);
    const status = error instanceof LimitError ? STATUS_BY_CODE[error.code] : undefined;
    throw status ? await this.#refusal(context, visit, status, error as LimitError) : error;
  }

  #refusal(
    context: ExecutionContext,
    { call: { response } }: Visit,
    statusCode: number,
    error: TooManyAttemptsError | LimitError,
  ): Promise<Error> {
    const { code, summary: message } = error;
    const facts = retryFacts(error.context, this.options.maxRetryAfterMs);
    const { retryAfter } = facts;
    if (response && typeof retryAfter === 'number') setHeader(response, 'Retry-After', String(retryAfter));
    return exceptionFor(context.getType<string>(), { statusCode, code, message, context: facts }, error);
  }

  /** The global policy was not written for messages; what stands on their handlers was. */
  #passWithoutKey({ name, keyBy }: ResolvedPolicy, context: ExecutionContext, stage: Stage): undefined {
    if (stage === 'default' && isByAddress({ keyBy }))
      return this.#warnOnce(
        `RATE_LIMIT_NO_KEY: calls of type '${context.getType<string>()}' have no address, so the policy \`default\` lets them pass. Give it a \`keyBy\`.`,
      );
    throw new LimitError({
      code: 'InvalidArgument',
      message: 'The call does not say who makes it.',
      hint: `It has no address, and nothing of what the \`keyBy\` of ${name} looks for.`,
    });
  }

  /** The global guard brings no interceptor along: elsewhere than over HTTP every call would end as a failure. */
  #isToldOfEnd(context: ExecutionContext): boolean {
    const type = context.getType<string>();
    if (type === 'http') return true;
    this.#warnOnce(
      `RATE_LIMIT_NO_OUTCOME: nobody tells the global guard how calls of type '${type}' end, so the policy \`default\`, which counts failures, lets them pass. Put @RateLimit on their handlers.`,
    );
    return false;
  }

  #passUnknown(type: string): true {
    this.#warnOnce(
      `RATE_LIMIT_UNKNOWN_CONTEXT: @RateLimit and RateLimitGuard do not limit calls of type '${type}': they pass.`,
    );
    return true;
  }

  #warnOnce(message: string): undefined {
    if (this.#warned.has(message)) return;
    this.#warned.add(message);
    this.#logger.warn(message);
  }
}

const STATUS_BY_CODE: Readonly<Record<string, number>> = { ServiceUnavailable: 503, InvalidArgument: 400 };

const isOfDefault = ({ lateDefault }: Visit['plan'], policy: ResolvedPolicy, stage: Stage): boolean =>
  stage === 'default' || (stage === 'late' && lateDefault.includes(policy));

/** A call in flight that ends with its HTTP response, of which it is told. */
function watchedByResponse(
  policies: readonly ResolvedPolicy[],
  listeners: Listeners,
  visit: Visit,
  response: ResponseLike,
): CallInFlight {
  const raw = response.raw ?? (response as unknown as EndingResponse);
  const now: AnswerNow = {
    get statusCode() {
      return response.statusCode;
    },
    get location() {
      return locationOf(response);
    },
    get handled() {
      return visit.handled;
    },
    get headersSent() {
      return raw.headersSent;
    },
  };
  const call = new CallInFlight(policies, listeners, now);
  // Its denial or fault comes too late for this answer: the next request is told.
  raw.once('finish', () => void call.sent().catch(() => {}));
  raw.once('close', () => void call.left().catch(() => {}));
  return call;
}

/** Both adapters' responses have `header`; what a GraphQL context holds may be Node's own, or sent already. */
function setHeader(response: ResponseLike, name: string, value: string): void {
  if ((response.raw ?? (response as unknown as EndingResponse)).headersSent) return;
  if (response.header) response.header(name, value);
  else response.setHeader?.(name, value);
}

const pathOf = (url: string): string => {
  const path = url.replace(/[?#].*$/s, '');
  return path.length > 1 ? path.replace(/\/$/, '') : path;
};

const isAllowed = (path: string, allow: readonly string[]): boolean =>
  allow.some((pattern) =>
    pattern.endsWith('/*') ? path.startsWith(pattern.slice(0, -1)) : path === pattern,
  );
