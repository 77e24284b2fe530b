import type { ExecutionContext, Type } from '@nestjs/common';
import type { ModuleRef, ModulesContainer } from '@nestjs/core';
import { SyncGuardConfigError } from '../../core/errors.js';
import { globalEnhancers } from '../../transport/global-enhancers.js';
import { type Method, methodsOf } from './decorated-methods.js';
import { HandlerKinds } from './handler-kind.js';
import type { KeyResolver } from './key-resolver.js';
import { MAX_CHECKS } from '../limit.backend.js';
import type { ResolvedLimitOptions } from '../limit.options.js';
import { isByUser, type ResolvedPolicy, resolvePolicy } from '../limit.policy.js';
import type { LimitPolicy } from '../policy.types.js';
import { guardsOn, hasLastGuard, hasOtherGuards, isOtherGuard } from './last-guard.js';
import type { Plan } from './plan.js';
import { presets } from '../presets.js';
import { SharedNames } from './shared-names.js';
import {
  APPLIES_DEFAULT,
  FIELD_RESOLVER,
  GRAPHQL_OPTIONS,
  METHOD,
  PATTERN,
  RATE_LIMITS,
  REFERENCE_RESOLVER,
  type RateLimitEntry,
  SKIPPED_LIMITS,
} from './rate-limit.metadata.js';

export interface RouteLimits {
  /** The longest `Retry-After`. */
  readonly maxRetryAfterMs: number;
  readonly limit: ResolvedLimitOptions;
  readonly limits: ReadonlyMap<string, readonly ResolvedPolicy[]>;
}

/** Finds the limits of each route from decorators and options, once for each route, and checks them at boot. */
export class RoutePlans {
  /** The names of the policies in the options that @SkipRateLimit may use: their keys, and the names of their own. */
  readonly #optionNames: readonly string[];
  /** Plans by class, handler and route. Classes that inherit a handler have limits of their own. */
  readonly #plans = new WeakMap<object, WeakMap<object, Map<string, Plan>>>();

  constructor(
    private readonly options: RouteLimits,
    private readonly keys: KeyResolver,
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
    const ofDefault = inStages(this.#defaultPolicies(type, handler), hasLastGuard(handler));
    const ofRoute = inStages(this.#ownPolicies(type, handler, route), hasLastGuard(handler));
    return {
      default: [...ofDefault.before, ...ofDefault.watching],
      before: [...ofRoute.before, ...ofRoute.watching],
      after: ofRoute.after,
      defaultAfter: ofDefault.after,
      watching: new Set([...ofDefault.watching, ...ofRoute.watching]),
    };
  }

  /** Returns the limits that a method has, with those that it would have under a global guard. */
  limitsOf(type: object, method: object): readonly ResolvedPolicy[] {
    // Outside of HTTP the policy `default` does not learn how calls end, so it is left out if it counts
    // outcomes.
    const byDefault = this.#defaultPolicies(type, method).filter(
      ({ count }) => count === 'attempt' || Reflect.hasMetadata(METHOD, method),
    );
    return [...byDefault, ...this.#ownPolicies(type, method, UNNAMED)];
  }

  /** Returns whether a function in a policy has moved a limit of the method behind the guards, and no `ask` says so. */
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
    // A bare @SkipRateLimit() on the class does not skip the limits on the method itself.
    const onlyClassSkips = skipped === true && ofMethod.length > 0 && skippedOn([handler]) !== true;
    const own = onlyClassSkips
      ? this.#policiesOf(ofMethod, route)
      : this.#policiesOf(entries, route, skipped);
    if (own.length > MAX_CHECKS)
      throw new SyncGuardConfigError(
        `${(type as Type).name}.${(handler as Method).name} has ${own.length} limits. A route may have at most ${MAX_CHECKS}.`,
        { hint: 'Remove a @RateLimit, or replace two policies by one with `temp` and `long`.' },
      );
    return own;
  }

  /**
   * Returns the policies of decorators. A policy without a name is named after the route. The second such policy of a route
   * is named `<route>#2`.
   */
  #policiesOf(
    entries: readonly RateLimitEntry[],
    route: string,
    skipped: true | ReadonlySet<string> = new Set(),
  ): ResolvedPolicy[] {
    let unnamed = 0;
    const inline = (policy: LimitPolicy): ResolvedPolicy => {
      const name = policy.name ?? (unnamed++ === 0 ? route : `${route}#${unnamed}`);
      return resolvePolicy(policy, { ...this.options.limit, name, isStatic: true });
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
   * Checks at boot that all policies and providers exist that decorators and options name, and that the decorators can
   * limit the methods they stand on.
   *
   * @throws SyncGuardConfigError with a code of docs/rate-limits.md, or the error of Nest if a provider does not exist
   */
  verify(modules: ModulesContainer, moduleRef: ModuleRef, warn: (message: string) => void): void {
    this.#verifyDefault(modules, moduleRef);
    const names = new SharedNames();
    for (const type of classesOf(modules)) {
      this.#verifyClass(type, moduleRef);
      this.#verifySharedNames(type, names);
    }
    for (const [key, policies] of this.options.limits)
      for (const policy of policies) {
        this.#verifyProviders(policy);
        // A policy of the options counts as used, because AbuseLimiterService may use it. A preset does not, so its
        // name is free for other policies.
        if (!Object.hasOwn(presets, key)) names.add(policy);
      }
    const { skipIf, user, address } = this.options.limit;
    for (const each of [skipIf, user, address])
      if (typeof each === 'function') this.keys.resolver<unknown>(each);
    this.#verifyAsk(modules, moduleRef, warn);
  }

  #verifyAsk(modules: ModulesContainer, moduleRef: ModuleRef, warn: (message: string) => void): void {
    const hasGlobalGuards = globalEnhancers(moduleRef)?.guards.some(isOtherGuard) ?? false;
    const kinds = new HandlerKinds(modules);
    const moved = classesOf(modules).flatMap((type) =>
      methodsOf(type)
        .filter((method) => hasGlobalGuards || hasOtherGuards(type) || hasOtherGuards(method))
        .filter((method) => kinds.of(method) === 'guarded' && this.#isMoved(type, method))
        .map((method) => `${type.name}.${method.name}`),
    );
    if (moved.length > 0)
      warn(
        `RATE_LIMIT_ASK: These routes have a policy with a function in \`keyBy\`, \`cost\`, \`limit\` or \`windowMs\`, so it is asked after the guards and does not count the calls that a guard refuses: ${[...new Set(moved)].join(', ')}. Set \`ask: 'before'\` in the policy to count them, or \`ask: 'after'\` to keep it so.`,
      );
  }

  /** Checks that RateLimitGuard is not bound to handlers that it would not limit, as there is no policy `default`. */
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

  /**
   * Checks that the names in the decorators on a class or method exist, and the providers of their policies. `names`
   * are those of the policies that `@RateLimit` has on the class and its methods.
   */
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
      if (typeof each === 'function') this.keys.resolver<unknown>(each);
  }

  #verifyMessageHandler(type: Type, method: Method): void {
    for (const policy of this.#ownPolicies(type, method, UNNAMED))
      if (isByAddress(policy) && typeof this.options.limit.address !== 'function')
        throw new SyncGuardConfigError(
          `The policy ${policy.name} limits the message handler ${type.name}.${method.name} by address, but a message has no address.`,
          {
            code: 'RATE_LIMIT_NO_KEY',
            hint: "Give the policy a `keyBy`: 'body.tenant' reads a field of the message, a function reads its context.",
          },
        );
  }
}

/**
 * Sorts policies by when they are asked. A policy that counts failures and is asked after the guards gets a watching
 * policy, which counts the calls that a guard refuses. A `limit` that is a function gets none, since the function may need
 * values that only guards find.
 */
function inStages(
  policies: readonly ResolvedPolicy[],
  isLastGuardBound: boolean,
): Record<'before' | 'after' | 'watching', readonly ResolvedPolicy[]> {
  // Without the last guard nothing would ask the policies that are to be asked after the guards.
  if (!isLastGuardBound) return { before: policies, after: [], watching: [] };
  const after = policies.filter(({ ask }) => ask === 'after');
  return {
    before: policies.filter(({ ask }) => ask === 'before'),
    after,
    watching: after
      .filter(({ count, dynamicLimit }) => count === 'failure' && !dynamicLimit)
      .map(watchingPolicy),
  };
}

/** Returns the policy that counts, by address and up to the same limit, the calls that a guard refuses. */
const watchingPolicy = (policy: ResolvedPolicy): ResolvedPolicy => ({
  ...policy,
  name: `${policy.name} guards`,
  keyBy: 'ip',
  cost: typeof policy.cost === 'number' ? policy.cost : 1,
  resetOnSuccess: false,
});

/** Returns whether a policy distinguishes clients only by their address. */
export const isByAddress = ({ keyBy }: Pick<ResolvedPolicy, 'keyBy'>): boolean =>
  [keyBy].flat().every((part) => part === 'ip' || part === 'route');

/** The name of a policy without one, while its route does not matter. */
const UNNAMED = '@RateLimit';

const isUnnamed = (name: string): boolean => name.split('#')[0] === UNNAMED;

const isFieldResolver = (method: Method): boolean =>
  Reflect.hasMetadata(FIELD_RESOLVER, method) || Reflect.hasMetadata(REFERENCE_RESOLVER, method);

/**
 * Checks that Nest asks guards and interceptors for a field resolver, which it does only if GraphQLModule is configured so. If
 * Nest asks neither, a limit on the class leaves the fields alone, and that is allowed. Guards without interceptors are not,
 * because the limits would never learn how a call ends.
 */
function verifyFieldResolver(type: Type, method: Method, moduleRef: ModuleRef): void {
  const isOwn = entriesOn(method).length > 0;
  for (const { fieldResolverEnhancers: enhancers = [] } of graphqlOptions(moduleRef)) {
    const asked = ['guards', 'interceptors'].filter((kind) => enhancers.includes(kind));
    if (asked.length === 2 || (asked.length === 0 && !isOwn)) continue;
    throw new SyncGuardConfigError(
      `@RateLimit on ${isOwn ? '' : 'the class of '}the field resolver ${type.name}.${method.name} cannot work, because Nest asks no ${asked.includes('guards') ? 'interceptors' : 'guards'} for fields of objects.`,
      {
        code: 'RATE_LIMIT_UNGUARDED_FIELD',
        hint: "Set `fieldResolverEnhancers: ['guards', 'interceptors']` in the options of GraphQLModule.",
      },
    );
  }
}

/** Returns the options of each GraphQLModule. */
function graphqlOptions(
  moduleRef: ModuleRef,
): readonly { readonly fieldResolverEnhancers?: readonly string[] }[] {
  try {
    return moduleRef.get(GRAPHQL_OPTIONS, { strict: false, each: true });
  } catch {
    // There is no GraphQLModule, so nothing calls the resolvers.
    return [];
  }
}

/** Returns the `@RateLimit`s of a class or method. An `override` on a class leaves out those of its bases. */
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

/** Returns whether a guard is RateLimitGuard or a subclass of it, even that of another copy of this package. */
const appliesDefault = (guard: unknown): boolean => {
  const type = typeof guard === 'function' ? guard : (guard as object | null | undefined)?.constructor;
  return type !== undefined && Reflect.hasMetadata(APPLIES_DEFAULT, type);
};

const noDefault = (where: string): SyncGuardConfigError =>
  new SyncGuardConfigError(
    `RateLimitGuard is bound ${where}. It applies the policy \`default\`, and there is none.`,
    {
      code: 'RATE_LIMIT_NO_DEFAULT',
      hint: 'Add the policy, as in `limits: { default: { limit: 100, windowMs: seconds(10) } }`, or unbind the guard. @RateLimit does not need it.',
    },
  );

const unknownName = (decorator: string, name: string, known: Iterable<string>): SyncGuardConfigError =>
  new SyncGuardConfigError(`${decorator}('${name}') names a policy that does not exist.`, {
    code: 'RATE_LIMIT_UNKNOWN_POLICY',
    hint: `Correct the name, or add the policy to the \`limits\` option. There are: ${[...known].join(', ')}.`,
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

/**
 * Returns a filter for the policies that a @SkipRateLimit does not skip. `key` is the key of the policies in the
 * options, if they are from there: their names may differ from it.
 */
const keptBy =
  (skipped: true | ReadonlySet<string>, key?: string) =>
  ({ name }: ResolvedPolicy): boolean =>
    skipped !== true && ![key ?? name, name, listName(name)].some((each) => skipped.has(each));

/** Returns the name of the list that a policy belongs to: `login` for `login#2`. A list is skipped by that name. */
const listName = (name: string): string => name.replace(/#\d+$/, '');

/** Returns the classes of an app's controllers and providers. */
const classesOf = (modules: ModulesContainer): readonly Type[] =>
  [...modules.values()]
    .flatMap(({ controllers, providers }) => [...controllers.values(), ...providers.values()])
    .map(({ metatype }) => metatype)
    .filter((type): type is Type => typeof type === 'function');
