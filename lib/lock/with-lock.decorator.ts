import { type Around, wrapMethod } from '../wrap-method.js';
import {
  type ComposableMethodDecorator,
  injectedService,
  injectInto,
  replaceMethod,
} from '../replace-method.js';
import { describe } from '../keys.js';
import { compileKeyTemplate } from './key-template.js';
import { LOCK_PARAMETER, LOCK_SERVICE } from '../syncguard.tokens.js';
import { LockError } from './lock.errors.js';
import { DEFAULT_LOCK_OPTIONS, type LockCallOptions, resolveLockCall } from './lock.options.js';
import type { LockService } from './lock.service.js';
import type { LockKeyOption } from './lock.types.js';

/** For async methods and generators, also generic ones, that start with the arguments which the key function takes. */
export type LockedMethodDecorator<Args extends unknown[]> = ComposableMethodDecorator &
  (<
    // `any`: a method may take whatever it likes after those.
    // eslint-disable-next-line @typescript-eslint/no-explicit-any
    Method extends (...args: [...Args, ...any[]]) => Promise<unknown> | AsyncIterable<unknown>,
  >(
    target: object,
    propertyKey: string | symbol,
    descriptor: TypedPropertyDescriptor<Method>,
  ) => void);

/**
 * Runs an async method of a provider or controller under a lock: calls with the same key run one after the
 * other, in all processes on one Redis. An async generator holds the lock from the first item asked for until it
 * ends or its reader stops; a promised Observable until it completes, fails or is unsubscribed.
 *
 * @param key - a template over the arguments (`'order:{0.id}'`: `{0}` the first one, values are encoded), or a
 *   function of the arguments that returns the key, or several which are locked together
 * @param options - over the module's defaults; see {@link LockCallOptions}
 * @throws what the method throws, as it is; else LockError: AcquisitionTimeout (423 over HTTP), LockLost, ...
 * @example
 * \@WithLock('order:{0}')
 * async pay(orderId: string, \@Lock() lock?: LockContext) {
 *   await this.db.charge(orderId, lock?.fence);
 * }
 */
export function WithLock(key: string, options?: LockCallOptions): LockedMethodDecorator<[]>;
export function WithLock<Args extends unknown[]>(
  key: (...args: Args) => string | readonly string[],
  options?: LockCallOptions,
): LockedMethodDecorator<Args>;
export function WithLock<Args extends unknown[]>(
  key: string | ((...args: Args) => string | readonly string[]),
  options: LockCallOptions = {},
): LockedMethodDecorator<Args> {
  resolveLockCall(options, DEFAULT_LOCK_OPTIONS); // A misspelt option fails where it stands, not at the first call.
  const keyOf = typeof key === 'string' ? compileKeyTemplate(key, '@WithLock()') : fromFunction(key);
  const decorate: MethodDecorator = (target, propertyKey, descriptor) => {
    const name = String(propertyKey);
    replaceMethod('@WithLock()', target, propertyKey, descriptor, (original) => {
      refuseSyncGenerators(original, name);
      const serviceOf = (self: unknown): LockService =>
        injectedService<LockService>(self, LOCK_SERVICE, '@WithLock()', name);
      const enter: Around = <T>(self: unknown, args: unknown[], body: () => T | Promise<T>) => {
        const parameter = Reflect.getOwnMetadata(LOCK_PARAMETER, target, propertyKey) as number | undefined;
        return serviceOf(self).lock(
          (lock) => {
            if (parameter !== undefined) args[parameter] = lock;
            return body();
          },
          { ...options, ...keyOption(keyOf(args)) },
        ) as Promise<T>;
      };
      return wrapMethod(original, enter, (self) => options.ttlMs ?? serviceOf(self).defaultTtlMs);
    });
    injectInto(target, LOCK_SERVICE);
  };
  return decorate as LockedMethodDecorator<Args>;
}

/**
 * Marks the parameter of a `@WithLock()` method that gets the {@link LockContext}. Put it last, and make it
 * optional, so that callers need not know of it.
 */
export const Lock =
  (): ParameterDecorator =>
  (target, propertyKey, index): void => {
    if (propertyKey === undefined)
      throw new LockError({
        code: 'InvalidArgument',
        message: '@Lock() stands on a constructor parameter.',
      });
    Reflect.defineMetadata(LOCK_PARAMETER, index, target, propertyKey);
  };

function fromFunction<Args extends unknown[]>(
  key: (...args: Args) => string | readonly string[],
): (args: readonly unknown[]) => string | readonly string[] {
  if (typeof key !== 'function')
    throw new LockError({
      code: 'InvalidArgument',
      message: `@WithLock(key): key must be a template or a function, got ${describe(key)}.`,
      hint: 'For several keys give a function that returns an array of them.',
    });
  return (args) => key(...(args as Args));
}

const keyOption = (key: string | readonly string[]): LockKeyOption =>
  Array.isArray(key) ? { keys: key as readonly string[] } : { key: key as string };

/** A generator that is not async cannot wait for its lock. */
function refuseSyncGenerators(method: { constructor: { name: string } }, name: string): void {
  if (method.constructor.name === 'GeneratorFunction')
    throw new LockError({
      code: 'InvalidArgument',
      message: `@WithLock() on ${name}(): a generator cannot wait for a lock.`,
      hint: 'Make it an async generator (`async *`), or lock an async method that consumes it.',
    });
}
