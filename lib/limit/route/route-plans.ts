import { hash } from 'node:crypto';
import type { Type } from '@nestjs/common';
import { SyncGuardConfigError } from '../../core/errors.js';
import type { Method } from './decorated-methods.js';
import { MAX_CHECKS } from '../limit.backend.js';
import type { ResolvedLimits } from '../limit.options.js';
import { nameWithoutShadow, type ResolvedPolicy, resolvePolicy } from '../limit.policy.js';
import type { LimitPolicy } from '../policy.types.js';
import { hasLastGuard } from './last-guard.js';
import { routeName } from './limited-call.js';
import { METHOD } from '../../transport/nest-metadata.js';
import { RATE_LIMITS, type RateLimitEntry, SKIPPED_LIMITS } from './rate-limit.metadata.js';
import type { Plan } from './call-visit.js';

export interface RouteLimits extends ResolvedLimits {
  /** The longest `Retry-After`. */
  readonly maxRetryAfterMs: number;
}

/** Finds the limits of each route from decorators and options, once for each route. */
export class RoutePlans {
  /** Plans by class, handler and route. Classes that inherit a handler have limits of their own. */
  readonly #plans = new WeakMap<object, WeakMap<object, Map<string, Plan>>>();

  constructor(private readonly options: RouteLimits) {}

  planOf(type: object, handler: object, route: string): Plan {
    let ofClass = this.#plans.get(type);
    if (!ofClass) this.#plans.set(type, (ofClass = new WeakMap<object, Map<string, Plan>>()));
    let plans = ofClass.get(handler);
    if (!plans) ofClass.set(handler, (plans = new Map<string, Plan>()));
    let plan = plans.get(route);
    if (!plan) plans.set(route, (plan = this.#plan(type, handler, routeName(route))));
    return plan;
  }

  #plan(type: object, handler: object, route: string): Plan {
    const ofDefault = inStages(this.#defaultPolicies(type, handler), hasLastGuard(handler));
    const ofRoute = inStages(this.ownPolicies(type, handler, route), hasLastGuard(handler));
    return {
      routeTag: hash('sha256', route, 'base64url').slice(0, 4),
      default: ofDefault.before,
      before: ofRoute.before,
      after: ofRoute.after,
      defaultAfter: ofDefault.after,
    };
  }

  /** Returns the limits that a method has, with those that it would have under a global guard. */
  limitsOf(type: object, method: object): readonly ResolvedPolicy[] {
    // Outside of HTTP the policy `default` does not learn how calls end.
    const byDefault = this.#defaultPolicies(type, method).filter(
      ({ count }) => count === 'attempt' || Reflect.hasMetadata(METHOD, method),
    );
    return [...byDefault, ...this.ownPolicies(type, method, UNNAMED)];
  }

  #defaultPolicies(type: object, method: object): readonly ResolvedPolicy[] {
    const isOverridden = [...entriesOn(method), ...entriesOn(type)].some(({ override }) => override);
    return isOverridden ? [] : this.#named('default', skippedOn([method, type]));
  }

  /** Returns the limits of the decorators on a method and its class. Those without a name are named after the route. */
  ownPolicies(type: object, handler: object, route: string): ResolvedPolicy[] {
    const ofMethod = entriesOn(handler);
    const entries = ofMethod.some(({ override }) => override) ? ofMethod : [...entriesOn(type), ...ofMethod];
    const skipped = skippedOn([handler, type]);
    // A bare @SkipRateLimit() on the class does not skip the limits on the method itself.
    const onlyClassSkips = skipped === true && ofMethod.length > 0 && skippedOn([handler]) !== true;
    const own = onlyClassSkips ? this.policiesOf(ofMethod, route) : this.policiesOf(entries, route, skipped);
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
  policiesOf(
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
      typeof policy === 'string' ? this.#named(policy, skipped) : policy.map(inline).filter(keptBy(skipped)),
    );
  }

  #named(key: string, skipped: true | ReadonlySet<string>): ResolvedPolicy[] {
    return (this.options.limits.get(key) ?? []).filter(keptBy(skipped, key));
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
): Record<'before' | 'after', readonly ResolvedPolicy[]> {
  // Without the last guard nothing would ask the policies that are to be asked after the guards.
  if (!isLastGuardBound) return { before: policies, after: [] };
  const after = policies.filter(({ ask }) => ask === 'after');
  const watched = after.filter(({ count, dynamicLimit }) => count === 'failure' && !dynamicLimit);
  return {
    before: [...policies.filter(({ ask }) => ask === 'before'), ...watched.map(watchingPolicy)],
    after,
  };
}

/** Returns the policy that counts, by address and up to the same limit, the calls that a guard refuses. */
const watchingPolicy = (policy: ResolvedPolicy): ResolvedPolicy => ({
  ...policy,
  name: `${policy.name} guards`,
  keyBy: 'ip',
  cost: typeof policy.cost === 'number' ? policy.cost : 1,
  judgedBy: 'guards',
  resetOnSuccess: false,
  isWatching: true,
});

/** The name of a policy without one, while its route does not matter. */
export const UNNAMED = '@RateLimit';

/** Returns the `@RateLimit`s of a class or method. An `override` on a class leaves out those of its bases. */
export function entriesOn(place: object): readonly RateLimitEntry[] {
  const entries = (Reflect.getMetadata(RATE_LIMITS, place) ?? []) as RateLimitEntry[];
  const overriding = entries.find(({ override }) => override)?.place;
  return overriding
    ? entries.slice(0, entries.findLastIndex((entry) => entry.place === overriding) + 1)
    : entries;
}

export function skippedOn(places: readonly object[]): true | ReadonlySet<string> {
  const skips = places.map(
    (place) => (Reflect.getMetadata(SKIPPED_LIMITS, place) ?? []) as true | readonly string[],
  );
  return skips.includes(true) || new Set(skips.flatMap((names) => (names === true ? [] : names)));
}

/**
 * Returns a filter for the policies that a @SkipRateLimit does not skip. `key` is the key of the policies in the
 * options, if they are from there: their names may differ from it.
 */
const keptBy =
  (skipped: true | ReadonlySet<string>, key?: string) =>
  ({ name }: ResolvedPolicy): boolean =>
    skipped !== true &&
    ![key ?? name, name, nameWithoutShadow(name), listName(name)].some((each) => skipped.has(each));

/** Returns the name of the list that a policy belongs to: `login` for `login#2`. A list is skipped by that name. */
export const listName = (name: string): string => nameWithoutShadow(name).replace(/#\d+$/, '');
