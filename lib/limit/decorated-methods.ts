import type { Type } from '@nestjs/common';

/** Metadata of a prototype: which of its own methods our decorators stand on. */
const DECORATED = Symbol.for('syncguard:decorated-methods');

type Key = string | symbol;
export type Method = (...args: never[]) => unknown;

/** One of our decorators on a method, and how to find out whether it is still in force there. */
export interface Decoration {
  /** As users write it: `@RateLimit`. */
  readonly decorator: string;
  /** Whether a function that stands in the method's place carries all that the decorator has left on it. */
  isOn(method: object): boolean;
}

/**
 * Notes a decorator on the class itself, as decorators of others may replace the method later and lose what stands on
 * it. No list of all classes is kept: a file may be imported by an app that does not use its classes.
 */
export function noteDecoration(prototype: object, key: Key, decoration: Decoration): void {
  const noted = ownDecorations(prototype);
  const ofMethod = [...(noted.get(key) ?? []), decoration];
  Reflect.defineMetadata(DECORATED, new Map([...noted, [key, ofMethod]]), prototype);
}

/** A decorated method as a class has it: its own, an inherited one, or another in the place of that. */
export interface DecoratedMethod {
  readonly key: Key;
  readonly decorations: readonly Decoration[];
  /** The class that the decorators stand in. */
  readonly declaredBy: string;
  /** Whether a subclass has put a method without our decorators in its place. */
  readonly isOverridden: boolean;
}

/** The decorated methods of a class, those of its bases and mixins as well. */
export function decoratedMethodsOf(prototype: object): DecoratedMethod[] {
  const holders = new Map<Key, object>();
  const found = new Map<Key, DecoratedMethod>();
  for (const at of chainOf(prototype)) {
    for (const key of Reflect.ownKeys(at)) if (!holders.has(key)) holders.set(key, at);
    for (const [key, decorations] of ownDecorations(at))
      if (!found.has(key))
        found.set(key, {
          ...{ key, decorations },
          declaredBy: at.constructor.name,
          isOverridden: holders.get(key) !== at,
        });
  }
  return [...found.values()];
}

const ownDecorations = (prototype: object): ReadonlyMap<Key, readonly Decoration[]> =>
  (Reflect.getOwnMetadata(DECORATED, prototype) ?? new Map()) as ReadonlyMap<Key, readonly Decoration[]>;

/** A prototype and its bases, up to that of all objects. */
export function* chainOf(prototype: object | undefined): Generator<object> {
  for (
    let at: object | null = prototype ?? null;
    at && at !== Object.prototype;
    at = Object.getPrototypeOf(at) as object | null
  )
    yield at;
}

/** The methods of a class, those that it inherits as well unless it has put others in their place. */
export function methodsOf(type: Type): Method[] {
  const members = new Map<string, unknown>();
  for (const at of chainOf(type.prototype as object | undefined))
    for (const [name, { value }] of Object.entries<{ value?: unknown }>(Object.getOwnPropertyDescriptors(at)))
      if (name !== 'constructor' && !members.has(name)) members.set(name, value);
  return [...members.values()].filter((member): member is Method => typeof member === 'function');
}
