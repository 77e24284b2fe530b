import type { Type } from '@nestjs/common';
import type { ModulesContainer } from '@nestjs/core';
import { SyncGuardConfigError } from '../syncguard.errors.js';
import { type DecoratedMethod, decoratedMethodsOf, type Decoration, methodsOf } from './decorated-methods.js';
import { HandlerKinds } from './handler-kind.js';
import { RATE_LIMITS } from './rate-limit.metadata.js';

type Module = NonNullable<ReturnType<ModulesContainer['get']>>;
type InstanceWrapper = Module['providers'] extends Map<unknown, infer Wrapper> ? Wrapper : never;

/** A decorator that does not do what it says. */
interface Finding {
  readonly code: 'RATE_LIMIT_LOST' | 'RATE_LIMIT_NO_ROUTE';
  /** Whether the app must not boot: nobody could say that it is protected. */
  readonly fails: boolean;
  readonly message: string;
  readonly hint: string;
}

/** Finds decorators of ours that limit nothing, in the classes of one app. */
export class BootChecks {
  readonly #kinds: HandlerKinds;

  constructor(private readonly modules: ModulesContainer) {
    this.#kinds = new HandlerKinds(modules);
  }

  /**
   * @param strict - whether what limits nothing fails the boot, or is warned of only
   * @throws SyncGuardConfigError RATE_LIMIT_LOST or RATE_LIMIT_NO_ROUTE
   */
  run(strict: boolean, warn: (message: string) => void): void {
    const findings = this.#findings();
    const failures = findings.filter(({ fails }) => strict && fails);
    for (const finding of findings)
      if (!failures.includes(finding)) warn(`${finding.code}: ${finding.message} ${finding.hint}`);
    const [first, ...others] = failures;
    if (!first) return;
    throw new SyncGuardConfigError([first, ...others].map(({ message }) => message).join(' '), {
      code: first.code,
      hint: `${first.hint} To start nevertheless: \`limit: { strictBoot: false }\` makes a warning of it.`,
    });
  }

  #findings(): Finding[] {
    // By text: a class that several modules have is told of once.
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
      message: `${lost.decorator} on ${place} is lost: another decorator has put a function of its own in the place of the method, without what ${lost.decorator} had left on it.`,
      hint: `Put ${lost.decorator} above that decorator.`,
    };
  }

  #unlessRouted(place: string, decorator = '@RateLimit', called: object): Finding | undefined {
    const kind = this.#kinds.of(called);
    return kind === 'guarded' ? undefined : noRoute(decorator, place, kind === 'unguarded');
  }

  /** A limit of a class without a single handler; of controllers Nest may say what they lack. */
  #ofClass({ metatype: type }: InstanceWrapper): Finding | undefined {
    if (typeof type !== 'function' || !Reflect.hasMetadata(RATE_LIMITS, type)) return undefined;
    const kinds = methodsOf(type as Type).map((method) => this.#kinds.of(method));
    if (kinds.includes('guarded')) return undefined;
    return noRoute('@RateLimit', type.name, !kinds.includes('foreign'));
  }
}

const overridden = (place: string, { declaredBy, key }: DecoratedMethod, lost: Decoration): Finding => ({
  code: 'RATE_LIMIT_LOST',
  fails: false,
  message: `${place} overrides ${declaredBy}.${String(key)} without its ${lost.decorator}.`,
  hint: `Decorate the override as well; @SkipRateLimit() on it says that it has no limits on purpose.`,
});

const noRoute = (decorator: string, place: string, fails: boolean): Finding => ({
  code: 'RATE_LIMIT_NO_ROUTE',
  fails,
  message: fails
    ? `${decorator} stands on ${place}, which no route, message or field of GraphQL leads to: Nest asks no guards there, so it does nothing.`
    : `${decorator} stands on ${place}, which another framework calls: whether it asks guards is not known.`,
  hint: 'Move it to the route, or use AbuseLimiterService in the method.',
});

/** The class of a provider, also of an instance that the app has made: it may be anything, a mock or a proxy too. */
function prototypeOf({ metatype, instance, isNotMetatype }: InstanceWrapper): object | undefined {
  if (!isNotMetatype) return (metatype as Type | null)?.prototype as object | undefined;
  try {
    const prototype = Object.getPrototypeOf(instance) as object | null;
    return typeof prototype?.constructor === 'function' ? prototype : undefined;
  } catch {
    return undefined; // A proxy that can only be used within a request: it is no class of handlers.
  }
}

/** What Nest calls: what the instance has, as a constructor may bind it; undefined if there is no such member any more. */
function calledBy(
  { instance, isNotMetatype }: InstanceWrapper,
  prototype: object,
  { key }: DecoratedMethod,
): object | undefined {
  const holder = (isNotMetatype ? undefined : (instance as object | undefined)) ?? prototype;
  if (!(key in holder)) return undefined;
  // What is no function is none of ours, and carries nothing.
  const called = (holder as Record<string | symbol, unknown>)[key];
  return typeof called === 'function' ? called : {};
}
