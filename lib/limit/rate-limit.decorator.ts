import { SetMetadata, UseInterceptors } from '@nestjs/common';
import { SyncGuardConfigError } from '../syncguard.errors.js';
import { resolvePolicies } from './limit.options.js';
import type { LimitPolicy } from './limit.types.js';
import { RouteLimitGuard } from './rate-limit.guard.js';
import { RateLimitInterceptor } from './rate-limit.interceptor.js';
import { GUARDS, RATE_LIMITS, type RateLimitEntry, SKIPPED_LIMITS } from './rate-limit.metadata.js';

export interface RateLimitOptions {
  /** On a method: in place of the class's limits and of `default`, instead of in addition to them. Default: false. */
  override?: boolean;
}

/**
 * Limits a route, a field of GraphQL, a message of a gateway or of a microservice, or all of a class. Decorators add up;
 * those of a class and of a method too. It brings its guard along: nothing else has to be bound (ADR 0012).
 *
 * It is asked before the other guards of the class or method, whatever the order of the decorators: so a
 * failed `AuthGuard` counts as a failure. Where `keyBy`, `limit` or `cost` needs a user (`'user'`, a function),
 * it is asked after them.
 *
 * @param policy - a name in the `limits` option, a preset's name (`'login'`, `'otp'`, `'signup'`, `'api'`), a
 *   policy, or a list of policies. An unnamed one counts by route.
 * @throws SyncGuardConfigError at once when a policy is malformed; at boot when a name is unknown, or when it stands where
 *   it could not limit (RATE_LIMIT_NO_KEY, RATE_LIMIT_UNGUARDED_FIELD)
 * @example
 * \@RateLimit('login')
 * \@Post('login')
 * login(@Body() credentials: Credentials) { ... }
 *
 * \@RateLimit({ limit: 100, windowMs: seconds(10) })
 * \@Get('search')
 * search() { ... }
 */
export function RateLimit(
  policy: string | LimitPolicy | readonly LimitPolicy[],
  options: RateLimitOptions = {},
): ClassDecorator & MethodDecorator {
  // A malformed policy fails where it stands, not at the first request.
  if (typeof policy !== 'string') resolvePolicies(policy, { name: '@RateLimit()' });
  const entry: RateLimitEntry = { policy, override: options.override ?? false };
  return (target: object, key?: string | symbol, descriptor?: PropertyDescriptor): void => {
    const place = placeOf('@RateLimit()', target, key, descriptor);
    const above = (Reflect.getMetadata(RATE_LIMITS, place) ?? []) as RateLimitEntry[];
    Reflect.defineMetadata(RATE_LIMITS, [entry, ...above], place);
    if (above.length > 0) return;
    const guards = (Reflect.getMetadata(GUARDS, place) ?? []) as unknown[];
    Reflect.defineMetadata(GUARDS, [RouteLimitGuard, ...guards], place);
    UseInterceptors(RateLimitInterceptor)(target, key as string, descriptor as PropertyDescriptor);
  };
}

/**
 * Leaves a route, or all routes of a controller, alone: from every limit, or from those named.
 *
 * @example
 * \@SkipRateLimit()
 * \@Get('health')
 * health() { ... }
 */
export const SkipRateLimit = (...names: string[]): ClassDecorator & MethodDecorator =>
  SetMetadata(SKIPPED_LIMITS, names.length === 0 ? true : names);

function placeOf(
  decorator: string,
  target: object,
  key: string | symbol | undefined,
  descriptor: PropertyDescriptor | undefined,
): object {
  if (key === undefined) return target;
  if (typeof descriptor?.value === 'function') return descriptor.value as object;
  throw new SyncGuardConfigError(`${decorator} stands on ${String(key)}, which is not a method.`);
}
