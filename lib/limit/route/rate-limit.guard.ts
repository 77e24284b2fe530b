import { type CanActivate, type ExecutionContext, Inject, Injectable, SetMetadata } from '@nestjs/common';
import { APPLIES_DEFAULT, OUR_GUARD, ROUTE_LIMITER } from './rate-limit.metadata.js';
import type { RouteLimiter } from './route-limiter.js';

/**
 * Applies the policy named `default` to every call that it is bound to. As `APP_GUARD` it is bound to all calls. The limits
 * of `@RateLimit` apply in addition. They work without this guard.
 *
 * @throws SyncGuardConfigError RATE_LIMIT_NO_DEFAULT at boot, if there is no policy `default` and the guard is bound
 * globally or to a handler without limits of its own
 * @example providers: [{ provide: APP_GUARD, useClass: RateLimitGuard }]
 */
@Injectable()
@SetMetadata(APPLIES_DEFAULT, true)
@SetMetadata(OUR_GUARD, 'default')
export class RateLimitGuard implements CanActivate {
  @Inject(ROUTE_LIMITER) private readonly routes!: RouteLimiter;

  canActivate(context: ExecutionContext): Promise<boolean> | boolean {
    return this.routes.enterApp(context);
  }
}

/** Asks the limits of a handler before all of its other guards. `@RateLimit` binds it. */
@Injectable()
@SetMetadata(OUR_GUARD, 'route')
export class RouteLimitGuard implements CanActivate {
  @Inject(ROUTE_LIMITER) private readonly routes!: RouteLimiter;

  canActivate(context: ExecutionContext): Promise<boolean> | boolean {
    return this.routes.enter(context, 'before');
  }
}
