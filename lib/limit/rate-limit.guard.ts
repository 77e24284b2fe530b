import { type CanActivate, type ExecutionContext, Inject, Injectable, SetMetadata } from '@nestjs/common';
import { APPLIES_DEFAULT, ROUTE_LIMITER } from './rate-limit.metadata.js';
import type { RouteLimiter } from './route-limiter.js';
import { visitOf } from './visit.js';

/**
 * Applies the policy named `default` to every call that it is bound to: as `APP_GUARD`, to all. What stands in
 * `@RateLimit` applies in addition, and needs no guard bound by hand.
 *
 * @throws SyncGuardConfigError at boot when there is no policy `default` and it would guard nothing: bound globally, or to
 * a handler without limits of its own
 * @example providers: [{ provide: APP_GUARD, useClass: RateLimitGuard }]
 */
@Injectable()
@SetMetadata(APPLIES_DEFAULT, true)
export class RateLimitGuard implements CanActivate {
  constructor(@Inject(ROUTE_LIMITER) private readonly routes: RouteLimiter) {}

  /** Bound to a whole app it stands before other global guards; those of a handler's limits that can are asked there too. */
  canActivate(context: ExecutionContext): Promise<boolean> | boolean {
    return this.routes.enterApp(context);
  }
}

/** Bound by `@RateLimit` before all other guards. */
@Injectable()
export class RouteLimitGuard implements CanActivate {
  constructor(@Inject(ROUTE_LIMITER) private readonly routes: RouteLimiter) {}

  canActivate(context: ExecutionContext): Promise<boolean> | boolean {
    return this.routes.enter(context, 'early');
  }
}

/**
 * Put at boot after all other guards of a handler that has limits to be asked then. Metadata stands on functions which
 * several apps of a process may share, so there is one instance, and the call says whose it is.
 */
export const LAST_GUARD: CanActivate = {
  canActivate(context: ExecutionContext): Promise<boolean> | boolean {
    const visit = visitOf(context);
    return visit ? visit.steward.guardsPassed(context, visit) : true;
  },
};
