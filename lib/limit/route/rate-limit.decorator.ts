import { SyncGuardConfigError } from '../../core/errors.js';
import { memberName } from '../../method/replace-method.js';
import { boolean, knownOptions } from '../../core/validate.js';
import { noteDecoration } from './decorated-methods.js';
import { resolvePolicies } from '../limit.options.js';
import type { LimitPolicy } from '../policy.types.js';
import { RouteLimitGuard } from './rate-limit.guard.js';
import { GUARDS } from '../../transport/nest-metadata.js';
import { RATE_LIMITS, type RateLimitEntry, SKIPPED_LIMITS } from './rate-limit.metadata.js';

/** Options of `@RateLimit()`. */
export interface RateLimitOptions {
  /**
   * Replaces other limits instead of adding to them. On a method it replaces those of the class and of the policy `default`,
   * on a class those of its bases and of `default`. Default: false.
   */
  override?: boolean;
}

/**
 * Limits a route, a field of GraphQL, a message of a gateway or of a microservice, or all handlers of a class. Several
 * decorators add up, also those of a class and of its methods. The decorator binds its own guard (ADR 0012).
 *
 * A limit is asked before the other guards of the class and method, in whatever order the decorators stand. So a policy
 * that counts failures also counts a call that `AuthGuard` refuses. A policy with `ask: 'after'` is asked after all
 * guards. This is the default of a policy that counts by the user or has a function (see `LimitPolicy`).
 *
 * @param policy - a name in the `limits` option, a preset's name (`'login'`, `'otp'`, `'signup'`, `'api'`), a
 *   policy, or a list of policies. A policy without a name counts each route apart.
 * @throws SyncGuardConfigError at once if a policy is malformed. At boot if a name is unknown, or if the decorator has no
 *   effect on this class or method. docs/rate-limits.md lists the codes.
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
  // A malformed policy throws here and not at the first request, so that the stack shows its decorator.
  if (typeof policy !== 'string') resolvePolicies(policy, { name: '@RateLimit()' });
  const given = knownOptions('@RateLimit()', options, ['override']);
  const limits = typeof policy === 'string' ? policy : [policy as LimitPolicy].flat();
  const override = boolean('@RateLimit().override', given.override ?? false);
  return (target: object, key?: string | symbol, descriptor?: PropertyDescriptor): void => {
    const place = placeOf('@RateLimit()', target, key, descriptor);
    const entry: RateLimitEntry = { policy: limits, override, place };
    const above = listOn(RATE_LIMITS, place) as RateLimitEntry[];
    Reflect.defineMetadata(RATE_LIMITS, [entry, ...above], place);
    if (key !== undefined)
      noteDecoration(target, key, {
        decorator: '@RateLimit',
        isOn: (method) =>
          listOn(RATE_LIMITS, method).includes(entry) && listOn(GUARDS, method).includes(RouteLimitGuard),
      });
    if (above.length === 0)
      Reflect.defineMetadata(GUARDS, [RouteLimitGuard, ...listOn(GUARDS, place)], place);
  };
}

/**
 * Exempts a route, or all routes of a controller, from all limits, or from those that are named. A limit is named by its key
 * in the `limits` option, or by its own `name`.
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
    `${decorator} is on ${memberName(target, key)}, which is not a method of an instance.`,
    {
      code: 'DECORATOR_NOT_ON_METHOD',
      hint: 'Put the decorator on a method of an instance that is a handler, or on the class.',
    },
  );
}
