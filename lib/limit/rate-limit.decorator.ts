import { SyncGuardConfigError } from '../syncguard.errors.js';
import { noteDecoration } from './decorated-methods.js';
import { resolvePolicies } from './limit.options.js';
import type { LimitPolicy } from './limit.types.js';
import { RouteLimitGuard } from './rate-limit.guard.js';
import { GUARDS, RATE_LIMITS, type RateLimitEntry, SKIPPED_LIMITS } from './rate-limit.metadata.js';

export interface RateLimitOptions {
  /**
   * In place of `default` and of what the class (or, on a class, its bases) have, instead of in addition to them.
   * Default: false.
   */
  override?: boolean;
}

/**
 * Limits a route, a field of GraphQL, a message of a gateway or of a microservice, or all of a class. Decorators add up;
 * those of a class and of a method too. It brings its guard along: nothing else has to be bound (ADR 0012).
 *
 * It is asked before the other guards of the class or method, whatever the order of the decorators: so a
 * failed `AuthGuard` counts as a failure. What has `ask: 'after'`, as a policy that counts by the user, is asked after all
 * of them.
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
  return (target: object, key?: string | symbol, descriptor?: PropertyDescriptor): void => {
    const place = placeOf('@RateLimit()', target, key, descriptor);
    const entry: RateLimitEntry = { policy, override: options.override ?? false, place };
    const above = listOn(RATE_LIMITS, place) as RateLimitEntry[];
    Reflect.defineMetadata(RATE_LIMITS, [entry, ...above], place);
    if (key !== undefined)
      noteDecoration(target, key, {
        decorator: '@RateLimit',
        isOn: (method) =>
          listOn(RATE_LIMITS, method).includes(entry) && listOn(GUARDS, method).includes(RouteLimitGuard),
      });
    if (above.length > 0) return;
    Reflect.defineMetadata(GUARDS, [RouteLimitGuard, ...listOn(GUARDS, place)], place);
  };
}

/**
 * Leaves a route, or all routes of a controller, alone: from every limit, or from those named, by their key in the
 * `limits` option or by a `name` of their own.
 *
 * @example
 * \@SkipRateLimit()
 * \@Get('health')
 * health() { ... }
 */
export const SkipRateLimit =
  (...names: string[]): ClassDecorator & MethodDecorator =>
  (target: object, key?: string | symbol, descriptor?: PropertyDescriptor): void => {
    const place = placeOf('@SkipRateLimit()', target, key, descriptor);
    const below = (Reflect.getOwnMetadata(SKIPPED_LIMITS, place) ?? []) as true | readonly string[];
    const isAll = names.length === 0 || below === true;
    Reflect.defineMetadata(SKIPPED_LIMITS, isAll || [...names, ...below], place);
    if (key !== undefined)
      noteDecoration(target, key, {
        decorator: '@SkipRateLimit',
        isOn: (method) => Reflect.hasMetadata(SKIPPED_LIMITS, method),
      });
  };

const listOn = (key: string | symbol, place: object): readonly unknown[] =>
  (Reflect.getMetadata(key, place) ?? []) as unknown[];

function placeOf(
  decorator: string,
  target: object,
  key: string | symbol | undefined,
  descriptor: PropertyDescriptor | undefined,
): object {
  if (key === undefined) return target;
  if (typeof descriptor?.value === 'function' && typeof target !== 'function')
    return descriptor.value as object;
  throw new SyncGuardConfigError(
    `${decorator} stands on ${String(key)}, which is not a method of an instance.`,
    { hint: 'Nest calls methods of instances: put it on one, or on the class.' },
  );
}
