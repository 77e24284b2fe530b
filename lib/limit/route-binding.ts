import type { ModulesContainer } from '@nestjs/core';
import { chainOf } from './decorated-methods.js';
import { noteEntry } from './handler-entry.js';
import { askFirst, askLast } from './last-guard.js';
import { OUTCOME_INTERCEPTOR } from './rate-limit.interceptor.js';
import {
  FIELD_RESOLVER,
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
      if (typeof metatype === 'function') bindClass(metatype, limits);
}

interface Handlers {
  readonly prototype: Record<string | symbol, unknown> | undefined;
}

function bindClass(type: Handlers, limits: Limits): void {
  for (const key of keysOf(type.prototype)) {
    const method = type.prototype?.[key];
    if (typeof method !== 'function' || !isRouted(method)) continue;
    askFirst(type, method);
    const policies = limits.limitsOf(type, method);
    if (policies.some(({ ask }) => ask === 'after')) askLast(method);
    if (policies.some(({ count }) => count !== 'attempt')) bindOutcome(type, key);
  }
}

function bindOutcome(type: Handlers, key: string | symbol): void {
  noteEntry(type as { prototype: object }, key);
  const method = type.prototype?.[key] as object;
  // Around the other interceptors of the method: what they make of an answer is seen.
  if (Reflect.hasMetadata(SSE, method)) return;
  const bound = (Reflect.getMetadata(INTERCEPTORS, method) ?? []) as readonly unknown[];
  const others = bound.filter((each) => each !== OUTCOME_INTERCEPTOR);
  Reflect.defineMetadata(INTERCEPTORS, [OUTCOME_INTERCEPTOR, ...others], method);
}

const HANDLERS = [METHOD, MESSAGE, PATTERN, RESOLVER, FIELD_RESOLVER, REFERENCE_RESOLVER];

/** Nest calls this method for a request, a message or a field. */
const isRouted = (method: object): boolean => HANDLERS.some((key) => Reflect.hasMetadata(key, method));

function keysOf(prototype: object | undefined): ReadonlySet<string | symbol> {
  const keys = new Set<string | symbol>();
  for (const at of chainOf(prototype))
    for (const [key, { value }] of Object.entries(Object.getOwnPropertyDescriptors(at)))
      if (typeof value === 'function') keys.add(key);
  return keys;
}
