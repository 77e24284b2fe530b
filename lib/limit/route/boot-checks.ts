import type { Type } from '@nestjs/common';
import { ExternalContextCreator, type ModulesContainer } from '@nestjs/core';
import { SyncGuardConfigError } from '../../core/errors.js';
import {
  type DecoratedMethod,
  decoratedMethodsOf,
  type Decoration,
  isGuarded,
  methodsOf,
} from './decorated-methods.js';
import { GRAPHQL_OPTIONS } from '../../transport/nest-metadata.js';
import { RATE_LIMITS } from './rate-limit.metadata.js';

type Module = NonNullable<ReturnType<ModulesContainer['get']>>;
type InstanceWrapper = Module['providers'] extends Map<unknown, infer Wrapper> ? Wrapper : never;

/** A decorator that limits nothing, or may limit nothing. */
interface Finding {
  readonly code: 'RATE_LIMIT_LOST' | 'RATE_LIMIT_NO_ROUTE';
  /** Whether it is certain that the decorator limits nothing. Then it stops a strict boot. Otherwise it is a warning. */
  readonly fails: boolean;
  readonly message: string;
  readonly hint: string;
}

/** Metadata that does not make a method a handler, or makes it a handler that is called without guards. */
const UNGUARDED: readonly RegExp[] = [
  /^(design|self|optional|syncguard|scope):/,
  // Nest's own metadata of routes: guards, status, headers, version...
  /^__(guards|interceptors|pipes|exceptionFilters|httpCode|headers|redirect|renderTemplate|version|responsePassthrough|sse|sseOptions|routeArguments|customRouteArgs)__$/,
  /^(cache_module:|CACHE_MANAGER|THROTTLER:)/,
  /^swagger\//,
  // @nestjs/schedule, @nestjs/event-emitter
  /^SCHEDULER?_/,
  /^EVENT_LISTENER_METADATA$/,
  // @nestjs/bull and @nestjs/bullmq: processors, and listeners for the events of a queue
  /^bull(mq)?:/,
];

/** The names that apps use for their own metadata (`roles`, `is-public`), and those that Reflector.createDecorator makes. */
const PLAIN = /^[A-Za-z0-9][\w-]*$/;

/** Finds the decorators of ours that limit nothing, in the classes of one app. */
export class BootChecks {
  #isHosting: boolean | undefined;

  constructor(private readonly modules: ModulesContainer) {}

  /**
   * @param strict - whether a decorator that certainly limits nothing stops the boot. If false, there is only a warning.
   * @throws SyncGuardConfigError RATE_LIMIT_LOST if a decorated method was replaced by one without the limit.
   * RATE_LIMIT_NO_ROUTE if Nest asks no guards for it.
   */
  run(strict: boolean, warn: (message: string) => void): void {
    const findings = this.#findings();
    const failures = findings.filter(({ fails }) => strict && fails);
    for (const finding of findings)
      if (!failures.includes(finding)) warn(`${finding.code}: ${finding.message} ${finding.hint}`);
    const [first] = failures;
    if (!first) return;
    const hints = [...new Set(failures.map(({ hint }) => hint))].join(' ');
    throw new SyncGuardConfigError(failures.map(({ message }) => message).join(' '), {
      code: first.code,
      hint: `${hints} To start the app nevertheless, set \`limit: { strictBoot: false }\`, which makes this a warning.`,
    });
  }

  #findings(): Finding[] {
    // The keys are the messages, so that a class which several modules have is reported once.
    const findings = new Map<string, Finding>();
    const add = (finding: Finding | undefined): unknown => finding && findings.set(finding.message, finding);
    for (const { controllers, providers, injectables } of this.modules.values()) {
      for (const wrapper of [...controllers.values(), ...providers.values(), ...injectables.values()])
        for (const finding of this.#ofMethods(wrapper)) add(finding);
      for (const wrapper of providers.values()) add(this.#ofClass(wrapper));
    }
    return [...findings.values()];
  }

  #ofMethods(wrapper: InstanceWrapper): Finding[] {
    const prototype = prototypeOf(wrapper);
    if (!prototype) return [];
    return decoratedMethodsOf(prototype).flatMap((method) => {
      const called = calledBy(wrapper, prototype, method);
      return called === undefined ? [] : (this.#ofMethod(prototype.constructor.name, method, called) ?? []);
    });
  }

  #ofMethod(type: string, method: DecoratedMethod, called: object): Finding | undefined {
    const place = `${type}.${String(method.key)}`;
    const lost = method.decorations.find((decoration) => !decoration.isOn(called));
    if (!lost) return this.#unlessRouted(method.decorations[0]?.decorator ?? '@RateLimit', place, [called]);
    if (method.isOverridden)
      return this.#kindOf(called) === 'unguarded' ? undefined : overridden(place, method, lost);
    return {
      code: 'RATE_LIMIT_LOST',
      fails: true,
      message: `${lost.decorator} on ${place} has no effect. Another decorator, or code that ran later, has replaced the method by a function without the metadata of ${lost.decorator}.`,
      hint: `Put ${lost.decorator} above the decorator that replaces the method.`,
    };
  }

  #ofClass({ metatype: type }: InstanceWrapper): Finding | undefined {
    if (typeof type !== 'function' || !Reflect.hasMetadata(RATE_LIMITS, type)) return undefined;
    return this.#unlessRouted('@RateLimit', type.name, [...methodsOf(type as Type).values()]);
  }

  /** Reports a decorator if Nest asks guards for none of the methods that it limits. */
  #unlessRouted(decorator: string, place: string, methods: readonly object[]): Finding | undefined {
    const kinds = methods.map((method) => this.#kindOf(method));
    if (kinds.includes('guarded')) return undefined;
    const fails = !kinds.includes('foreign');
    return {
      code: 'RATE_LIMIT_NO_ROUTE',
      fails,
      message: fails
        ? `${decorator} on ${place} has no effect. Nest asks guards only before routes, message handlers and resolvers.`
        : `${decorator} on ${place} may have no effect. Another framework calls it, and may not ask guards first.`,
      hint: 'Move the decorator to the route, or call AbuseLimiterService in the method.',
    };
  }

  /** `foreign`: another framework calls the method. It may ask guards or not. */
  #kindOf(method: object): 'guarded' | 'foreign' | 'unguarded' {
    if (isGuarded(method)) return 'guarded';
    const keys = Reflect.getMetadataKeys(method) as (string | symbol)[];
    return keys.some((key) => this.#isForeign(key)) ? 'foreign' : 'unguarded';
  }

  #isForeign(key: string | symbol): boolean {
    const name = typeof key === 'symbol' ? (key.description ?? '') : key;
    if (UNGUARDED.some((known) => known.test(name))) return false;
    // A plain name is metadata of the app itself, unless the app has a framework that could have chosen that name.
    if (typeof key === 'string' && PLAIN.test(key)) return (this.#isHosting ??= this.#hostsFrameworks());
    return true;
  }

  /**
   * Returns whether a framework other than GraphQL has Nest's ExternalContextCreator injected, which makes handlers that ask
   * guards. Frameworks of bots do so.
   */
  #hostsFrameworks(): boolean {
    return [...this.modules.values()]
      .filter(({ providers }) => !providers.has(GRAPHQL_OPTIONS))
      .flatMap(({ providers }) => [...providers.values()])
      .some(({ metatype, inject }) => [...(inject ?? []), ...dependenciesOf(metatype)].some(isHandlerMaker));
  }
}

const overridden = (place: string, { declaredBy, key }: DecoratedMethod, lost: Decoration): Finding => ({
  code: 'RATE_LIMIT_LOST',
  fails: false,
  message: `${place} overrides ${declaredBy}.${String(key)}, but does not have its ${lost.decorator}.`,
  hint: `Decorate the override as well. If it is to have no limits, put @SkipRateLimit() on it.`,
});

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

const isHandlerMaker = (token: unknown): boolean =>
  token === ExternalContextCreator || (token as { token?: unknown } | null)?.token === ExternalContextCreator;

/** Returns the tokens injected into a class: by the types of its constructor, by `@Inject`, and into its properties. */
function dependenciesOf(type: unknown): unknown[] {
  if (typeof type !== 'function') return [];
  const list = (key: string) =>
    (Reflect.getMetadata(key, type) ?? []) as { param?: unknown; type?: unknown }[];
  const named = [...list('self:paramtypes'), ...list('self:properties_metadata')];
  return [...list('design:paramtypes'), ...named.map(({ param, type: token }) => param ?? token)];
}
