import type { ExecutionContext, Type } from '@nestjs/common';
import type { ModuleRef, ModulesContainer } from '@nestjs/core';
import { SyncGuardConfigError } from '../syncguard.errors.js';
import { globalEnhancers } from '../application-config.js';
import { type Method, methodsOf } from './decorated-methods.js';
import { HandlerKinds } from './handler-kind.js';
import type { IdentityResolver } from './identity-resolver.js';
import { MAX_CHECKS } from './limit.backend.js';
import type { ResolvedLimitOptions } from './limit.options.js';
import { isByUser, type ResolvedPolicy, resolvePolicy } from './limit.policy.js';
import type { LimitPolicy } from './limit.types.js';
import { hasOtherGuards, isAskedLast, isOther } from './last-guard.js';
import type { Plan } from './plan.js';
import { SharedNames } from './shared-names.js';
import {
  APPLIES_DEFAULT,
  FIELD_RESOLVER,
  GRAPHQL_OPTIONS,
  GUARDS,
  METHOD,
  PATTERN,
  RATE_LIMITS,
  REFERENCE_RESOLVER,
  type RateLimitEntry,
  SKIPPED_LIMITS,
} from './rate-limit.metadata.js';

export interface RouteLimits {
  /** No `Retry-After` is longer. */
  readonly maxRetryAfterMs: number;
  readonly limit: ResolvedLimitOptions;
  readonly limits: ReadonlyMap<string, readonly ResolvedPolicy[]>;
}

/** Knows which limits a route has: what decorators and options say, checked at boot and put together once a route. */
export class RoutePlans {
  /** By which @SkipRateLimit may name the policies of the options: their keys, and names of their own. */
  readonly #optionNames: readonly string[];
  /** By class too: a handler that several inherit has the limits of each. */
  readonly #plans = new WeakMap<object, WeakMap<object, Map<string, Plan>>>();

  constructor(
    private readonly options: RouteLimits,
    private readonly identities: IdentityResolver,
  ) {
    this.#optionNames = [...options.limits].flatMap(([key, policies]) => [
      key,
      ...policies.flatMap(({ name }) => [name, listName(name)]),
    ]);
  }

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
    const before = inStages(this.#defaultPolicies(type, handler), isAskedLast(handler));
    const ofRoute = inStages(this.#ownPolicies(type, handler, route), isAskedLast(handler));
    return {
      default: [...before.early, ...before.watching],
      early: [...ofRoute.early, ...ofRoute.watching],
      late: ofRoute.late,
      lateDefault: before.late,
      watching: new Set([...before.watching, ...ofRoute.watching]),
    };
  }

  /** The limits that a method has, or has under a global guard: what is to be bound to it. */
  limitsOf(type: object, method: object): readonly ResolvedPolicy[] {
    // How calls end elsewhere than over HTTP `default` is not told.
    const byDefault = this.#defaultPolicies(type, method).filter(
      ({ count }) => count === 'attempt' || Reflect.hasMetadata(METHOD, method),
    );
    return [...byDefault, ...this.#ownPolicies(type, method, UNNAMED)];
  }

  /** Limits that a function has moved behind guards of a route which may refuse a call, though nobody has said so. */
  #isMoved(type: Type, method: Method): boolean {
    return this.limitsOf(type, method).some(
      ({ ask, isAskGiven, keyBy, count, dynamicLimit }) =>
        ask === 'after' && !isAskGiven && !isByUser(keyBy) && (count !== 'failure' || dynamicLimit),
    );
  }

  #defaultPolicies(type: object, method: object): readonly ResolvedPolicy[] {
    const isOverridden = [...entriesOn(method), ...entriesOn(type)].some(({ override }) => override);
    return isOverridden ? [] : this.#named('default', skippedOn([method, type]));
  }

  #ownPolicies(type: object, handler: object, route: string): ResolvedPolicy[] {
    const ofMethod = entriesOn(handler);
    const entries = ofMethod.some(({ override }) => override) ? ofMethod : [...entriesOn(type), ...ofMethod];
    const skipped = skippedOn([handler, type]);
    // What stands on the method itself is not skipped by a bare skip of its class.
    const onlyClassSkips = skipped === true && ofMethod.length > 0 && skippedOn([handler]) !== true;
    const own = onlyClassSkips
      ? this.#policiesOf(ofMethod, route)
      : this.#policiesOf(entries, route, skipped);
    if (own.length > MAX_CHECKS)
      throw new SyncGuardConfigError(`${route} has ${own.length} limits; there may be ${MAX_CHECKS}.`);
    return own;
  }

  /** The policies of decorators. One without a name counts by route, and by its place if there are several. */
  #policiesOf(
    entries: readonly RateLimitEntry[],
    route: string,
    skipped: true | ReadonlySet<string> = new Set(),
  ): ResolvedPolicy[] {
    let unnamed = 0;
    const inline = (policy: LimitPolicy): ResolvedPolicy => {
      const name = policy.name ?? (unnamed++ === 0 ? route : `${route}#${unnamed}`);
      return resolvePolicy(policy, { ...this.options.limit, name, fixed: true });
    };
    return entries.flatMap(({ policy }) =>
      typeof policy === 'string'
        ? this.#named(policy, skipped)
        : inlineOf(policy).map(inline).filter(keptBy(skipped)),
    );
  }

  #named(key: string, skipped: true | ReadonlySet<string>): ResolvedPolicy[] {
    return (this.options.limits.get(key) ?? []).filter(keptBy(skipped, key));
  }

  /**
   * Boot check: what decorators speak of exists, and what they stand on can be limited.
   *
   * @throws SyncGuardConfigError with a code of docs/rate-limits.md
   */
  verify(modules: ModulesContainer, moduleRef: ModuleRef, warn: (message: string) => void): void {
    this.#verifyDefault(modules, moduleRef);
    const names = new SharedNames();
    for (const type of classesOf(modules)) {
      this.#verifyClass(type, moduleRef);
      this.#verifySharedNames(type, names);
    }
    for (const policies of this.options.limits.values())
      for (const policy of policies) this.#verifyProviders(policy);
    const { skipIf, user, address } = this.options.limit;
    for (const each of [skipIf, user, address])
      if (typeof each === 'function') this.identities.resolver<unknown>(each);
    this.#verifyAsk(modules, moduleRef, warn);
  }

  #verifyAsk(modules: ModulesContainer, moduleRef: ModuleRef, warn: (message: string) => void): void {
    const isGuarded = globalEnhancers(moduleRef)?.guards.some(isOther) ?? false;
    const kinds = new HandlerKinds(modules);
    const moved = classesOf(modules).flatMap((type) =>
      methodsOf(type)
        .filter((method) => isGuarded || hasOtherGuards(type) || hasOtherGuards(method))
        .filter((method) => kinds.of(method) === 'guarded' && this.#isMoved(type, method))
        .map((method) => `${type.name}.${method.name}`),
    );
    if (moved.length > 0)
      warn(
        `RATE_LIMIT_ASK: A function in \`keyBy\`, \`cost\` or \`limit\` has limits asked after the guards, so calls that a guard refuses are not counted: ${[...new Set(moved)].join(', ')}. Say \`ask: 'before'\` or \`ask: 'after'\`.`,
      );
  }

  /** Without a policy `default` RateLimitGuard lets pass what has no limits of its own: never where it is bound to that. */
  #verifyDefault(modules: ModulesContainer, moduleRef: ModuleRef): void {
    if (this.options.limits.has('default')) return;
    if (globalEnhancers(moduleRef)?.guards.some(appliesDefault)) throw noDefault('to all handlers');
    const kinds = new HandlerKinds(modules);
    for (const type of classesOf(modules))
      for (const method of methodsOf(type)) {
        const isBound = [type, method].some((place) => guardsOn(place).some(appliesDefault));
        const isLimited = [type, method].some((place) => entriesOn(place).length > 0);
        if (isBound && !isLimited && skippedOn([method, type]) !== true && kinds.of(method) === 'guarded')
          throw noDefault(`to ${type.name}.${method.name}, which has no limits of its own`);
      }
  }

  #verifyClass(type: Type, moduleRef: ModuleRef): void {
    const methods = methodsOf(type);
    const names = namesIn([type, ...methods].flatMap(entriesOn));
    this.#verifyNames(type, names);
    for (const method of methods) {
      this.#verifyNames(method, names);
      if (Reflect.hasMetadata(PATTERN, method)) this.#verifyMessageHandler(type, method);
      if (isFieldResolver(method) && this.#ownPolicies(type, method, UNNAMED).length > 0)
        verifyFieldResolver(type, method, moduleRef);
    }
  }

  #verifySharedNames(type: Type, names: SharedNames): void {
    for (const method of methodsOf(type)) {
      const own = this.#ownPolicies(type, method, UNNAMED).filter(({ name }) => !isUnnamed(name));
      for (const policy of own) names.add(policy);
      names.verifyRoute(own);
    }
  }

  /** @param names - of policies that stand in decorators of the class */
  #verifyNames(place: object, names: ReadonlySet<string>): void {
    const entries = entriesOn(place);
    for (const { policy } of entries)
      if (typeof policy === 'string' && !this.options.limits.has(policy))
        throw unknownName('@RateLimit', policy, this.options.limits.keys());
    const known = new Set(['default', ...names, ...this.#optionNames]);
    for (const name of namesSkippedOn(place))
      if (!known.has(name)) throw unknownName('@SkipRateLimit', name, known);
    for (const policy of this.#policiesOf(entries, UNNAMED)) this.#verifyProviders(policy);
  }

  #verifyProviders({ keyBy, cost, dynamicLimit, dynamicWindow }: ResolvedPolicy): void {
    for (const each of [keyBy, cost, dynamicLimit, dynamicWindow].flat())
      if (typeof each === 'function') this.identities.resolver<unknown>(each);
  }

  #verifyMessageHandler(type: Type, method: Method): void {
    for (const policy of this.#ownPolicies(type, method, UNNAMED))
      if (isByAddress(policy) && typeof this.options.limit.address !== 'function')
        throw new SyncGuardConfigError(
          `A message has no address to limit by, and ${policy.name} limits ${type.name}'s message handler \`${method.name}\` by nothing else.`,
          {
            code: 'RATE_LIMIT_NO_KEY',
            hint: "Give it a `keyBy`: 'body.tenant' looks into the message, a function into its context.",
          },
        );
  }
}

/**
 * What guards refuse counts also where a limit is asked after them: by address, up to the same number. A limit that is a
 * function may need what guards find out.
 */
function inStages(
  policies: readonly ResolvedPolicy[],
  hasLastGuard: boolean,
): Record<'early' | 'late' | 'watching', readonly ResolvedPolicy[]> {
  // Nobody would ask it any more: better early than never.
  if (!hasLastGuard) return { early: policies, late: [], watching: [] };
  const late = policies.filter(({ ask }) => ask === 'after');
  return {
    early: policies.filter(({ ask }) => ask === 'before'),
    late,
    watching: late.filter(({ count, dynamicLimit }) => count === 'failure' && !dynamicLimit).map(watching),
  };
}

const watching = (policy: ResolvedPolicy): ResolvedPolicy => ({
  ...policy,
  name: `${policy.name} guards`,
  keyBy: 'ip',
  cost: typeof policy.cost === 'number' ? policy.cost : 1,
  resetOnSuccess: false,
});

/** Without an address such a policy has nobody to count for: a route never says who. */
export const isByAddress = ({ keyBy }: Pick<ResolvedPolicy, 'keyBy'>): boolean =>
  [keyBy].flat().every((part) => part === 'ip' || part === 'route');

/** What a limit is called while its route does not matter. */
const UNNAMED = '@RateLimit';

const isUnnamed = (name: string): boolean => name.split('#')[0] === UNNAMED;

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
      `@RateLimit stands on ${type.name}'s field resolver \`${method.name}\`${isOwn ? '' : ', by its class'}, for which Nest asks no ${asked.includes('guards') ? 'interceptors' : 'guards'}.`,
      {
        code: 'RATE_LIMIT_UNGUARDED_FIELD',
        hint: "Say so to GraphQLModule: `fieldResolverEnhancers: ['guards', 'interceptors']`.",
      },
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

/** The limits of a class or method, without those of bases that an override on a class stands in place of. */
function entriesOn(place: object): readonly RateLimitEntry[] {
  const entries = (Reflect.getMetadata(RATE_LIMITS, place) ?? []) as RateLimitEntry[];
  const overriding = entries.find(({ override }) => override)?.place;
  return overriding
    ? entries.slice(0, entries.findLastIndex((entry) => entry.place === overriding) + 1)
    : entries;
}

const inlineOf = (policy: Exclude<RateLimitEntry['policy'], string>): readonly LimitPolicy[] =>
  Array.isArray(policy) ? (policy as readonly LimitPolicy[]) : [policy as LimitPolicy];

const namesIn = (entries: readonly RateLimitEntry[]): ReadonlySet<string> =>
  new Set(
    entries.flatMap(({ policy }) =>
      typeof policy === 'string' ? [] : inlineOf(policy).flatMap(({ name }) => name ?? []),
    ),
  );

const guardsOn = (place: object): readonly unknown[] =>
  (Reflect.getMetadata(GUARDS, place) ?? []) as readonly unknown[];

/** Whether a guard, or the class of one, is RateLimitGuard, of whatever copy of this package, or a subclass. */
const appliesDefault = (guard: unknown): boolean => {
  const type = typeof guard === 'function' ? guard : (guard as object | null | undefined)?.constructor;
  return type !== undefined && Reflect.hasMetadata(APPLIES_DEFAULT, type);
};

const noDefault = (where: string): SyncGuardConfigError =>
  new SyncGuardConfigError(`RateLimitGuard is bound ${where}, but there is no policy \`default\` to apply.`, {
    code: 'RATE_LIMIT_NO_DEFAULT',
    hint: 'Give one: `limits: { default: { limit: 100, windowMs: seconds(10) } }`. @RateLimit needs no guard bound by hand.',
  });

const unknownName = (decorator: string, name: string, known: Iterable<string>): SyncGuardConfigError =>
  new SyncGuardConfigError(`${decorator}('${name}') names a policy that is not there.`, {
    code: 'RATE_LIMIT_UNKNOWN_POLICY',
    hint: `Add it to the \`limits\` option. There are: ${[...known].join(', ')}.`,
  });

function skippedOn(places: readonly object[]): true | ReadonlySet<string> {
  const skips = places.map((place) => Reflect.getMetadata(SKIPPED_LIMITS, place) as Skipped);
  return skips.includes(true) || new Set(skips.flatMap((names) => (names === true ? [] : (names ?? []))));
}

type Skipped = true | readonly string[] | undefined;

const namesSkippedOn = (place: object): readonly string[] => {
  const skipped = skippedOn([place]);
  return skipped === true ? [] : [...skipped];
};

/** @param key - under which the policy stands in the options, besides a name of its own */
const keptBy =
  (skipped: true | ReadonlySet<string>, key?: string) =>
  ({ name }: ResolvedPolicy): boolean =>
    skipped !== true && ![key ?? name, name, listName(name)].some((each) => skipped.has(each));

/** Of `login#2` too: a list of limits is skipped by its one name. */
const listName = (name: string): string => name.replace(/#\d+$/, '');

/** The classes of an app's controllers and providers. */
const classesOf = (modules: ModulesContainer): readonly Type[] =>
  [...modules.values()]
    .flatMap(({ controllers, providers }) => [...controllers.values(), ...providers.values()])
    .map(({ metatype }) => metatype)
    .filter((type): type is Type => typeof type === 'function');
