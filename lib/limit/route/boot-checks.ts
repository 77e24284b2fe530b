import type { Type } from '@nestjs/common';
import type { ModulesContainer } from '@nestjs/core';
import { SyncGuardConfigError } from '../../core/errors.js';
import { type DecoratedMethod, decoratedMethodsOf, type Decoration, methodsOf } from './decorated-methods.js';
import { HandlerKinds } from './handler-kind.js';
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

/** Finds the decorators of ours that limit nothing, in the classes of one app. */
export class BootChecks {
  readonly #kinds: HandlerKinds;

  constructor(private readonly modules: ModulesContainer) {
    this.#kinds = new HandlerKinds(modules);
  }

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
    if (!lost) return this.#unlessRouted(place, method.decorations[0]?.decorator, called);
    if (method.isOverridden)
      return this.#kinds.of(called) === 'unguarded' ? undefined : overridden(place, method, lost);
    return {
      code: 'RATE_LIMIT_LOST',
      fails: true,
      message: `${lost.decorator} on ${place} has no effect. Another decorator, or code that ran later, has replaced the method by a function without the metadata of ${lost.decorator}.`,
      hint: `Put ${lost.decorator} above the decorator that replaces the method.`,
    };
  }

  #unlessRouted(place: string, decorator = '@RateLimit', called: object): Finding | undefined {
    const kind = this.#kinds.of(called);
    return kind === 'guarded' ? undefined : noRoute(decorator, place, kind === 'unguarded');
  }

  /** Reports a limit on a class if Nest asks guards for none of its methods. */
  #ofClass({ metatype: type }: InstanceWrapper): Finding | undefined {
    if (typeof type !== 'function' || !Reflect.hasMetadata(RATE_LIMITS, type)) return undefined;
    const kinds = [...methodsOf(type as Type).values()].map((method) => this.#kinds.of(method));
    if (kinds.includes('guarded')) return undefined;
    return noRoute('@RateLimit', type.name, !kinds.includes('foreign'));
  }
}

const overridden = (place: string, { declaredBy, key }: DecoratedMethod, lost: Decoration): Finding => ({
  code: 'RATE_LIMIT_LOST',
  fails: false,
  message: `${place} overrides ${declaredBy}.${String(key)}, but does not have its ${lost.decorator}.`,
  hint: `Decorate the override as well. If it is to have no limits, put @SkipRateLimit() on it.`,
});

const noRoute = (decorator: string, place: string, fails: boolean): Finding => ({
  code: 'RATE_LIMIT_NO_ROUTE',
  fails,
  message: fails
    ? `${decorator} on ${place} has no effect. Nest asks guards only before routes, message handlers and resolvers.`
    : `${decorator} on ${place} may have no effect. Another framework calls it, and may not ask guards first.`,
  hint: 'Move the decorator to the route, or call AbuseLimiterService in the method.',
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
