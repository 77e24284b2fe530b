import { Logger } from '@nestjs/common';
import { signalsIn, withAnyOf } from '../method/abort-signals.js';
import { decorateMethod } from '../method/decorate-method.js';
import { type ComposableMethodDecorator, memberName } from '../method/replace-method.js';
import type { Around, StreamProgress } from '../method/wrap-method.js';
import { hangUpParameter } from '../transport/hang-up.decorator.js';
import { describe } from '../core/validate.js';
import type { LockContext } from './current-lock.js';
import { compileKeyTemplate, type KeyTemplate } from './key-template.js';
import { invalidCall, LockError } from './lock.errors.js';
import { DEFAULT_LOCK_OPTIONS, type LockCallOptions, resolveLockCall, usualCall } from './lock.options.js';
import type { LockService } from './lock.service.js';
import type { LockKeyOption } from './lock.types.js';

/** The token of the LockService that `@WithLock()` uses. */
export const LOCK_SERVICE = Symbol.for('syncguard:LockService (is SyncGuardModule.forRoot() imported?)');
const WITH_LOCK = { name: '@WithLock()', token: LOCK_SERVICE, noun: 'lock', invalidCall };
const logger = new Logger('SyncGuard');
/** Metadata: the index of the parameter that `@Lock()` marks. */
const LOCK_PARAMETER = Symbol.for('syncguard:lock-parameter');

/** Decorates an async method or async generator whose first parameters are those of the key function. */
export type LockedMethodDecorator<Args extends unknown[]> = ComposableMethodDecorator &
  (<
    // `any`, because the parameters after those of the key function may have any type.
    // eslint-disable-next-line @typescript-eslint/no-explicit-any
    Method extends (...args: [...Args, ...any[]]) => Promise<unknown> | AsyncIterable<unknown>,
  >(
    target: object,
    propertyKey: string | symbol,
    descriptor: TypedPropertyDescriptor<Method>,
  ) => void);

/**
 * Runs an async method of a provider or controller under a lock. Calls with the same key run one after the other, in
 * all processes that share one Redis. An async generator holds the lock from the request for its first item until it
 * ends or its reader stops. A method that returns a promise of an Observable holds the lock until the Observable
 * completes, fails or is unsubscribed.
 *
 * An AbortSignal among the arguments, or in an argument, ends the wait for the lock when it aborts: that of
 * {@link HangUp}, for example, so that nothing runs for a caller who has left.
 *
 * @param key - a template over the arguments (`'order:{0.id}'`: `{0}` the first one; see {@link lockKey}), or a function of
 *   the arguments that returns one key, or several keys which are locked together
 * @param options - replace the defaults of the module; see {@link LockCallOptions}
 * @throws whatever the method throws, unchanged
 * @throws LockError as `LockService.lock()` does: AcquisitionTimeout (423 over HTTP), LockLost and others
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
  const { keyOf, values } =
    typeof key === 'string' ? compileKeyTemplate(key, '@WithLock()') : fromFunction(key);
  const decorate: MethodDecorator = (target, propertyKey, descriptor) => {
    const place = `@WithLock() on ${memberName(target, propertyKey)}`;
    // A wrong option fails when the class is defined, and not at the first call.
    resolveLockCall(options, usualCall(DEFAULT_LOCK_OPTIONS), place);
    decorateMethod<LockService>(WITH_LOCK, target, propertyKey, descriptor, (serviceOf, original) => {
      const types = Reflect.getMetadata('design:paramtypes', target, propertyKey) as unknown;
      if (Array.isArray(types)) refuseMissingParameters(values, types, original, place);
      const warned = new Set<unknown>();
      const around: Around = <T>(
        self: unknown,
        args: unknown[],
        body: () => T | Promise<T>,
        progress: StreamProgress,
      ) => {
        const keys = named(place, warned, keyOf, args);
        const parameter = Reflect.getOwnMetadata(LOCK_PARAMETER, target, propertyKey) as number | undefined;
        const locked = (lock: LockContext): T | Promise<T> => {
          if (parameter !== undefined) args[parameter] = lock;
          progress.lockId = lock.lockId;
          return body();
        };
        // Not a spread, which is much slower with fields behind it.
        const call = Object.assign({}, options, keyOption(keys));
        const signals = signalsIn(args);
        if (options.signal) signals.push(options.signal);
        return withAnyOf(signals, (signal) =>
          serviceOf(self).lock(locked, Object.assign(call, { signal }), place),
        ) as Promise<T>;
      };
      return {
        around,
        patienceMs: (self) => options.ttlMs ?? serviceOf(self).defaultTtlMs,
        idleMs: (self) => options.idleMs ?? serviceOf(self).defaultIdleMs,
        onIdle: (self, idleMs, { lockId = '' }) => serviceOf(self).abandon(lockId, idleMs),
        hangUpAt: hangUpParameter(target, propertyKey),
      };
    });
  };
  return decorate as LockedMethodDecorator<Args>;
}

/**
 * Marks the parameter of a `@WithLock()` method that receives the {@link LockContext}. Make it the last parameter and
 * optional, so that callers leave it out.
 */
export const Lock =
  (): ParameterDecorator =>
  (target, propertyKey, index): void => {
    if (propertyKey === undefined)
      throw invalidCall(
        '@Lock() cannot be used on a parameter of a constructor.',
        'Put it on a parameter of a method that has @WithLock().',
      );
    Reflect.defineMetadata(LOCK_PARAMETER, index, target, propertyKey);
  };

type Values = KeyTemplate['values'];

interface KeySource {
  readonly values: Values;
  keyOf(args: readonly unknown[]): string | readonly string[];
}

function fromFunction<Args extends unknown[]>(key: (...args: Args) => string | readonly string[]): KeySource {
  if (typeof key !== 'function')
    throw invalidCall(
      `@WithLock(key): the key must be a template or a function, got ${describe(key)}.`,
      'For several keys pass a function that returns an array of keys.',
    );
  return { values: [], keyOf: (args) => key(...(args as Args)) };
}

/**
 * Returns the key of a call. A part that is missing is refused each time and logged once: only the log can tell a client
 * that leaves a field out from a template that is misspelt.
 */
function named(
  place: string,
  warned: Set<unknown>,
  keyOf: KeySource['keyOf'],
  args: readonly unknown[],
): string | readonly string[] {
  try {
    return keyOf(args);
  } catch (error) {
    const part = error instanceof LockError ? error.context['part'] : undefined;
    if (part !== undefined && !warned.has(part)) {
      warned.add(part);
      logger.warn(
        `LOCK_KEY_PART_MISSING: ${place} refused a call: ${(error as LockError).message} A client may have left it out, or the key is misspelt. This is said once.`,
      );
    }
    throw error;
  }
}

/** Refuses a value of a parameter that the method surely does not have. Its calls would all be refused. */
function refuseMissingParameters(
  values: Values,
  types: readonly unknown[],
  method: (...args: never[]) => unknown,
  place: string,
): void {
  const missing = values.find(({ index }) => index >= types.length);
  // Rest parameters and those with defaults are not in `length`, but have types.
  if (!missing || (method.length !== types.length && !hasNoRest(String(method), types.length))) return;
  throw invalidCall(
    `${place}: the key has the value ${missing.source}, and the method has no more than ${types.length} parameters.`,
    'Values are counted from 0: {0} is the first parameter.',
  );
}

/** Returns whether a source is that of a method with so many parameters, the last of which is no rest. False where unsure. */
function hasNoRest(source: string, count: number): boolean {
  const parameters = /^[^('"`[]*\(((?:[^()'"`/]|'[^'\\]*'|"[^"\\]*")+)\)/.exec(source)?.[1];
  return parameters !== undefined && !parameters.includes('...') && parameters.split(',').length >= count;
}

const keyOption = (key: string | readonly string[]): LockKeyOption =>
  Array.isArray(key) ? { keys: key as readonly string[] } : { key: key as string };
