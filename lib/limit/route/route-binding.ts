import type { ModulesContainer } from '@nestjs/core';
import { chainOf } from './decorated-methods.js';
import { noteEntry } from './handler-entry.js';
import { addLastGuard, moveRouteGuardFirst } from './last-guard.js';
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

interface Limits {
  /** Returns the limits of a method, with those of the policy `default`. */
  limitsOf(type: object, method: object): readonly { readonly ask: string; readonly count: string }[];
}

/**
 * Puts the parts that limits need on each handler: our guard before its other guards, the guard that comes last, and the
 * interceptor that reports how a call ended. It runs after all decorators, and before Nest looks at any handler.
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
    moveRouteGuardFirst(type, method);
    const policies = limits.limitsOf(type, method);
    if (policies.some(({ ask }) => ask === 'after')) addLastGuard(method);
    if (policies.some(({ count }) => count !== 'attempt')) bindInterceptor(type, key);
  }
}

function bindInterceptor(type: Handlers, key: string | symbol): void {
  noteEntry(type as { prototype: object }, key);
  const method = type.prototype?.[key] as object;
  // A handler of `@Sse` reports how its calls end without the interceptor (handler-entry.ts).
  if (Reflect.hasMetadata(SSE, method)) return;
  // The interceptor is the outermost of the method, so that it sees the value or error that the others make.
  const bound = (Reflect.getMetadata(INTERCEPTORS, method) ?? []) as readonly unknown[];
  const others = bound.filter((each) => each !== OUTCOME_INTERCEPTOR);
  Reflect.defineMetadata(INTERCEPTORS, [OUTCOME_INTERCEPTOR, ...others], method);
}

const HANDLERS = [METHOD, MESSAGE, PATTERN, RESOLVER, FIELD_RESOLVER, REFERENCE_RESOLVER];

/** Returns whether Nest calls the method for a request, a message or a field. */
const isRouted = (method: object): boolean => HANDLERS.some((key) => Reflect.hasMetadata(key, method));

function keysOf(prototype: object | undefined): ReadonlySet<string | symbol> {
  const keys = new Set<string | symbol>();
  for (const at of chainOf(prototype))
    for (const [key, { value }] of Object.entries(Object.getOwnPropertyDescriptors(at)))
      if (typeof value === 'function') keys.add(key);
  return keys;
}
