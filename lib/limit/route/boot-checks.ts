import type { Type } from '@nestjs/common';
import type { ModulesContainer } from '@nestjs/core';
import { SyncGuardConfigError } from '../../core/errors.js';
import { type DecoratedMethod, decoratedMethodsOf, isGuarded, methodsOf } from './decorated-methods.js';
import { RATE_LIMITS } from './rate-limit.metadata.js';

type Module = NonNullable<ReturnType<ModulesContainer['get']>>;
type InstanceWrapper = Module['providers'] extends Map<unknown, infer Wrapper> ? Wrapper : never;

/** A decorator that limits nothing. */
interface Finding {
  readonly code: 'RATE_LIMIT_LOST' | 'RATE_LIMIT_NO_ROUTE';
  readonly message: string;
  readonly hint: string;
}

/** Metadata of TypeScript, of ours, and that by which Nest itself describes a method: guards, status, headers... */
const KNOWN = /^(design:|syncguard:|__\w+__$)/;

/** Finds the decorators of ours that limit nothing, in the classes of one app. */
export class BootChecks {
  /** By their messages, so that a class which several modules have is reported once. */
  readonly #failures = new Map<string, Finding>();
  readonly #overrides = new Set<string>();
  /** Decorators on what another framework may call. Whether it asks guards first is not known. */
  readonly #doubtful = new Set<string>();

  constructor(private readonly modules: ModulesContainer) {}

  /**
   * @param strict - whether a decorator that limits nothing stops the boot. If false, there is only a warning.
   * @throws SyncGuardConfigError RATE_LIMIT_LOST if a decorated method was replaced by one without the limit.
   * RATE_LIMIT_NO_ROUTE if Nest asks no guards for it.
   */
  run(strict: boolean, warn: (message: string) => void): void {
    for (const { controllers, providers, injectables } of this.modules.values()) {
      for (const wrapper of [...controllers.values(), ...providers.values(), ...injectables.values()])
        this.#checkMethods(wrapper);
      for (const { metatype: type } of providers.values())
        if (typeof type === 'function' && Reflect.hasMetadata(RATE_LIMITS, type))
          this.#checkRouted('@RateLimit', type.name, [...methodsOf(type as Type).values()]);
    }
    this.#overrides.forEach(warn);
    if (this.#doubtful.size > 0)
      warn(
        `RATE_LIMIT_NO_ROUTE: These may have no effect: ${[...this.#doubtful].join(', ')}. Nest asks guards only before routes, message handlers and resolvers. Look whether what calls these methods asks guards first. If it does not, as schedulers, queues and event emitters, move the decorator to the route, or call AbuseLimiterService in the method.`,
      );
    const failures = [...this.#failures.values()];
    if (!strict) for (const { code, message, hint } of failures) warn(`${code}: ${message} ${hint}`);
    const [first] = failures;
    if (!strict || !first) return;
    const hints = [...new Set(failures.map(({ hint }) => hint))].join(' ');
    throw new SyncGuardConfigError(failures.map(({ message }) => message).join(' '), {
      code: first.code,
      hint: `${hints} To start the app nevertheless, set \`limit: { strictBoot: false }\`, which makes this a warning.`,
    });
  }

  #checkMethods(wrapper: InstanceWrapper): void {
    const prototype = prototypeOf(wrapper);
    if (!prototype) return;
    for (const method of decoratedMethodsOf(prototype)) {
      const called = calledBy(wrapper, prototype, method);
      if (called) this.#checkMethod(`${prototype.constructor.name}.${String(method.key)}`, method, called);
    }
  }

  #checkMethod(place: string, method: DecoratedMethod, called: object): void {
    const lost = method.decorations.find((decoration) => !decoration.isOn(called));
    if (!lost) return this.#checkRouted(method.decorations[0]?.decorator ?? '@RateLimit', place, [called]);
    const { decorator } = lost;
    if (!method.isOverridden)
      return this.#fail({
        code: 'RATE_LIMIT_LOST',
        message: `${decorator} on ${place} has no effect. Another decorator, or code that ran later, has replaced the method by a function without the metadata of ${decorator}.`,
        hint: `Put ${decorator} above the decorator that replaces the method.`,
      });
    if (isGuarded(called) || hasStrangeMetadata(called))
      this.#overrides.add(
        `RATE_LIMIT_LOST: ${place} overrides ${method.declaredBy}.${String(method.key)}, but does not have its ${decorator}. Decorate the override as well. If it is to have no limits, put @SkipRateLimit() on it.`,
      );
  }

  /** Reports a decorator if Nest asks guards for none of the methods that it limits. */
  #checkRouted(decorator: string, place: string, methods: readonly object[]): void {
    if (methods.some(isGuarded)) return;
    if (methods.some(hasStrangeMetadata)) this.#doubtful.add(`${decorator} on ${place}`);
    else
      this.#fail({
        code: 'RATE_LIMIT_NO_ROUTE',
        message: `${decorator} on ${place} has no effect. Nest asks guards only before routes, message handlers and resolvers.`,
        hint: 'Move the decorator to the route, or call AbuseLimiterService in the method.',
      });
  }

  #fail(finding: Finding): void {
    this.#failures.set(finding.message, finding);
  }
}

/** Returns whether a method has metadata of another package or of the app, which may make it a handler. */
const hasStrangeMetadata = (method: object): boolean =>
  (Reflect.getMetadataKeys(method) as (string | symbol)[]).some(
    (key) => !KNOWN.test(typeof key === 'symbol' ? (key.description ?? '') : key),
  );

/**
 * Returns the prototype with the methods of a provider, or undefined if it has none. A `useValue` provider may be anything,
 * even a mock or a proxy.
 */
function prototypeOf({ metatype, instance, isNotMetatype }: InstanceWrapper): object | undefined {
  if (!isNotMetatype) return (metatype as Type | null)?.prototype as object | undefined;
  try {
    const prototype = Object.getPrototypeOf(instance) as object | null;
    return typeof prototype?.constructor === 'function' ? prototype : undefined;
  } catch {
    return undefined; // Some proxies work only within a request. They are not instances with handlers.
  }
}

/**
 * Returns the function that Nest calls for a method. The constructor may have put another function on the instance. Returns
 * undefined if the instance no longer has a member of that name.
 */
function calledBy(
  { instance, isNotMetatype }: InstanceWrapper,
  prototype: object,
  { key }: DecoratedMethod,
): object | undefined {
  const holder = (isNotMetatype ? undefined : (instance as object | undefined)) ?? prototype;
  if (!(key in holder)) return undefined;
  // A member that is not a function carries no metadata, so its decorators count as lost. The empty object stands for
  // such a member.
  const called = (holder as Record<string | symbol, unknown>)[key];
  return typeof called === 'function' ? called : {};
}
