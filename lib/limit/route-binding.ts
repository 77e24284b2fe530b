import type { CanActivate } from '@nestjs/common';
import type { ModulesContainer } from '@nestjs/core';
import { noteEntry } from './handler-entry.js';
import { LAST_GUARD, RateLimitGuard, RouteLimitGuard } from './rate-limit.guard.js';
import { OUTCOME_INTERCEPTOR } from './rate-limit.interceptor.js';
import {
  FIELD_RESOLVER,
  GUARDS,
  INTERCEPTORS,
  MESSAGE,
  METHOD,
  PATTERN,
  REFERENCE_RESOLVER,
  RESOLVER,
  SSE,
} from './rate-limit.metadata.js';

/** What routes are bound by: the limits of a method, also those of `default`. */
interface Limits {
  limitsOf(type: object, method: object): readonly { readonly ask: string; readonly count: string }[];
}

/**
 * Binds to each handler what its limits need, and nothing to the others: the guard that comes last, and what tells how
 * a call ended. It runs before Nest looks at any handler, after all decorators have been.
 */
export function bindRoutes(modules: ModulesContainer, limits: Limits): void {
  for (const { controllers, providers } of modules.values())
    for (const { metatype } of [...controllers.values(), ...providers.values()])
      if (typeof metatype === 'function') bindClass(metatype as unknown as Handlers, limits);
}

interface Handlers {
  readonly prototype: Record<string | symbol, unknown> | undefined;
}

function bindClass(type: Handlers, limits: Limits): void {
  for (const key of keysOf(type.prototype)) {
    const method = type.prototype?.[key];
    if (typeof method !== 'function' || !isRouted(method)) continue;
    const policies = limits.limitsOf(type, method);
    // Never taken away: a subclass, or another app, may have more limits on the same method.
    if (policies.some(({ ask }) => ask === 'after')) putLast(GUARDS, LAST_GUARD, method);
    if (policies.some(({ count }) => count !== 'attempt')) bindOutcome(type, key);
  }
}

function bindOutcome(type: Handlers, key: string | symbol): void {
  noteEntry(type as { prototype: object }, key);
  const method = type.prototype?.[key] as object;
  // Around the other interceptors of the method: what they make of an answer is seen.
  if (!Reflect.hasMetadata(SSE, method))
    Reflect.defineMetadata(
      INTERCEPTORS,
      [OUTCOME_INTERCEPTOR, ...others(INTERCEPTORS, OUTCOME_INTERCEPTOR, method)],
      method,
    );
}

const HANDLERS = [METHOD, MESSAGE, PATTERN, RESOLVER, FIELD_RESOLVER, REFERENCE_RESOLVER];

/** Nest calls this method for a request, a message or a field. */
export const isRouted = (method: object): boolean => HANDLERS.some((key) => Reflect.hasMetadata(key, method));

export const isAskedLast = (method: object): boolean => listOn(GUARDS, method).includes(LAST_GUARD);

/** Whether guards other than ours stand before a handler, by its own metadata. */
export const hasOtherGuards = (...places: readonly object[]): boolean =>
  places.some((place) => listOn(GUARDS, place).some((guard) => !OURS.includes(guard)));

const OURS: readonly unknown[] = [LAST_GUARD, RouteLimitGuard, RateLimitGuard] satisfies (
  CanActivate | object
)[];

const listOn = (key: string, method: object): readonly unknown[] =>
  (Reflect.getMetadata(key, method) ?? []) as unknown[];

const others = (key: string, item: unknown, method: object): readonly unknown[] =>
  listOn(key, method).filter((each) => each !== item);

const putLast = (key: string, item: unknown, method: object): void =>
  Reflect.defineMetadata(key, [...others(key, item, method), item], method);

function keysOf(prototype: object | undefined): ReadonlySet<string | symbol> {
  const keys = new Set<string | symbol>();
  for (
    let at: object | null = prototype ?? null;
    at && at !== Object.prototype;
    at = Object.getPrototypeOf(at) as object | null
  )
    for (const [key, { value }] of Object.entries(Object.getOwnPropertyDescriptors(at)))
      if (typeof value === 'function') keys.add(key);
  return keys;
}
