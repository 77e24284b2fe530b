import { Inject } from '@nestjs/common';
import { SyncGuardConfigError } from './syncguard.errors.js';

type Method = (this: unknown, ...args: never[]) => unknown;

/**
 * Lets a decorator of methods with types of its own stand in `applyDecorators`, which knows of no method. It is nothing
 * but a type: directly on a method that does not fit, and on what is no method, it does not compile.
 */
export type Composable = (
  target: object,
  propertyKey: string | symbol,
  descriptor?: never,
) => FitsNoSuchMember;

/** What a decorator must not return: the compiler names it where the decorator does not fit. */
export interface FitsNoSuchMember {
  readonly fitsNoSuchMember: never;
}

/**
 * Replaces a decorated method. Everything that others see of it stays: name, length, `this`, and the metadata
 * that decorators below have put on it; those above then write on the replacement. So `@Get`, `@UseGuards`,
 * `@Cron` and the rest work in either order.
 */
export function replaceMethod(
  decorator: string,
  target: object,
  propertyKey: string | symbol,
  descriptor: PropertyDescriptor | undefined,
  wrap: (original: Method) => Method,
): void {
  const original: unknown = descriptor?.value;
  if (!descriptor || typeof original !== 'function')
    throw new SyncGuardConfigError(
      `${decorator} stands on ${nameOf(target, propertyKey)}, which is not a method.`,
      { hint: 'Put it on a method, not on a property, an accessor or a class.' },
    );
  if (typeof target === 'function')
    throw new SyncGuardConfigError(
      `${decorator} stands on the static method ${nameOf(target, propertyKey)}.`,
      {
        hint: 'Nest injects into instances: put it on a method of an instance.',
      },
    );
  const replacement = wrap(original as Method);
  for (const key of Reflect.getOwnMetadataKeys(original) as unknown[])
    Reflect.defineMetadata(key, Reflect.getOwnMetadata(key, original), replacement);
  Object.defineProperty(replacement, 'name', { value: original.name, configurable: true });
  Object.defineProperty(replacement, 'length', { value: original.length, configurable: true });
  descriptor.value = replacement;
}

/**
 * Has Nest inject a service into every instance of the decorated method's class, under the token itself: so
 * the decorator needs no constructor parameter, and Nest refuses to boot where the module is missing.
 */
export function injectInto(target: object, token: symbol): void {
  if (Reflect.hasMetadata(token, target.constructor)) return;
  Reflect.defineMetadata(token, true, target.constructor);
  Inject(token)(target, token);
  // Not enumerable: an instance that is logged or serialised must not show the service with it.
  Object.defineProperty(target, token, {
    set(this: object, service: unknown) {
      Object.defineProperty(this, token, { value: service, configurable: true, writable: true });
    },
    configurable: true,
  });
}

/** The injected service; a method whose instance Nest did not build must not run unguarded. */
export function injectedService<Service>(
  instance: unknown,
  token: symbol,
  decorator: string,
  method: string,
): Service {
  const service = (instance as Record<symbol, Service | undefined> | undefined)?.[token];
  if (service) return service;
  throw new SyncGuardConfigError(
    `${decorator} on ${method}() has no service: Nest did not build this instance (or \`this\` was lost).`,
    {
      hint: 'Let Nest create it: as a provider or controller, or by ModuleRef.create(Class). An instance of your own (`new`, useValue, useFactory) is not guarded, so the method does not run. In a test: SyncGuardTesting.bind(instance) of nestjs-syncguard/testing.',
    },
  );
}

const nameOf = (target: object, propertyKey: string | symbol): string =>
  `${typeof target === 'function' ? target.name : target.constructor.name}.${String(propertyKey)}`;
