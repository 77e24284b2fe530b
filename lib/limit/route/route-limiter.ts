import { type ExecutionContext, Injectable, Logger, type OnModuleInit } from '@nestjs/common';
import type { ModuleRef, ModulesContainer } from '@nestjs/core';
import { retryFacts } from '../../transport/refusal.js';
import { SyncGuardError } from '../../core/errors.js';
import { everyMinute } from '../../core/every-minute.js';
import { warningOnce } from '../../core/warn-once.js';
import { AbuseLimiterService } from '../abuse-limiter.service.js';
import type { CallDecision } from '../decisions.js';
import { AllowedPaths } from './allowed-paths.js';
import { AppChecks } from './app-checks.js';
import { BootChecks } from './boot-checks.js';
import { classesOf } from './decorated-methods.js';
import { HttpRoutes } from '../../transport/http-routes.js';
import { KeyResolver } from './key-resolver.js';
import { MAX_CHECKS } from '../limit.backend.js';
import { identityIn, keyOf } from '../limit.identity.js';
import { LimitError, TooManyAttemptsError } from '../limit.errors.js';
import { decisive } from '../limit.outage.js';
import type { PolicyCheck, ResolvedPolicy } from '../limit.policy.js';
import { CallChecks } from './call-checks.js';
import { DenialMessages, keepJsonType } from './denial-messages.js';
import { routeName } from './limited-call.js';
import { exceptionFor } from '../../transport/context-exceptions.js';
import { globalRouting } from '../../transport/global-settings.js';
import { setHeader, setLimitHeaders } from './rate-limit.headers.js';
import { PlanChecks, unknownName } from './plan-checks.js';
import { type RouteLimits, RoutePlans } from './route-plans.js';
import { bindRoutes } from './route-binding.js';
import { CallVisit, type Stage, type VisitedApp } from './call-visit.js';
import { callObject, leaveVisit, limitedCall, visitOn } from './visit.js';

/** Asks the limits of a call at each stage, and refuses the call if one of them denies it. Our guards call this. */
@Injectable()
export class RouteLimiter implements OnModuleInit, VisitedApp {
  readonly #logger = new Logger('SyncGuard');
  readonly #keys: KeyResolver;
  readonly #checks: CallChecks;
  readonly #plans: RoutePlans;
  readonly #routes: HttpRoutes;
  #allowed = new AllowedPaths([], '');
  /** Of each code several messages may be said: one a route, or a policy. */
  readonly #warnOnce = warningOnce(
    (message) => this.#logger.warn(message),
    (message) => message,
  );
  readonly #functionFailed = everyMinute((line, stack?: string) => this.#logger.error(line, stack));
  readonly #messages = new DenialMessages(this.#logger, this.#functionFailed);
  // They lead to everything in the app, which `util.inspect` of a guard must not show.
  readonly #modules: ModulesContainer;
  readonly #moduleRef: ModuleRef;

  constructor(
    readonly limiter: AbuseLimiterService,
    private readonly options: RouteLimits,
    modules: ModulesContainer,
    moduleRef: ModuleRef,
  ) {
    this.#modules = modules;
    this.#moduleRef = moduleRef;
    this.#keys = new KeyResolver(moduleRef, options.limit, (message) => this.#logger.warn(message));
    this.#checks = new CallChecks(this.#keys, this.#warnOnce, this.#functionFailed);
    this.#plans = new RoutePlans(options);
    this.#routes = new HttpRoutes(modules, moduleRef);
    // Here all modules are known, and Nest has not resolved a route yet.
    bindRoutes(modules, this.#plans);
  }

  onModuleInit(): void {
    const warn = (message: string): void => this.#logger.warn(message);
    new BootChecks(this.#modules).run(this.options.limit.strictBoot, warn);
    const types = classesOf(this.#modules);
    new AppChecks(this.options, this.#plans, this.#routes, this.#moduleRef, types).run(warn);
    new PlanChecks(this.options, this.#plans, this.#keys, types, this.#moduleRef).run(warn);
    this.#allowed = new AllowedPaths(this.options.limit.allow, globalRouting(this.#moduleRef).prefix);
  }

  /**
   * @throws an exception of the kind that Nest expects in this context, over HTTP an HttpException with `Retry-After`:
   * 429 if the call is denied, 503 if Redis does not answer, 400 if the call has no key or costs more than the limit
   */
  enter(context: ExecutionContext, stage: Stage): Promise<boolean> | true {
    const visit = this.#visitOf(context);
    return visit ? this.pass(visit, stage, visit.plan[stage]) : true;
  }

  /**
   * Counts a call against the policy `default`, and against the limits of its route that are asked before guards. So a
   * global guard behind this one cannot refuse calls uncounted.
   */
  enterApp(context: ExecutionContext): Promise<boolean> | true {
    const visit = this.#visitOf(context);
    if (!visit) return true;
    const { plan } = visit;
    const asked = this.pass(visit, 'default', plan.default);
    return plan.before.length === 0 ? asked : asked.then(() => this.pass(visit, 'before', plan.before));
  }

  /** Counts a call that all guards have let pass. */
  guardsPassed(visit: CallVisit): Promise<boolean> | true {
    if (visit.passed.has('after')) return true;
    visit.guardsPassed();
    const { after, defaultAfter } = visit.plan;
    const asksDefault = visit.passed.has('default') && !visit.isDefaultAsked;
    const policies = asksDefault ? [...defaultAfter, ...after] : after;
    return this.pass(visit, 'after', policies);
  }

  /** Returns the policies of a name in the `limits` option. */
  policiesNamed(name: string): readonly ResolvedPolicy[] {
    const found = this.options.limits.get(name);
    if (found) return found;
    throw unknownName('rateLimit', name, this.options.limits.keys());
  }

  get maxFlightMs(): number {
    return this.options.limit.maxFlightMs;
  }

  counted(visit: CallVisit, decided: CallDecision): void {
    (visit.decided ??= []).push(decided);
    const { headers } = this.options.limit;
    const { response } = visit.call;
    if (response && (headers.length > 0 || decided.checks.some(({ policy }) => policy.shadow)))
      setLimitHeaders(response, decided, headers);
  }

  hasNoVerdict({ call }: CallVisit, { name }: ResolvedPolicy, status: number): void {
    const what = status >= 500 ? 'an error of the server' : status === 408 ? 'a timeout' : 'a redirect';
    this.#warnOnce(
      `RATE_LIMIT_NO_VERDICT: ${routeName(call.route)} answered with ${what}. The policy ${name} counts failures, but cannot know whether this is one, so it does not count it. Add an \`isFailure\` to the policy.`,
    );
  }

  /** Returns false for a client that has left before the limits were asked. They count it, and nothing else runs. */
  async pass(visit: CallVisit, stage: Stage, policies: readonly ResolvedPolicy[]): Promise<boolean> {
    if (visit.passed.has(stage)) return true;
    visit.passed.add(stage);
    if (policies.length === 0) return true;
    const { isGone } = visit;
    try {
      visit.exempt ??= this.#isExempt(visit);
      const isExempt = typeof visit.exempt === 'boolean' ? visit.exempt : await visit.exempt;
      if (!isExempt) await this.#ask(policies, visit, stage);
      return isExempt || !isGone;
    } catch (error) {
      // An error of a function of the app says by its status how the call has ended.
      if (error instanceof SyncGuardError) visit.refused();
      else void visit.threw(error).catch(() => {});
      return this.refuse(visit, error);
    }
  }

  async #ask(policies: readonly ResolvedPolicy[], visit: CallVisit, stage: Stage): Promise<void> {
    const atOnce = this.#checkAtOnce(policies, visit);
    // The limits of the route and those of `default` together may be more than one script takes.
    if (!atOnce && policies.length > MAX_CHECKS) {
      await this.#ask(policies.slice(0, MAX_CHECKS), visit, stage);
      return this.#ask(policies.slice(MAX_CHECKS), visit, stage);
    }
    const checks = atOnce ? [atOnce] : await this.#checks.of(policies, visit, stage);
    if (checks.length === 0) return;
    const pending = atOnce ? [] : checks.filter(({ policy, cost }) => policy.count !== 'attempt' && cost > 0);
    if (pending.length > 0) visit.awaitsEnd(pending);
    const forgets = pending.some(({ policy }) => policy.resetOnSuccess);
    const decided = await (this.limiter instanceof AbuseLimiterService
      ? this.limiter.decisions.decide(checks, forgets ? visit.plan.routeTag : undefined)
      : this.#decideByStandIn(checks));
    this.counted(visit, decided);
    if (!decided.decision.allowed) throw visit.denied(decided.by.policy, decided.decision);
    // A policy that is tried has not counted a call that it would have denied.
    const entered = pending.length > 0 ? pending.filter((check) => !isTurnedAway(check, decided)) : pending;
    if (decided.counted && entered.length > 0) visit.entered(entered, decided.counted);
  }

  /** A test of the app has put an object in the place of the service. It may have nothing but `check`. */
  async #decideByStandIn(checks: readonly PolicyCheck[]): Promise<CallDecision> {
    const decisions = await Promise.all(
      checks.map(({ policy, identity, cost }) =>
        this.limiter.check(keyOf(identity), policy.name, cost > 0 ? { cost } : {}),
      ),
    );
    return { ...decisive(checks, decisions), checks, decisions, counted: undefined };
  }

  /** Most calls have one limit, with numbers in its policy and a key that the request has. They wait for nothing here. */
  #checkAtOnce(policies: readonly ResolvedPolicy[], visit: CallVisit): PolicyCheck | undefined {
    const [policy] = policies;
    if (!policy || policies.length > 1 || policy.count !== 'attempt') return undefined;
    const { cost } = policy;
    if (!policy.isStatic || typeof cost === 'function') return undefined;
    const key = this.#keys.keyAtOnce(policy, visit);
    return key === undefined ? undefined : { policy, identity: identityIn(policy.name, key), cost };
  }

  /** Returns undefined, with a warning, for a call that cannot be limited. It passes. */
  #visitOf(context: ExecutionContext): CallVisit | undefined {
    const place = callObject(context);
    const handler = context.getHandler();
    const type = context.getClass();
    const known = visitOn(place);
    if (known?.isOf(handler, type)) return known;
    const call = limitedCall(context, this.#routes);
    if (!call)
      return this.#warnOnce(
        `RATE_LIMIT_UNKNOWN_CONTEXT: @RateLimit and RateLimitGuard cannot limit calls of type '${context.getType<string>()}', so these pass. Call AbuseLimiterService in their handlers.`,
      );
    const visit = new CallVisit(context, call, this.#plans.planOf(type, handler, call.route), this);
    visit.follows(known);
    return leaveVisit(place, visit);
  }

  #isExempt({ context, call: { url } }: CallVisit): boolean | Promise<boolean> {
    const { allow, skipIf } = this.options.limit;
    if (url !== undefined && allow.length > 0 && this.#allowed.has(url)) return true;
    return skipIf ? this.#keys.resolver<boolean>(skipIf)(context) : false;
  }

  /** Throws the refusal of a call. An error that no client is to see as a refusal is thrown unchanged. */
  async refuse(visit: CallVisit, error: unknown): Promise<never> {
    const { context, call } = visit;
    const { response } = call;
    const isRefusal = error instanceof TooManyAttemptsError || error instanceof LimitError;
    const statusCode = isRefusal ? STATUS[error.code] : undefined;
    if (!isRefusal || statusCode === undefined) throw error;
    const { code } = error;
    const told = error instanceof TooManyAttemptsError ? await this.#messages.of(visit, error) : undefined;
    const [message, body] = typeof told === 'object' ? [error.summary, told] : [told ?? error.summary];
    if (response && body && context.getType() === 'http') keepJsonType(response);
    const facts = retryFacts(error.context, this.options.maxRetryAfterMs);
    const { retryAfter } = facts;
    // The handler may have set another one by `@Header`.
    if (response) setHeader(response, 'Cache-Control', 'no-store');
    if (response && typeof retryAfter === 'number') setHeader(response, 'Retry-After', String(retryAfter));
    const refusal = { statusCode, code, message, context: facts };
    throw await exceptionFor(context.getType<string>(), refusal, error, body);
  }
}

function isTurnedAway(check: PolicyCheck, { checks, decisions }: CallDecision): boolean {
  if (!check.policy.shadow) return false;
  const decision = decisions[checks.indexOf(check)];
  return decision?.allowed === true && decision.shadow !== undefined;
}

const STATUS: Readonly<Record<string, number>> = {
  TooManyAttempts: 429,
  RateLimited: 429,
  ServiceUnavailable: 503,
  InvalidArgument: 400,
};
