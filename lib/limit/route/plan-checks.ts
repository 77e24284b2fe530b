import { isDeepStrictEqual } from 'node:util';
import type { Type } from '@nestjs/common';
import type { ModuleRef } from '@nestjs/core';
import { SyncGuardConfigError } from '../../core/errors.js';
import { globalEnhancers } from '../../transport/global-settings.js';
import { longestWindowMs } from '../limit.backend.js';
import { isByAddress, isByUser } from '../limit.key-by.js';
import { type ResolvedPolicy, shortWindowWarning } from '../limit.policy.js';
import { presets } from '../presets.js';
import { isGuarded, type Method, methodsOf } from './decorated-methods.js';
import type { KeyResolver } from './key-resolver.js';
import { graphqlOptions } from './graphql-options.js';
import { appliesDefault, guardsOn, isOtherGuard } from './last-guard.js';
import { FIELD_RESOLVER, PATTERN, REFERENCE_RESOLVER } from '../../transport/nest-metadata.js';
import { entriesOn, listName, type RouteLimits, type RoutePlans, skippedOn, UNNAMED } from './route-plans.js';

/**
 * Checks at boot that all policies and providers exist that decorators and options name, and that the decorators can
 * limit the methods they stand on.
 */
export class PlanChecks {
  /** The names of the policies in the options that @SkipRateLimit may use: their keys, and the names of their own. */
  readonly #optionNames: readonly string[];
  /** All policies, those of the options and those of decorators. */
  readonly #policies: ResolvedPolicy[] = [];
  /** Policies by what those share that count together: the name, and the algorithm. */
  readonly #shared = new Map<string, ResolvedPolicy>();

  constructor(
    private readonly options: RouteLimits,
    private readonly plans: RoutePlans,
    private readonly keys: KeyResolver,
    private readonly types: readonly Type[],
    private readonly moduleRef: ModuleRef,
  ) {
    this.#optionNames = [...options.limits].flatMap(([key, policies]) => [
      key,
      ...policies.flatMap(({ name }) => [name, listName(name)]),
    ]);
  }

  /** @throws SyncGuardConfigError with a code of docs/rate-limits.md, or the error of Nest if a provider does not exist */
  run(warn: (message: string) => void): void {
    const { types } = this;
    const guards = globalEnhancers(this.moduleRef)?.guards ?? [];
    if (!this.options.limits.has('default')) this.#verifyNoDefault(types, guards);
    for (const type of types) this.#verifyClass(type);
    for (const [key, policies] of this.options.limits)
      for (const policy of policies) {
        this.#verifyProviders(policy);
        // A policy of the options counts as used, because AbuseLimiterService may use it. A preset does not, so its
        // name is free for other policies.
        if (!Object.hasOwn(presets, key)) this.#verifyWindow(policy);
      }
    const { skipIf, user, address } = this.options.limit;
    for (const each of [skipIf, user, address])
      if (typeof each === 'function') this.keys.resolver<unknown>(each);
    const warning = shortWindowWarning(this.#policies);
    if (warning) warn(warning);
    this.#verifyAsk(types, guards.some(isOtherGuard), warn);
  }

  #verifyAsk(types: readonly Type[], hasGlobalGuards: boolean, warn: (message: string) => void): void {
    const moved = types.flatMap((type) =>
      [...methodsOf(type).values()]
        .filter((method) => hasGlobalGuards || [type, method].flatMap(guardsOn).some(isOtherGuard))
        .filter((method) => isGuarded(method) && this.plans.limitsOf(type, method).some(isMoved))
        .map((method) => `${type.name}.${method.name}`),
    );
    if (moved.length > 0)
      warn(
        `RATE_LIMIT_ASK: These routes have a policy with a function in \`keyBy\`, \`cost\`, \`limit\` or \`windowMs\`, so it is asked after the guards and does not count the calls that a guard refuses: ${[...new Set(moved)].join(', ')}. Set \`ask: 'before'\` in the policy to count them, or \`ask: 'after'\` to keep it so.`,
      );
  }

  /** Checks that RateLimitGuard is not bound to handlers that it would not limit, as there is no policy `default`. */
  #verifyNoDefault(types: readonly Type[], globalGuards: readonly unknown[]): void {
    if (globalGuards.some(appliesDefault)) throw noDefault('to all handlers');
    for (const type of types)
      for (const method of methodsOf(type).values()) {
        const isBound = [type, method].flatMap(guardsOn).some(appliesDefault);
        const isLimited = [type, method].flatMap(entriesOn).length > 0;
        if (isBound && !isLimited && skippedOn([method, type]) !== true && isGuarded(method))
          throw noDefault(`to ${type.name}.${method.name}, which has no limits of its own`);
      }
  }

  #verifyClass(type: Type): void {
    const methods = [...methodsOf(type).values()];
    const policies = [type, ...methods].flatMap(entriesOn).map(({ policy }) => policy);
    const names = policies.flatMap((each) =>
      typeof each === 'string' ? [] : each.flatMap(({ name }) => name ?? []),
    );
    this.#verifyNames(type, names);
    for (const method of methods) {
      this.#verifyNames(method, names);
      const own = this.plans.ownPolicies(type, method, UNNAMED);
      if (Reflect.hasMetadata(PATTERN, method)) this.#verifyMessageHandler(type, method, own);
      if (isFieldResolver(method) && own.length > 0) verifyFieldResolver(type, method, this.moduleRef);
      const named = own.filter(({ name }) => listName(name) !== UNNAMED);
      for (const policy of named) this.#verifyWindow(policy);
      verifyRoute(named);
    }
  }

  /**
   * Checks that policies of the same name have the same window. The shorter one would remove attempts that the longer one
   * still counts.
   */
  #verifyWindow(policy: ResolvedPolicy): void {
    const shared = `${policy.algorithm} ${policy.name}`;
    const known = this.#shared.get(shared) ?? policy;
    const [one, other] = [known, policy].map(({ rules }) => longestWindowMs(rules));
    if (one !== other) throw clash(policy, `have windows of ${one} and of ${other} ms`);
    this.#shared.set(shared, policy);
  }

  /** @param names - those of the policies that `@RateLimit` has on the class and its methods */
  #verifyNames(place: object, names: readonly string[]): void {
    const entries = entriesOn(place);
    for (const { policy } of entries)
      if (typeof policy === 'string' && !this.options.limits.has(policy))
        throw unknownName('@RateLimit', policy, this.options.limits.keys());
    const known = new Set(['default', ...names, ...this.#optionNames]);
    const skipped = skippedOn([place]);
    for (const name of skipped === true ? [] : skipped)
      if (!known.has(name)) throw unknownName('@SkipRateLimit', name, known);
    for (const policy of this.plans.policiesOf(entries, UNNAMED)) this.#verifyProviders(policy);
  }

  #verifyProviders(policy: ResolvedPolicy): void {
    this.#policies.push(policy);
    const { keyBy, cost, dynamicLimit, dynamicWindow } = policy;
    for (const each of [keyBy, cost, dynamicLimit, dynamicWindow].flat())
      if (typeof each === 'function') this.keys.resolver<unknown>(each);
  }

  #verifyMessageHandler(type: Type, method: Method, own: readonly ResolvedPolicy[]): void {
    for (const policy of own)
      if (isByAddress(policy.keyBy) && typeof this.options.limit.address !== 'function')
        throw new SyncGuardConfigError(
          `The policy ${policy.name} limits the message handler ${type.name}.${method.name} by address, but a message has no address.`,
          {
            code: 'RATE_LIMIT_NO_KEY',
            hint: "Give the policy a `keyBy`: 'body.tenant' reads a field of the message, a function reads its context.",
          },
        );
  }
}

/** Returns whether a function in a policy has moved it behind the guards, and no `ask` says so. */
const isMoved = ({ ask, isAskGiven, keyBy, count, dynamicLimit }: ResolvedPolicy): boolean =>
  ask === 'after' && !isAskGiven && !isByUser(keyBy) && (count !== 'failure' || dynamicLimit !== undefined);

/** Checks that no two policies of one route would take the other's count of a call for their own. */
function verifyRoute(policies: readonly ResolvedPolicy[]): void {
  for (const [i, policy] of policies.entries())
    if (policies.slice(0, i).some((other) => isTakenFor(other, policy)))
      throw clash(policy, 'count by the same key on one route');
}

/** Two equal policies count once, since a class and its method may have the same limit. */
const isTakenFor = (one: ResolvedPolicy, other: ResolvedPolicy): boolean =>
  one.name === other.name &&
  isDeepStrictEqual([one.keyBy].flat(), [other.keyBy].flat()) &&
  (one.count !== other.count ||
    one.dynamicLimit !== other.dynamicLimit ||
    !isDeepStrictEqual(one.rules, other.rules));

const clash = ({ name }: ResolvedPolicy, what: string): SyncGuardConfigError =>
  new SyncGuardConfigError(`Two policies named ${name} ${what}.`, {
    code: 'RATE_LIMIT_NAME',
    hint: 'Policies of the same name count together. Give each a name of its own, or use one policy with `temp` and `long`.',
  });

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

const noDefault = (where: string): SyncGuardConfigError =>
  new SyncGuardConfigError(
    `RateLimitGuard is bound ${where}. It applies the policy \`default\`, and there is none.`,
    {
      code: 'RATE_LIMIT_NO_DEFAULT',
      hint: 'Add the policy, as in `limits: { default: { limit: 100, windowMs: seconds(10) } }`, or unbind the guard. @RateLimit does not need it.',
    },
  );

export const unknownName = (decorator: string, name: string, known: Iterable<string>): SyncGuardConfigError =>
  new SyncGuardConfigError(`${decorator}('${name}') names a policy that does not exist.`, {
    code: 'RATE_LIMIT_UNKNOWN_POLICY',
    hint: `Correct the name, or add the policy to the \`limits\` option. There are: ${[...known].join(', ')}.`,
  });
