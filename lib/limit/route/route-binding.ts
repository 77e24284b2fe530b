import type { ModulesContainer } from '@nestjs/core';
import type { Type } from '@nestjs/common';
import { classesOf, isGuarded, methodsOf } from './decorated-methods.js';
import { addLastGuard, moveRouteGuardFirst } from './last-guard.js';
import { noteEntry, OUTCOME_INTERCEPTOR } from './rate-limit.interceptor.js';
import { INTERCEPTORS, SSE } from '../../transport/nest-metadata.js';
import type { RoutePlans } from './route-plans.js';

/**
 * Puts the parts that limits need on each handler: our guard before its other guards, the guard that comes last, and the
 * interceptor that reports how a call ended. It runs after all decorators, and before Nest looks at any handler.
 */
export function bindRoutes(modules: ModulesContainer, plans: RoutePlans): void {
  for (const type of classesOf(modules))
    for (const [key, method] of methodsOf(type)) {
      if (!isGuarded(method)) continue;
      moveRouteGuardFirst(type, method);
      const policies = plans.limitsOf(type, method);
      if (policies.some(({ ask, judgedBy }) => ask === 'after' || judgedBy === 'guards'))
        addLastGuard(method);
      if (policies.some(({ count, judgedBy }) => count !== 'attempt' && judgedBy !== 'guards'))
        bindInterceptor(type, key);
    }
}

function bindInterceptor(type: Type, key: string): void {
  noteEntry(type, key);
  const method = (type.prototype as Record<string, object>)[key] as object;
  // A handler of `@Sse` reports how its calls end without the interceptor.
  if (Reflect.hasMetadata(SSE, method)) return;
  // The interceptor is the outermost of the method, so that it sees the value or error that the others make.
  const bound = (Reflect.getMetadata(INTERCEPTORS, method) ?? []) as readonly unknown[];
  const others = bound.filter((each) => each !== OUTCOME_INTERCEPTOR);
  Reflect.defineMetadata(INTERCEPTORS, [OUTCOME_INTERCEPTOR, ...others], method);
}
