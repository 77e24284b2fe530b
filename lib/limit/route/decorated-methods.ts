import type { Type } from '@nestjs/common';
import type { ModulesContainer } from '@nestjs/core';
import { FIELD_RESOLVER, PATTERN, REFERENCE_RESOLVER, RESOLVER } from '../../transport/nest-metadata.js';

/** Metadata of a prototype: our decorators on its own methods. */
const DECORATED = Symbol.for('syncguard:decorated-methods');

type Key = string | symbol;
export type Method = (...args: never[]) => unknown;

/** One of our decorators on a method. */
export interface Decoration {
  /** The decorator as users write it: `@RateLimit`. */
  readonly decorator: string;
  /** Returns whether a function, perhaps a replacement of the method, has all metadata that the decorator has set. */
  isOn(method: object): boolean;
}

/**
 * Records, as metadata of the class, that a method is decorated. Metadata of the method could be lost, because a
 * decorator of another package may replace the method later. A list of all decorated classes would have too many,
 * because an app may import a file without using its classes.
 */
export function noteDecoration(prototype: object, key: Key, decoration: Decoration): void {
  const noted = ownDecorations(prototype);
  const ofMethod = [...(noted.get(key) ?? []), decoration];
  Reflect.defineMetadata(DECORATED, new Map([...noted, [key, ofMethod]]), prototype);
}

/** A decorated method, seen from a class that has it, inherits it or overrides it. */
export interface DecoratedMethod {
  readonly key: Key;
  readonly decorations: readonly Decoration[];
  /** The name of the class that has the decorators. */
  readonly declaredBy: string;
  /** Whether a subclass has overridden it with a method that does not have our decorators. */
  readonly isOverridden: boolean;
}

/** Returns the decorated methods of a class, with those of its bases and mixins. */
export function decoratedMethodsOf(prototype: object): DecoratedMethod[] {
  const found = new Map<Key, DecoratedMethod>();
  for (const at of chainOf(prototype))
    for (const [key, decorations] of ownDecorations(at)) {
      const isOverridden = ownerOf(prototype, key) !== at;
      if (!found.has(key))
        found.set(key, { key, decorations, declaredBy: at.constructor.name, isOverridden });
    }
  return [...found.values()];
}

const ownDecorations = (prototype: object): ReadonlyMap<Key, readonly Decoration[]> =>
  (Reflect.getOwnMetadata(DECORATED, prototype) ?? new Map()) as ReadonlyMap<Key, readonly Decoration[]>;

/** Returns a prototype and those it inherits from, except for `Object.prototype`. */
const chainOf = (at: object | null | undefined): object[] =>
  !at || at === Object.prototype ? [] : [at, ...chainOf(Object.getPrototypeOf(at) as object | null)];

/** Returns the prototype that has a method itself: the given one, or one that it inherits from. */
export const ownerOf = (prototype: object, key: Key): object | undefined =>
  chainOf(prototype).find((at) => Object.hasOwn(at, key));

/** Returns the methods of a class by their names, with those that it inherits and does not override. */
export function methodsOf(type: Type): ReadonlyMap<string, Method> {
  const members = new Map<string, unknown>([['constructor', undefined]]);
  for (const at of chainOf(type.prototype as object | undefined))
    for (const [name, { value }] of Object.entries<{ value?: unknown }>(Object.getOwnPropertyDescriptors(at)))
      if (!members.has(name)) members.set(name, value);
  return new Map(
    [...members].filter((member): member is [string, Method] => typeof member[1] === 'function'),
  );
}

/** Returns the classes of an app's controllers and providers. */
export const classesOf = (modules: ModulesContainer): readonly Type[] =>
  [...modules.values()]
    .flatMap(({ controllers, providers }) => [...controllers.values(), ...providers.values()])
    .map(({ metatype }) => metatype)
    .filter((type): type is Type => typeof type === 'function');

/** Metadata of the methods that Nest asks guards for: routes, messages of gateways and microservices, fields of GraphQL. */
const GUARDED: readonly string[] = [
  'path',
  'websockets:message_mapping',
  PATTERN,
  RESOLVER,
  FIELD_RESOLVER,
  REFERENCE_RESOLVER,
];

/** Returns whether Nest calls the method for a request, a message or a field, and asks guards first. */
export const isGuarded = (method: object): boolean => GUARDED.some((key) => Reflect.hasMetadata(key, method));
