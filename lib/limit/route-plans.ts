import type { ExecutionContext, Type } from '@nestjs/common';
import type { ModuleRef, ModulesContainer } from '@nestjs/core';
import { SyncGuardConfigError } from '../syncguard.errors.js';
import { type IdentityResolver, needsUser } from './identity-resolver.js';
import { MAX_CHECKS } from './limit.backend.js';
import type { ResolvedLimitOptions } from './limit.options.js';
import { type ResolvedPolicy, resolvePolicy } from './limit.policy.js';
import type { LimitPolicy } from './limit.types.js';
import {
  FIELD_RESOLVER,
  GRAPHQL_OPTIONS,
  PATTERN,
  RATE_LIMITS,
  REFERENCE_RESOLVER,
  type RateLimitEntry,
  SKIPPED_LIMITS,
} from './rate-limit.metadata.js';

/** When limits are asked: by the global guard, before the other guards of a route, or after them. */
export type Stage = 'default' | 'early' | 'late';

/** The limits of one route by stage. */
export type Plan = Readonly<Record<Stage, readonly ResolvedPolicy[]>>;

export interface RouteLimits {
  readonly limit: ResolvedLimitOptions;
  readonly limits: ReadonlyMap<string, readonly ResolvedPolicy[]>;
}

/** Knows which limits a route has: what decorators and options say, checked at boot and put together once a route. */
export class RoutePlans {
  /** By class too: a handler that several inherit has the limits of each. */
  readonly #plans = new WeakMap<object, WeakMap<object, Map<string, Plan>>>();

  constructor(
    private readonly options: RouteLimits,
    private readonly identities: IdentityResolver,
  ) {}

  planOf(context: ExecutionContext, route: string): Plan {
    const handler = context.getHandler();
    const type = context.getClass();
    let ofClass = this.#plans.get(type);
    if (!ofClass) this.#plans.set(type, (ofClass = new WeakMap<object, Map<string, Plan>>()));
    let plans = ofClass.get(handler);
    if (!plans) ofClass.set(handler, (plans = new Map<string, Plan>()));
    let plan = plans.get(route);
    if (!plan) plans.set(route, (plan = this.#plan(type, handler, route)));
    return plan;
  }

  #plan(type: object, handler: object, route: string): Plan {
    const own = this.#ownPolicies(type, handler, route);
    const skipped = skippedOn([handler, type]);
    const isOverridden = entriesOn(handler).some(({ override }) => override);
    return {
      default: isOverridden ? [] : (this.options.limits.get('default') ?? []).filter(keptBy(skipped)),
      early: own.filter((policy) => !needsUser(policy)),
      late: own.filter(needsUser),
    };
  }

  #ownPolicies(type: object, handler: object, route: string): ResolvedPolicy[] {
    const ofMethod = entriesOn(handler);
    const entries = ofMethod.some(({ override }) => override) ? ofMethod : [...entriesOn(type), ...ofMethod];
    const skipped = skippedOn([handler, type]);
    // What stands on the method itself is not skipped by a bare skip of its class.
    const onlyClassSkips = skipped === true && ofMethod.length > 0 && skippedOn([handler]) !== true;
    const own = onlyClassSkips
      ? this.#policiesOf(ofMethod, route)
      : this.#policiesOf(entries, route).filter(keptBy(skipped));
    if (own.length > MAX_CHECKS)
      throw new SyncGuardConfigError(`${route} has ${own.length} limits; there may be ${MAX_CHECKS}.`);
    return own;
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

  /**
   * Boot check: what decorators speak of exists, and what they stand on can be limited.
   *
   * @throws SyncGuardConfigError with a code of docs/rate-limits.md
   */
  verify(modules: ModulesContainer, moduleRef: ModuleRef): void {
    for (const { controllers, providers } of modules.values())
      for (const { metatype } of [...controllers.values(), ...providers.values()])
        if (typeof metatype === 'function') this.#verifyClass(metatype as Type, moduleRef);
    for (const policies of this.options.limits.values())
      for (const policy of policies) this.#verifyProviders(policy);
    if (this.options.limit.skipIf) this.identities.resolver(this.options.limit.skipIf);
  }

  #verifyClass(type: Type, moduleRef: ModuleRef): void {
    this.#verifyNames(type);
    for (const method of methodsOf(type)) {
      this.#verifyNames(method);
      if (Reflect.hasMetadata(PATTERN, method)) this.#verifyMessageHandler(type, method);
      if (isFieldResolver(method) && this.#ownPolicies(type, method, UNNAMED).length > 0)
        verifyFieldResolver(type, method, moduleRef);
    }
  }

  #verifyNames(place: object): void {
    const entries = entriesOn(place);
    for (const { policy } of entries)
      if (typeof policy === 'string' && !this.options.limits.has(policy))
        throw this.#unknownName('@RateLimit', policy);
    const skipped = (Reflect.getMetadata(SKIPPED_LIMITS, place) ?? []) as true | string[];
    if (skipped !== true)
      for (const name of skipped)
        if (name !== 'default' && !this.options.limits.has(name))
          throw this.#unknownName('@SkipRateLimit', name);
    for (const policy of this.#policiesOf(entries, UNNAMED)) this.#verifyProviders(policy);
  }

  #unknownName(decorator: string, policy: string): SyncGuardConfigError {
    return new SyncGuardConfigError(
      `RATE_LIMIT_UNKNOWN_POLICY: ${decorator}('${policy}') names a policy that is not there.`,
      { hint: `Add it to the \`limits\` option. There are: ${[...this.options.limits.keys()].join(', ')}.` },
    );
  }

  #verifyProviders({ keyBy, cost, dynamicLimit }: ResolvedPolicy): void {
    for (const each of [keyBy, cost, dynamicLimit].flat())
      if (typeof each === 'function') this.identities.resolver<unknown>(each);
  }

  #verifyMessageHandler(type: Type, method: Method): void {
    for (const policy of this.#ownPolicies(type, method, UNNAMED))
      if (isByAddress(policy))
        throw new SyncGuardConfigError(
          `RATE_LIMIT_NO_KEY: a message has no address to limit by, and ${policy.name} limits ${type.name}'s message handler \`${method.name}\` by nothing else.`,
          { hint: "Give it a `keyBy`: 'body.tenant' looks into the message, a function into its context." },
        );
  }
}

/** Without an address such a policy has nobody to count for. */
export const isByAddress = ({ keyBy }: Pick<ResolvedPolicy, 'keyBy'>): boolean =>
  [keyBy].flat().every((part) => part === 'ip');

/** What a limit is called while its route does not matter. */
const UNNAMED = '@RateLimit';

const isFieldResolver = (method: Method): boolean =>
  Reflect.hasMetadata(FIELD_RESOLVER, method) || Reflect.hasMetadata(REFERENCE_RESOLVER, method);

/**
 * Nest asks no guards for fields of objects unless it is told to. That is well known of what stands on a class, but not
 * half of it: guards without interceptors would let calls in whose end nobody tells.
 */
function verifyFieldResolver(type: Type, method: Method, moduleRef: ModuleRef): void {
  const isOwn = entriesOn(method).length > 0;
  for (const { fieldResolverEnhancers: enhancers = [] } of graphqlOptions(moduleRef)) {
    const asked = ['guards', 'interceptors'].filter((kind) => enhancers.includes(kind));
    if (asked.length === 2 || (asked.length === 0 && !isOwn)) continue;
    throw new SyncGuardConfigError(
      `RATE_LIMIT_UNGUARDED_FIELD: @RateLimit stands on ${type.name}'s field resolver \`${method.name}\`${isOwn ? '' : ', by its class'}, for which Nest asks no ${asked.includes('guards') ? 'interceptors' : 'guards'}.`,
      { hint: "Say so to GraphQLModule: `fieldResolverEnhancers: ['guards', 'interceptors']`." },
    );
  }
}

/** Of each GraphQLModule. */
function graphqlOptions(
  moduleRef: ModuleRef,
): readonly { readonly fieldResolverEnhancers?: readonly string[] }[] {
  try {
    return moduleRef.get(GRAPHQL_OPTIONS, { strict: false, each: true });
  } catch {
    // Resolvers without GraphQLModule: nobody will call them.
    return [];
  }
}

type Method = (...args: never[]) => unknown;

/** The methods of a class, those that it inherits as well unless it has put others in their place. */
function methodsOf(type: Type): Method[] {
  const members = new Map<string, unknown>();
  let at = type.prototype as object | null;
  for (; at && at !== Object.prototype; at = Object.getPrototypeOf(at) as object | null)
    for (const [name, { value }] of Object.entries<{ value?: unknown }>(Object.getOwnPropertyDescriptors(at)))
      if (!members.has(name)) members.set(name, value);
  return [...members.values()].filter((member): member is Method => typeof member === 'function');
}

const entriesOn = (place: object): readonly RateLimitEntry[] =>
  (Reflect.getMetadata(RATE_LIMITS, place) ?? []) as RateLimitEntry[];

function skippedOn(places: readonly object[]): true | ReadonlySet<string> {
  const names = new Set<string>();
  for (const place of places) {
    const skipped = Reflect.getMetadata(SKIPPED_LIMITS, place) as true | string[] | undefined;
    if (skipped === true) return true;
    for (const name of skipped ?? []) names.add(name);
  }
  return names;
}

const keptBy =
  (skipped: true | ReadonlySet<string>) =>
  ({ name }: ResolvedPolicy): boolean =>
    // Of `login#2` too: a list of limits is skipped by its one name.
    skipped !== true && !skipped.has(name.replace(/#\d+$/, ''));
