import { type CanActivate, type ExecutionContext, Inject, Injectable } from '@nestjs/common';
import { ROUTE_LIMITER } from './rate-limit.metadata.js';
import type { RouteLimiter } from './route-limiter.js';

/**
 * Applies the policy named `default` to every call that it is bound to: as `APP_GUARD`, to all. What stands in
 * `@RateLimit` applies in addition, and needs no guard bound by hand.
 *
 * @throws SyncGuardConfigError at boot when there is no policy `default`
 * @example providers: [{ provide: APP_GUARD, useClass: RateLimitGuard }]
 */
@Injectable()
export class RateLimitGuard implements CanActivate {
  constructor(@Inject(ROUTE_LIMITER) private readonly routes: RouteLimiter) {
    routes.requireDefault();
  }

  canActivate(context: ExecutionContext): Promise<boolean> {
    return this.routes.enter(context, 'default');
  }
}

/** Bound by `@RateLimit` before all other guards. */
@Injectable()
export class RouteLimitGuard implements CanActivate {
  constructor(@Inject(ROUTE_LIMITER) private readonly routes: RouteLimiter) {}

  canActivate(context: ExecutionContext): Promise<boolean> {
    return this.routes.enter(context, 'early');
  }
}
