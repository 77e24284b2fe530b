import { type ExecutionContext, Injectable, Logger, type OnModuleInit } from '@nestjs/common';
import type { ModuleRef, ModulesContainer } from '@nestjs/core';
import { retryFacts } from '../../transport/refusal.js';
import { SyncGuardError } from '../../core/errors.js';
import type { CallDecision, LimitDecisions } from '../limit.decisions.js';
import { type ResponseState, CallInFlight, type Listeners } from '../call-in-flight.js';
import { BootChecks } from './boot-checks.js';
import { describeKeyBy } from './key-parts.js';
import { KeyResolver } from './key-resolver.js';
import { MAX_CHECKS, isUncounted } from '../limit.backend.js';
import { LimitError, TooManyAttemptsError } from '../limit.errors.js';
import { costOf, withLimit, withWindow } from '../limit.per-call.js';
import type { PolicyCheck, ResolvedPolicy } from '../limit.policy.js';
import type { FromContext } from '../policy.types.js';
import { identityOf } from '../limit.id.js';
import { GUARDS_MS } from '../limit.times.js';
import type { EndingResponse, LimitedCall, ResponseLike } from './limited-call.js';
import { exceptionFor } from '../../transport/context-exceptions.js';
import { type HeaderItem, rateLimitHeaders } from './rate-limit.headers.js';
import { PlanChecks } from './plan-checks.js';
import type { Stage } from './plan.js';
import { isByAddress, type RouteLimits, RoutePlans } from './route-plans.js';
import { bindRoutes } from './route-binding.js';
import { endOf, locationOf } from './call-end.js';
import { type CallLimiter, callObject, leaveVisit, limitedCall, type Visit, visitOn } from './visit.js';

/** A property of a response: the header items of all calls that it answers, by the name of their policy. */
const HEADER_ITEMS = Symbol.for('syncguard:header-items');

interface WithHeaderItems extends ResponseLike {
  [HEADER_ITEMS]?: Map<string, HeaderItem>;
}

/** Asks the limits of a call at each stage, and refuses the call if one of them denies it. Our guards call this. */
@Injectable()
export class RouteLimiter implements OnModuleInit, CallLimiter {
  readonly #logger = new Logger('SyncGuard');
  readonly #keys: KeyResolver;
  readonly #plans: RoutePlans;
  readonly #warned = new Set<string>();

  constructor(
    private readonly decisions: LimitDecisions,
    private readonly options: RouteLimits,
    private readonly modules: ModulesContainer,
    private readonly moduleRef: ModuleRef,
  ) {
    this.#keys = new KeyResolver(moduleRef, options.limit, (message) => this.#logger.warn(message));
    this.#plans = new RoutePlans(options);
    // Here all modules are known, and Nest has not resolved a route yet.
    bindRoutes(modules, this.#plans);
  }

  onModuleInit(): void {
    const warn = (message: string): void => this.#logger.warn(message);
    new BootChecks(this.modules).run(this.options.limit.strictBoot, warn);
    new PlanChecks(this.options, this.#plans, this.#keys).run(this.modules, this.moduleRef, warn);
  }

  /**
   * Counts a call against the limits of one stage.
   *
   * @throws an exception of the kind that Nest expects in this context, over HTTP an HttpException with `Retry-After`:
   * 429 if the call is denied, 503 if Redis does not answer, 400 if the call has no key or costs more than the limit
   */
  enter(context: ExecutionContext, stage: Stage): Promise<boolean> | true {
    const visit = this.#visitOf(context);
    return visit
      ? this.#enter(context, visit, stage, visit.plan[stage])
      : this.#passUnknown(context.getType<string>());
  }

  /**
   * Counts a call against the policy `default`, and against the limits of its route that are asked before guards. So a
   * global guard behind this one cannot refuse calls uncounted.
   */
  enterApp(context: ExecutionContext): Promise<boolean> | true {
    const visit = this.#visitOf(context);
    if (!visit) return this.#passUnknown(context.getType<string>());
    const { plan } = visit;
    const asked = this.#enter(context, visit, 'default', plan.default);
    return plan.before.length === 0
      ? asked
      : asked.then(() => this.#enter(context, visit, 'before', plan.before));
  }

  guardsPassed(context: ExecutionContext, visit: Visit): Promise<boolean> | true {
    if (visit.passed.has('after')) return true;
    // The policies in `watching` count only calls that a guard refuses. No guard has refused this call, so they take it back.
    for (const call of visit.watching.splice(0)) void call.takeBack().catch(() => {});
    const { after, defaultAfter } = visit.plan;
    const policies = visit.passed.has('default') ? [...defaultAfter, ...after] : after;
    return this.#enter(context, visit, 'after', policies);
  }

  async handlerReturned(visit: Visit, calls: readonly CallInFlight[], value: unknown): Promise<void> {
    const end = endOf(visit, value);
    // If `end` is undefined, the handler writes its own response, and the calls are settled when that was sent.
    if (end) await Promise.all(calls.map((call) => call.handlerReturned(end)));
  }

  async handlerThrew({ handled }: Visit, calls: readonly CallInFlight[], error: unknown): Promise<void> {
    const end = { location: undefined, value: undefined, handled };
    await Promise.all(calls.map((call) => call.handlerThrew(error, end)));
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
      const isExempt = typeof visit.exempt === 'boolean' ? visit.exempt : await visit.exempt;
      if (!isExempt) await this.#ask(policies, context, visit, stage);
      return true;
    } catch (error) {
      const isOurs = error instanceof SyncGuardError;
      const calls = [...visit.inFlight, ...visit.watching];
      if (isOurs) {
        // The limiter itself refuses the call. Limits that have let it in must not count that as a failure.
        visit.inFlight.length = visit.watching.length = 0;
        for (const call of calls) void call.takeBack().catch(() => {});
      } else void this.handlerThrew(visit, calls, error).catch(() => {});
      return this.#refuseFault(context, visit, error);
    }
  }

  async #ask(
    policies: readonly ResolvedPolicy[],
    context: ExecutionContext,
    visit: Visit,
    stage: Stage,
  ): Promise<void> {
    // The limits of the route and those of `default` together may be more than one script takes.
    if (policies.length > MAX_CHECKS) {
      await this.#ask(policies.slice(0, MAX_CHECKS), context, visit, stage);
      return this.#ask(policies.slice(MAX_CHECKS), context, visit, stage);
    }
    const atOnce = this.#checkAtOnce(policies, context, visit.call);
    const checks = atOnce ? [atOnce] : await this.#checksOf(policies, context, visit, stage);
    if (checks.length === 0) return;
    const decided = await this.decisions.decide(checks);
    this.#setLimitHeaders(visit, decided);
    if (!decided.decision.allowed) throw new TooManyAttemptsError(decided.decision, decided.policy.code);
    this.#trackEnds(context, visit, decided);
  }

  /** Keeps the call as in flight for the policies that count it by how it ends. */
  #trackEnds(context: ExecutionContext, visit: Visit, decided: CallDecision): void {
    const pending = decided.checks
      .filter((check) => check.policy.count !== 'attempt' && !isUncounted(check))
      .map(({ policy }) => policy);
    if (pending.length === 0) return;
    const { watching } = visit.plan;
    this.#trackEnd(
      context,
      visit,
      decided,
      visit.inFlight,
      pending.filter((policy) => !watching.has(policy)),
    );
    this.#trackEnd(
      context,
      visit,
      decided,
      visit.watching,
      pending.filter((policy) => watching.has(policy)),
    );
  }

  #trackEnd(
    context: ExecutionContext,
    visit: Visit,
    decided: CallDecision,
    list: CallInFlight[],
    policies: readonly ResolvedPolicy[],
  ): void {
    if (policies.length === 0) return;
    const listeners = this.#listeners(context, visit, decided);
    // One response of GraphQL answers several calls, and does not show how each of them ended.
    const { response } = visit.call;
    const call =
      visit.isHttp && response
        ? callOfResponse(policies, listeners, visit, response)
        : new CallInFlight(policies, listeners);
    if (!visit.isHttp) call.expectHandler(GUARDS_MS);
    list.push(call);
  }

  #listeners(context: ExecutionContext, visit: Visit, decided: CallDecision): Listeners {
    return {
      settle: async (outcomes) => {
        try {
          const settled = await this.decisions.settle(decided, outcomes);
          if (settled && !settled.decision.allowed)
            throw new TooManyAttemptsError(settled.decision, settled.policy.code);
        } catch (error) {
          await this.#refuseFault(context, visit, error);
        }
      },
      predicateFailed: ({ name }, fault) =>
        this.#logger.error(
          `RATE_LIMIT_IS_FAILURE_THREW: The function \`isFailure\` of the policy ${name} failed, so the call counts. Correct the function. ${String(fault)}`,
          fault instanceof Error ? fault.stack : undefined,
        ),
      redirected: ({ name }) =>
        this.#warnOnce(
          `RATE_LIMIT_NO_VERDICT: ${visit.call.route} answered with a redirect. The policy ${name} counts failures, but cannot know whether a redirect is one, so it does not count it. Add an \`isFailure\` that looks at \`location\` to the policy.`,
        ),
    };
  }

  /** Most calls have one limit, with numbers in its policy and a key that the request has. They wait for nothing here. */
  #checkAtOnce(
    policies: readonly ResolvedPolicy[],
    context: ExecutionContext,
    call: LimitedCall,
  ): PolicyCheck | undefined {
    const [policy] = policies;
    if (!policy || policies.length > 1 || policy.count !== 'attempt' || isDynamic(policy)) return undefined;
    const key = this.#keys.keyAtOnce(policy.keyBy, context, call);
    return key === undefined ? undefined : checkOf(policy, key);
  }

  async #checksOf(
    policies: readonly ResolvedPolicy[],
    context: ExecutionContext,
    { call, plan }: Visit,
    stage: Stage,
  ): Promise<PolicyCheck[]> {
    const counted = policies.filter(
      (policy) =>
        policy.count === 'attempt' || !isOfDefault(plan, policy, stage) || this.#knowsHowCallsEnd(context),
    );
    const checks = counted.map(async (policy) => {
      const key = await this.#keys.keyFor(policy.keyBy, context, call);
      if (key === undefined)
        return plan.watching.has(policy) ? undefined : this.#passWithoutKey(policy, context, stage);
      return isDynamic(policy) ? this.#dynamicCheckOf(policy, key, context) : checkOf(policy, key);
    });
    return (await Promise.all(checks)).filter((check) => check !== undefined);
  }

  async #dynamicCheckOf(
    policy: ResolvedPolicy,
    key: string,
    context: ExecutionContext,
  ): Promise<PolicyCheck> {
    const from = <T>(value: T | FromContext<T>): T | Promise<T> =>
      typeof value === 'function' ? this.#keys.resolver(value as FromContext<T>)(context) : value;
    let current = policy;
    if (policy.dynamicWindow) current = withWindow(current, await from<unknown>(policy.dynamicWindow));
    if (policy.dynamicLimit)
      current = withLimit(current, await from<unknown>(policy.dynamicLimit), (message) => {
        this.#warnOnce(message);
      });
    const cost = costOf(current, await from<unknown>(policy.cost));
    // The window is part of the name, so that calls of a day are not counted in an hour.
    const name = policy.dynamicWindow ? `${policy.name};w=${current.rules.shortWindowMs}` : policy.name;
    return { policy: current, identity: identityOf({ name }, key), cost };
  }

  #visitOf(context: ExecutionContext): Visit | undefined {
    const place = callObject(context);
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
      // Another handler may have passed its request on with `next()`. Then `default` was asked already, for that handler.
      passed: new Set<Stage>(known?.passed.has('default') ? ['default'] : undefined),
      inFlight: [],
      watching: [],
      limiter: this,
      isHttp: context.getType() === 'http',
      handled: false,
    });
  }

  #isExempt(context: ExecutionContext, { url }: LimitedCall): boolean | Promise<boolean> {
    const { allow, skipIf } = this.options.limit;
    if (url !== undefined && allow.length > 0 && isAllowed(pathOf(url), allow)) return true;
    return skipIf ? this.#keys.resolver<boolean>(skipIf)(context) : false;
  }

  #setLimitHeaders({ call: { response }, plan }: Visit, { checks, decisions }: CallDecision): void {
    const { headers } = this.options.limit;
    if (headers.length === 0 || !response) return;
    const items = ((response as WithHeaderItems)[HEADER_ITEMS] ??= new Map<string, HeaderItem>());
    checks.forEach((check, i) => {
      const { policy } = check;
      const decision = decisions[i];
      // A call that is allowed uncounted leaves nothing to report.
      const shows = decision?.status === 'denied' || !isUncounted(check);
      if (decision && shows && !plan.watching.has(policy)) items.set(policy.name, { policy, decision });
    });
    for (const [name, value] of rateLimitHeaders(headers, [...items.values()]))
      setHeader(response, name, value);
  }

  /**
   * Throws the refusal of a denied call: a 429. An outage of Redis becomes a 503 and a wrong call a 400. Any other error is
   * thrown unchanged.
   */
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

  /**
   * Lets a call without a key pass, with a warning, if the policy is `default`: that one was written for HTTP. Any other
   * policy stands on the handler of the call, so it refuses the call.
   */
  #passWithoutKey({ name, keyBy }: ResolvedPolicy, context: ExecutionContext, stage: Stage): undefined {
    if (stage === 'default' && isByAddress({ keyBy }))
      return this.#warnOnce(
        `RATE_LIMIT_NO_KEY: Calls of type '${context.getType<string>()}' have no address, so the policy \`default\` does not limit them. Give it a \`keyBy\` that finds a key in them.`,
      );
    throw new LimitError({
      code: 'InvalidArgument',
      message: 'The call does not have the values that identify its caller.',
      hint: `The policy ${name} counts by ${describeKeyBy(keyBy)}. The call has no such value, and no address. Send the value, or change the \`keyBy\` of the policy.`,
    });
  }

  /** Returns false, with a warning, outside of HTTP: there the global guard has no interceptor that reports how calls end. */
  #knowsHowCallsEnd(context: ExecutionContext): boolean {
    const type = context.getType<string>();
    if (type === 'http') return true;
    this.#warnOnce(
      `RATE_LIMIT_NO_OUTCOME: The policy \`default\` counts calls by how they end. The global guard does not learn that for calls of type '${type}', so it does not limit them. Put @RateLimit on their handlers.`,
    );
    return false;
  }

  #passUnknown(type: string): true {
    this.#warnOnce(
      `RATE_LIMIT_UNKNOWN_CONTEXT: @RateLimit and RateLimitGuard cannot limit calls of type '${type}', so these pass. Call AbuseLimiterService in their handlers.`,
    );
    return true;
  }

  #warnOnce(message: string): undefined {
    if (this.#warned.has(message)) return;
    this.#warned.add(message);
    this.#logger.warn(message);
  }
}

function checkOf(policy: ResolvedPolicy, key: string): PolicyCheck {
  try {
    return { policy, identity: identityOf(policy, key), cost: policy.cost as number };
  } catch (error) {
    throw LimitError.from(error);
  }
}

/** Functions of the app decide about each call under such a policy. */
const isDynamic = ({ dynamicLimit, dynamicWindow, cost }: ResolvedPolicy): boolean =>
  dynamicLimit !== undefined || dynamicWindow !== undefined || typeof cost === 'function';

const STATUS_BY_CODE: Readonly<Record<string, number>> = { ServiceUnavailable: 503, InvalidArgument: 400 };

const isOfDefault = ({ defaultAfter }: Visit['plan'], policy: ResolvedPolicy, stage: Stage): boolean =>
  stage === 'default' || (stage === 'after' && defaultAfter.includes(policy));

/** Returns a call in flight that is settled by its HTTP response at the latest. */
function callOfResponse(
  policies: readonly ResolvedPolicy[],
  listeners: Listeners,
  visit: Visit,
  response: ResponseLike,
): CallInFlight {
  const raw = response.raw ?? (response as unknown as EndingResponse);
  if (response.raw && policies.some(({ isFailure }) => isFailure)) keepHeaders(raw);
  const now: ResponseState = {
    get statusCode() {
      return response.statusCode;
    },
    // A handler may have written headers to the raw response. The reply of Fastify does not have those.
    get location() {
      return locationOf(raw.headersSent ? raw : response);
    },
    get handled() {
      return visit.handled;
    },
    get headersSent() {
      return raw.headersSent;
    },
  };
  const call = new CallInFlight(policies, listeners, now);
  // If this call sets a block, it is too late for this response. The next call is denied.
  raw.once('finish', () => void call.responseSent().catch(() => {}));
  raw.once('close', () => void call.connectionClosed().catch(() => {}));
  return call;
}

/**
 * Makes Node.js keep the headers that are passed to `writeHead`. By itself it keeps them only if a header was set before, as
 * Express does. Otherwise `getHeader` would not find the `Location` of a redirect that is written to the raw response.
 */
function keepHeaders(raw: EndingResponse): void {
  if (raw.headersSent) return;
  raw.setHeader(UNUSED_HEADER, '');
  raw.removeHeader(UNUSED_HEADER);
}

const UNUSED_HEADER = 'x-syncguard';

/** The responses of Express and Fastify have `header`. A GraphQL context may hold a response of Node.js, or a sent one. */
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
