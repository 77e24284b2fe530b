import {
  type ExecutionContext,
  HttpException,
  Injectable,
  Logger,
  type OnModuleInit,
  RequestMethod,
} from '@nestjs/common';
import { type HttpAdapterHost, type ModuleRef, type ModulesContainer } from '@nestjs/core';
import { hashKey } from '../keys.js';
import { SyncGuardConfigError } from '../syncguard.errors.js';
import { type AbuseLimiterService, checkOf, type Ruling } from './abuse-limiter.service.js';
import { CallInFlight, type EndingResponse } from './call-in-flight.js';
import { IdentityResolver, needsUser, type RequestLike } from './identity-resolver.js';
import { type LimitCheck, MAX_CHECKS } from './limit.backend.js';
import { LimitError, TooManyAttemptsError } from './limit.errors.js';
import { type ResolvedLimitOptions } from './limit.options.js';
import { type ResolvedPolicy, resolvePolicy, withLimit } from './limit.policy.js';
import type { FromContext, LimitPolicy } from './limit.types.js';
import { type Answer, rateLimitHeaders } from './rate-limit.headers.js';
import { RATE_LIMITS, type RateLimitEntry, SKIPPED_LIMITS, VERSION, METHOD } from './rate-limit.metadata.js';

/** When limits are asked: by the global guard, before the other guards of a route, or after them. */
type Stage = 'default' | 'early' | 'late';

/** The limits of one route by stage. */
type Plan = Readonly<Record<Stage, readonly ResolvedPolicy[]>>;

/** One request on its way through guards and interceptor: each stage is gone through once, however often it is bound. */
interface Visit {
  readonly plan: Plan;
  readonly passed: Set<Stage>;
  readonly answers: Answer[];
  readonly inFlight: CallInFlight[];
  exempt?: Promise<boolean>;
}

/** On the request itself: a WeakMap of all requests was measured to double the work of the garbage collector. */
const VISIT = Symbol.for('syncguard:visit');

interface Visited {
  [VISIT]?: Visit;
}

export interface RouteLimiterOptions {
  readonly limit: ResolvedLimitOptions;
  readonly limits: ReadonlyMap<string, readonly ResolvedPolicy[]>;
}

/** Knows which limits a route has, and asks them: what stands behind guards and interceptor. */
@Injectable()
export class RouteLimiter implements OnModuleInit {
  readonly #logger = new Logger('SyncGuard');
  readonly #identities: IdentityResolver;
  readonly #plans = new WeakMap<object, Map<string, Plan>>();
  readonly #unknownTypes = new Set<string>();

  constructor(
    private readonly limiter: AbuseLimiterService,
    private readonly options: RouteLimiterOptions,
    private readonly host: HttpAdapterHost,
    private readonly modules: ModulesContainer,
    moduleRef: ModuleRef,
  ) {
    this.#identities = new IdentityResolver(moduleRef, options.limit.ipv6Subnet, (message) =>
      this.#logger.warn(message),
    );
  }

  /** Boot check: every name and provider that a decorator speaks of exists. */
  onModuleInit(): void {
    for (const { controllers, providers } of this.modules.values())
      for (const { metatype } of [...controllers.values(), ...providers.values()])
        if (typeof metatype === 'function')
          for (const place of decoratedPlaces(metatype)) this.#verify(place);
    for (const policies of this.options.limits.values())
      for (const policy of policies) this.#verifyProviders(policy);
    if (this.options.limit.skipIf) this.#identities.resolver(this.options.limit.skipIf);
  }

  /** For the global guard: it would guard nothing without. */
  requireDefault(): void {
    if (!this.options.limits.has('default'))
      throw new SyncGuardConfigError('RateLimitGuard is bound, but there is no policy `default` to apply.', {
        hint: 'Give one: `limits: { default: { limit: 100, windowMs: seconds(10) } }`. @RateLimit needs no guard bound by hand.',
      });
  }

  /**
   * Counts a request against the limits of one stage.
   *
   * @throws HttpException 429 when it has to wait, 503 when nobody can decide; both with `Retry-After`
   */
  async enter(context: ExecutionContext, stage: Stage): Promise<boolean> {
    const type = context.getType<string>();
    if (type !== 'http') return this.#passUnknown(type);
    const request = context.switchToHttp().getRequest<RequestLike & Visited>();
    const visit = this.#visitOf(context, request);
    const policies = visit.plan[stage];
    if (policies.length === 0 || visit.passed.has(stage)) return true;
    visit.passed.add(stage);
    visit.exempt ??= this.#isExempt(context, request);
    if (await visit.exempt) return true;

    const checks = await Promise.all(policies.map((policy) => this.#checkOf(policy, context, request)));
    const ruling = await this.limiter
      .rule(checks)
      .catch((error: unknown) => this.#refuseFault(context, error));
    this.#tellWhatIsLeft(context, visit, ruling);
    if (!ruling.decision.allowed)
      throw this.#tooMany(context, new TooManyAttemptsError(ruling.decision, ruling.policy.code));
    this.#watch(context, visit, ruling);
    return true;
  }

  /** Whether the guards have said all that there is to say: the common case, which needs no interceptor. */
  isDecided(context: ExecutionContext): boolean {
    if (context.getType<string>() !== 'http') return false;
    const visit = context.switchToHttp().getRequest<Visited>()[VISIT];
    return visit !== undefined && visit.plan.late.length === 0 && visit.inFlight.length === 0;
  }

  /** The limits that wait to hear how this call ends. */
  takeInFlight(context: ExecutionContext): readonly CallInFlight[] {
    if (context.getType<string>() !== 'http') return [];
    return context.switchToHttp().getRequest<Visited>()[VISIT]?.inFlight.splice(0) ?? [];
  }

  #watch(context: ExecutionContext, visit: Visit, ruling: Ruling): void {
    const pending = ruling.checks.map(({ policy }) => policy).filter(({ count }) => count === 'failure');
    if (pending.length === 0) return;
    const response = context.switchToHttp().getResponse<EndingResponse & { raw?: EndingResponse }>();
    const raw = response.raw ?? response;
    const call = new CallInFlight(
      pending,
      {
        get statusCode() {
          return response.statusCode;
        },
        get headersSent() {
          return raw.headersSent;
        },
      },
      async (outcomeOf) => {
        const verdict = await this.limiter
          .settle(ruling, outcomeOf)
          .catch((error: unknown) => this.#refuseFault(context, error));
        if (verdict && !verdict.decision.allowed)
          throw this.#tooMany(context, new TooManyAttemptsError(verdict.decision, verdict.policy.code));
      },
    );
    visit.inFlight.push(call);
    // Its denial or fault comes too late for this answer: the next request is told.
    raw.once('finish', () => void call.sent().catch(() => {}));
    raw.once('close', () => void call.left().catch(() => {}));
  }

  async #checkOf(
    policy: ResolvedPolicy,
    context: ExecutionContext,
    request: RequestLike,
  ): Promise<LimitCheck> {
    const key = await this.#identities.identityOf(policy.keyBy, context, request);
    if (!policy.dynamicLimit && typeof policy.cost !== 'function') return checkOf(policy, key);
    const from = <T>(value: T | FromContext<T>): T | Promise<T> =>
      typeof value === 'function' ? this.#identities.resolver(value as FromContext<T>)(context) : value;
    const cost = await from(policy.cost);
    return checkOf(
      policy.dynamicLimit ? withLimit(policy, await from(policy.dynamicLimit)) : policy,
      key,
      cost,
    );
  }

  #visitOf(context: ExecutionContext, request: RequestLike & Visited): Visit {
    return (request[VISIT] ??= {
      plan: this.#planOf(context, request),
      passed: new Set(),
      answers: [],
      inFlight: [],
    });
  }

  #planOf(context: ExecutionContext, request: RequestLike): Plan {
    const handler = context.getHandler();
    const route = routeOf(context, request);
    let plans = this.#plans.get(handler);
    if (!plans) this.#plans.set(handler, (plans = new Map<string, Plan>()));
    let plan = plans.get(route);
    if (!plan) plans.set(route, (plan = this.#plan(context, route)));
    return plan;
  }

  #plan(context: ExecutionContext, route: string): Plan {
    const { entries, ofMethod, override } = entriesOn(context);
    const skipped = skippedOn([context.getHandler(), context.getClass()]);
    const kept = (policy: ResolvedPolicy): boolean => skipped !== true && !skipped.has(baseName(policy));
    // What stands on the method itself is not skipped by a bare skip of its class.
    const onlyClassSkips =
      skipped === true && ofMethod.length > 0 && skippedOn([context.getHandler()]) !== true;
    const own = onlyClassSkips
      ? this.#policiesOf(ofMethod, route)
      : this.#policiesOf(entries, route).filter(kept);
    if (own.length > MAX_CHECKS)
      throw new SyncGuardConfigError(`${route} has ${own.length} limits; there may be ${MAX_CHECKS}.`);
    const isLate = (policy: ResolvedPolicy): boolean => needsUser(policy);
    return {
      default: override ? [] : (this.options.limits.get('default') ?? []).filter(kept),
      early: own.filter((policy) => !isLate(policy)),
      late: own.filter(isLate),
    };
  }

  /** The policies of decorators. One without a name counts by route, and by its place if there are several. */
  #policiesOf(entries: readonly RateLimitEntry[], route: string): ResolvedPolicy[] {
    let unnamed = 0;
    const inline = (policy: LimitPolicy): ResolvedPolicy => {
      const name = policy.name ?? (unnamed++ === 0 ? route : `${route}#${unnamed}`);
      return resolvePolicy(policy, { ...this.options.limit, name, fixed: true });
    };
    return entries.flatMap(({ policy }) => {
      if (typeof policy === 'string') return this.options.limits.get(policy) ?? [];
      return (Array.isArray(policy) ? (policy as readonly LimitPolicy[]) : [policy as LimitPolicy]).map(
        inline,
      );
    });
  }

  async #isExempt(context: ExecutionContext, request: RequestLike): Promise<boolean> {
    const { allow, skipIf } = this.options.limit;
    if (allow.length > 0 && isAllowed(pathOf(request), allow)) return true;
    return skipIf ? this.#identities.resolver<boolean>(skipIf)(context) : false;
  }

  #tellWhatIsLeft(context: ExecutionContext, visit: Visit, { checks, outcomes }: Ruling): void {
    const { headers } = this.options.limit;
    if (headers.length === 0) return;
    checks.forEach(({ policy }, i) => {
      const outcome = outcomes[i];
      if (outcome) visit.answers.push({ policy, outcome });
    });
    const response: unknown = context.switchToHttp().getResponse();
    for (const [name, value] of rateLimitHeaders(headers, visit.answers))
      this.host.httpAdapter.setHeader(response, name, value);
  }

  #tooMany(context: ExecutionContext, error: TooManyAttemptsError): HttpException {
    return this.#refusal(context, 429, error);
  }

  /** Nobody can decide: 503 and not 429, as it is not the client's doing. Other faults go on as they are. */
  #refuseFault(context: ExecutionContext, error: unknown): never {
    if (error instanceof LimitError && error.code === 'ServiceUnavailable')
      throw this.#refusal(context, 503, error);
    throw error;
  }

  /** An HttpException, so that it is one for every filter, also where `http: false` leaves errors to the app. */
  #refusal(
    context: ExecutionContext,
    statusCode: number,
    error: TooManyAttemptsError | LimitError,
  ): HttpException {
    const { code, summary: message, context: facts } = error;
    const response: unknown = context.switchToHttp().getResponse();
    this.host.httpAdapter.setHeader(response, 'Retry-After', String(facts.retryAfter));
    return new HttpException({ statusCode, code, message, context: facts }, statusCode, { cause: error });
  }

  #passUnknown(type: string): true {
    if (!this.#unknownTypes.has(type)) {
      this.#unknownTypes.add(type);
      this.#logger.warn(`@RateLimit and RateLimitGuard do not limit calls of type '${type}': they pass.`);
    }
    return true;
  }

  #verify(place: object): void {
    const entries = (Reflect.getMetadata(RATE_LIMITS, place) ?? []) as RateLimitEntry[];
    for (const { policy } of entries)
      if (typeof policy === 'string' && !this.options.limits.has(policy))
        throw unknownName('@RateLimit', policy, this.options.limits);
    const skipped = (Reflect.getMetadata(SKIPPED_LIMITS, place) ?? []) as true | string[];
    if (skipped !== true)
      for (const name of skipped)
        if (name !== 'default' && !this.options.limits.has(name))
          throw unknownName('@SkipRateLimit', name, this.options.limits);
    for (const policy of this.#policiesOf(entries, 'route')) this.#verifyProviders(policy);
  }

  #verifyProviders({ keyBy, cost, dynamicLimit }: ResolvedPolicy): void {
    for (const each of [keyBy, cost, dynamicLimit].flat())
      if (typeof each === 'function') this.#identities.resolver<unknown>(each);
  }
}

function unknownName(
  decorator: string,
  name: string,
  limits: ReadonlyMap<string, unknown>,
): SyncGuardConfigError {
  return new SyncGuardConfigError(`${decorator}('${name}') names a policy that is not there.`, {
    hint: `Add it to the \`limits\` option. There are: ${[...limits.keys()].join(', ')}.`,
  });
}

/** A class and its methods, those that it inherits as well. */
function decoratedPlaces(type: { prototype?: object }): object[] {
  const places: object[] = [type];
  for (let at = type.prototype; at && at !== Object.prototype; at = Object.getPrototypeOf(at) as object)
    for (const descriptor of Object.values(Object.getOwnPropertyDescriptors(at)))
      if (typeof descriptor.value === 'function') places.push(descriptor.value as object);
  return places;
}

function entriesOn(context: ExecutionContext): {
  entries: RateLimitEntry[];
  ofMethod: RateLimitEntry[];
  override: boolean;
} {
  const read = (place: object): RateLimitEntry[] =>
    (Reflect.getMetadata(RATE_LIMITS, place) ?? []) as RateLimitEntry[];
  const ofMethod = read(context.getHandler());
  const override = ofMethod.some((entry) => entry.override);
  return { entries: override ? ofMethod : [...read(context.getClass()), ...ofMethod], ofMethod, override };
}

function skippedOn(places: readonly object[]): true | ReadonlySet<string> {
  const names = new Set<string>();
  for (const place of places) {
    const skipped = Reflect.getMetadata(SKIPPED_LIMITS, place) as true | string[] | undefined;
    if (skipped === true) return true;
    for (const name of skipped ?? []) names.add(name);
  }
  return names;
}

/** Of `login#2` too: a list of limits is skipped by its one name. */
const baseName = ({ name }: ResolvedPolicy): string => name.replace(/#\d+$/, '');

/**
 * What an unnamed policy counts by: HTTP method and route template, and the version where there is one. Never a
 * class's name: two may be the same, and a bundler changes them.
 */
function routeOf(context: ExecutionContext, request: RequestLike): string {
  // The client chooses the method: where a route takes all of them, they count together.
  const takesAll = Reflect.getMetadata(METHOD, context.getHandler()) === RequestMethod.ALL;
  const method = takesAll ? '*' : request.method === 'HEAD' ? 'GET' : request.method;
  const template = String(request.routeOptions?.url ?? request.route?.path ?? '*');
  const version = (Reflect.getMetadata(VERSION, context.getHandler()) ??
    Reflect.getMetadata(VERSION, context.getClass())) as string | symbol | string[] | undefined;
  const route = `${method} ${template}${version === undefined ? '' : `@${String(version)}`}`;
  // The name of a policy is short and printable.
  return /^[\x20-\x7e]{1,190}$/.test(route) ? route : `${method} ${hashKey(route)}`;
}

const pathOf = (request: RequestLike): string => {
  const path = (request.originalUrl ?? request.url).replace(/[?#].*$/s, '');
  return path.length > 1 ? path.replace(/\/$/, '') : path;
};

const isAllowed = (path: string, allow: readonly string[]): boolean =>
  allow.some((pattern) =>
    pattern.endsWith('/*') ? path.startsWith(pattern.slice(0, -1)) : path === pattern,
  );
