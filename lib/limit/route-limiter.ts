import { type ExecutionContext, Injectable, Logger, type OnModuleInit } from '@nestjs/common';
import type { ModuleRef, ModulesContainer } from '@nestjs/core';
import { SyncGuardError } from '../syncguard.errors.js';
import { type AbuseLimiterService, checkOf, type Ruling } from './abuse-limiter.service.js';
import { BootChecks } from './boot-checks.js';
import { CallInFlight } from './call-in-flight.js';
import { IdentityResolver } from './identity-resolver.js';
import type { LimitCheck } from './limit.backend.js';
import { LimitError, TooManyAttemptsError } from './limit.errors.js';
import { type ResolvedPolicy, withLimit } from './limit.policy.js';
import type { FromContext } from './limit.types.js';
import { GUARDS_MS } from './limit.values.js';
import {
  type EndingResponse,
  identityOfCall,
  limitedCall,
  type LimitedCall,
  type ResponseLike,
} from './limited-call.js';
import { exceptionFor } from './rate-limit.exception.js';
import { type Answer, rateLimitHeaders } from './rate-limit.headers.js';
import { isByAddress, type Plan, type RouteLimits, RoutePlans, type Stage } from './route-plans.js';

/** One call on its way through guards and interceptor: each stage is gone through once, however often it is bound. */
interface Visit {
  readonly handler: unknown;
  readonly type: unknown;
  readonly call: LimitedCall;
  readonly plan: Plan;
  readonly passed: Set<Stage>;
  readonly inFlight: CallInFlight[];
  exempt?: Promise<boolean>;
}

/** On the call itself: a WeakMap of all requests was measured to double the work of the garbage collector. */
const VISIT = Symbol.for('syncguard:visit');
/** On a response: what the limits of all calls that it answers have said. */
const ANSWERS = Symbol.for('syncguard:answers');

interface Visited {
  [VISIT]?: Visit;
}

interface Answering extends ResponseLike {
  [ANSWERS]?: Map<string, Answer>;
}

/** Asks the limits of a call at each stage, and tells what they said: what stands behind guards and interceptor. */
@Injectable()
export class RouteLimiter implements OnModuleInit {
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
  }

  onModuleInit(): void {
    const warn = (message: string): void => this.#logger.warn(message);
    new BootChecks(this.modules).run(this.options.limit.strictBoot, warn);
    this.#plans.verify(this.modules, this.moduleRef);
  }

  /**
   * Counts a call against the limits of one stage.
   *
   * @throws what Nest expects of the context (over HTTP an HttpException with `Retry-After`): 429 when it has to
   * wait, 503 when nobody can decide, 400 when it does not say who makes it or costs more than there is
   */
  async enter(context: ExecutionContext, stage: Stage): Promise<boolean> {
    const visit = this.#visitOf(context);
    if (!visit) return this.#passUnknown(context.getType<string>());
    const policies = visit.plan[stage];
    if (policies.length === 0 || visit.passed.has(stage)) return true;
    visit.passed.add(stage);
    try {
      visit.exempt ??= this.#isExempt(context, visit.call);
      if (!(await visit.exempt)) await this.#ask(policies, context, visit, stage);
      return true;
    } catch (error) {
      // What has let the call in before must not take a denial for a failure.
      const isOurs = error instanceof SyncGuardError;
      for (const call of isOurs ? visit.inFlight.splice(0) : visit.inFlight)
        void (isOurs ? call.refused() : call.failedWith(error)).catch(() => {});
      return this.#refuseFault(context, visit, error);
    }
  }

  async #ask(
    policies: readonly ResolvedPolicy[],
    context: ExecutionContext,
    visit: Visit,
    stage: Stage,
  ): Promise<void> {
    const checks = await this.#checksOf(policies, context, visit, stage);
    if (checks.length === 0) return;
    const ruling = await this.limiter.rule(checks);
    this.#tellWhatIsLeft(visit, ruling);
    if (!ruling.decision.allowed) throw new TooManyAttemptsError(ruling.decision, ruling.policy.code);
    this.#watch(context, visit, ruling);
  }

  /** Whether the guards have said all that there is to say: the common case, which needs no interceptor. */
  isDecided(context: ExecutionContext): boolean {
    const visit = (identityOfCall(context) as Visited)[VISIT];
    return visit !== undefined && visit.plan.late.length === 0 && visit.inFlight.length === 0;
  }

  /** The limits that wait to hear how this call ends. */
  takeInFlight(context: ExecutionContext): readonly CallInFlight[] {
    const calls = (identityOfCall(context) as Visited)[VISIT]?.inFlight.splice(0) ?? [];
    for (const call of calls) call.reachedHandler();
    return calls;
  }

  #watch(context: ExecutionContext, visit: Visit, ruling: Ruling): void {
    const pending = ruling.checks.map(({ policy }) => policy).filter(({ count }) => count === 'failure');
    if (pending.length === 0) return;
    const settle: ConstructorParameters<typeof CallInFlight>[1] = async (outcomeOf) => {
      try {
        const verdict = await this.limiter.settle(ruling, outcomeOf);
        if (verdict && !verdict.decision.allowed)
          throw new TooManyAttemptsError(verdict.decision, verdict.policy.code);
      } catch (error) {
        await this.#refuseFault(context, visit, error);
      }
    };
    // A response of GraphQL answers several calls, and tells of none of them how it ended.
    const { response } = visit.call;
    const isHttp = context.getType() === 'http' && response !== undefined;
    const call = isHttp ? watchedByResponse(pending, settle, response) : new CallInFlight(pending, settle);
    if (!isHttp) call.expectHandler(GUARDS_MS);
    visit.inFlight.push(call);
  }

  async #checksOf(
    policies: readonly ResolvedPolicy[],
    context: ExecutionContext,
    { call }: Visit,
    stage: Stage,
  ): Promise<LimitCheck[]> {
    const counted = policies.filter(
      ({ count }) => stage !== 'default' || count === 'attempt' || this.#isToldOfEnd(context),
    );
    const checks = counted.map(async (policy) => {
      const key = await this.#identities.identityOf(policy.keyBy, context, call);
      if (key === undefined) return this.#passWithoutKey(policy, context, stage);
      const isStatic = !policy.dynamicLimit && typeof policy.cost !== 'function';
      return isStatic ? checkOf(policy, key) : this.#dynamicCheckOf(policy, key, context);
    });
    return (await Promise.all(checks)).filter((check) => check !== undefined);
  }

  async #dynamicCheckOf(policy: ResolvedPolicy, key: string, context: ExecutionContext): Promise<LimitCheck> {
    const from = <T>(value: T | FromContext<T>): T | Promise<T> =>
      typeof value === 'function' ? this.#identities.resolver(value as FromContext<T>)(context) : value;
    const cost = await from(policy.cost);
    if (cost === undefined)
      throw new LimitError({
        code: 'InvalidArgument',
        message: `${policy.name}.cost must be an integer from 1; its function gave undefined.`,
      });
    return checkOf(
      policy.dynamicLimit ? withLimit(policy, await from(policy.dynamicLimit)) : policy,
      key,
      cost,
    );
  }

  #visitOf(context: ExecutionContext): Visit | undefined {
    const place = identityOfCall(context) as Visited;
    const handler = context.getHandler();
    const type = context.getClass();
    const known = place[VISIT];
    if (known?.handler === handler && known.type === type) return known;
    const call = limitedCall(context);
    return (
      call &&
      (place[VISIT] = {
        ...{ handler, type, call, plan: this.#plans.planOf(context, call.route), inFlight: [] },
        // A handler that hands its request on to another with `next()`: the global limit was asked, theirs were not.
        passed: new Set<Stage>(known?.passed.has('default') ? ['default'] : []),
      })
    );
  }

  async #isExempt(context: ExecutionContext, { url }: LimitedCall): Promise<boolean> {
    const { allow, skipIf } = this.options.limit;
    if (url !== undefined && allow.length > 0 && isAllowed(pathOf(url), allow)) return true;
    return skipIf ? this.#identities.resolver<boolean>(skipIf)(context) : false;
  }

  #tellWhatIsLeft({ call: { response } }: Visit, { checks, outcomes }: Ruling): void {
    const { headers } = this.options.limit;
    if (headers.length === 0 || !response) return;
    const answers = ((response as Answering)[ANSWERS] ??= new Map<string, Answer>());
    checks.forEach(({ policy }, i) => {
      const outcome = outcomes[i];
      if (outcome) answers.set(policy.name, { policy, outcome });
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
    const { code, summary: message, context: facts } = error;
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

/** A call in flight that ends with its HTTP response, of which it is told. */
function watchedByResponse(
  policies: readonly ResolvedPolicy[],
  settle: ConstructorParameters<typeof CallInFlight>[1],
  response: ResponseLike,
): CallInFlight {
  const raw = response.raw ?? (response as unknown as EndingResponse);
  const call = new CallInFlight(policies, settle, {
    get statusCode() {
      return response.statusCode;
    },
    get headersSent() {
      return raw.headersSent;
    },
  });
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
