import { type CanActivate, type ExecutionContext, Inject, Injectable, SetMetadata } from '@nestjs/common';
import { APPLIES_DEFAULT, OUR_GUARD, ROUTE_LIMITER } from './rate-limit.metadata.js';
import type { RouteLimiter } from './route-limiter.js';

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
@SetMetadata(OUR_GUARD, 'default')
export class RateLimitGuard implements CanActivate {
  constructor(@Inject(ROUTE_LIMITER) private readonly routes: RouteLimiter) {}

  /** Bound to a whole app it stands before other global guards; those of a handler's limits that can are asked there too. */
  canActivate(context: ExecutionContext): Promise<boolean> | boolean {
    return this.routes.enterApp(context);
  }
}

/** Bound by `@RateLimit` before all other guards. */
@Injectable()
@SetMetadata(OUR_GUARD, 'route')
export class RouteLimitGuard implements CanActivate {
  constructor(@Inject(ROUTE_LIMITER) private readonly routes: RouteLimiter) {}

  canActivate(context: ExecutionContext): Promise<boolean> | boolean {
    return this.routes.enter(context, 'early');
  }
}
