import { Inject } from '@nestjs/common';
import { SyncGuardConfigError } from '../core/errors.js';

type Method = (this: unknown, ...args: never[]) => unknown;

/**
 * The type of a method decorator that also fits `applyDecorators`, which does not know the types of methods. It has no
 * effect at runtime. Put directly on a class, a property or a method with other types, the decorator does not compile.
 */
export type ComposableMethodDecorator = (
  target: object,
  propertyKey: string | symbol,
  descriptor?: never,
) => FitsNoSuchMember;

/** The return type that makes the compiler refuse the decorator. Its name appears in the compiler's error. */
export interface FitsNoSuchMember {
  readonly fitsNoSuchMember: never;
}

/**
 * Replaces a decorated method. The name, the length, `this`, and the metadata of the decorators below stay. The
 * decorators above write their metadata on the replacement. So `@Get`, `@UseGuards`, `@Cron` and the like work in
 * either order.
 */
export function replaceMethod(
  decorator: string,
  target: object,
  propertyKey: string | symbol,
  descriptor: PropertyDescriptor | undefined,
  wrap: (original: Method) => Method,
): void {
  const original: unknown = descriptor?.value;
  const place = memberName(target, propertyKey);
  if (!descriptor || typeof original !== 'function')
    throw notOnMethod(
      `${decorator} is on ${place}, which is not a method.`,
      'Put the decorator on a method, not on a property, an accessor or a class.',
    );
  if (typeof target === 'function')
    throw notOnMethod(
      `${decorator} is on the static method ${place}, where Nest cannot inject the service of the decorator.`,
      'Put the decorator on a method of an instance.',
    );
  const replacement = wrap(original as Method);
  for (const key of Reflect.getOwnMetadataKeys(original) as unknown[])
    Reflect.defineMetadata(key, Reflect.getOwnMetadata(key, original), replacement);
  Object.defineProperty(replacement, 'name', { value: original.name, configurable: true });
  Object.defineProperty(replacement, 'length', { value: original.length, configurable: true });
  descriptor.value = replacement;
}

const notOnMethod = (message: string, hint: string): SyncGuardConfigError =>
  new SyncGuardConfigError(message, { code: 'DECORATOR_NOT_ON_METHOD', hint });

/**
 * Makes Nest inject a service into every instance of the class, under the token as property name. The class needs no
 * constructor parameter, and Nest refuses to boot where the module is missing.
 */
export function injectInto(target: object, token: symbol): void {
  if (Reflect.hasMetadata(token, target.constructor)) return;
  Reflect.defineMetadata(token, true, target.constructor);
  Inject(token)(target, token);
  // Not enumerable, so that an instance that is logged or serialised does not show the service.
  Object.defineProperty(target, token, {
    set(this: object, service: unknown) {
      Object.defineProperty(this, token, { value: service, configurable: true, writable: true });
    },
    configurable: true,
  });
}

/** Returns the injected service. Throws where Nest did not build the instance: the method must not run without it. */
export function injectedService<Service>(
  instance: unknown,
  token: symbol,
  decorator: string,
  method: string,
): Service {
  const service = (instance as Record<symbol, Service | undefined> | undefined)?.[token];
  if (service) return service;
  throw new SyncGuardConfigError(
    `${decorator} on ${method}() has no service, because Nest did not build this instance or \`this\` was lost. The method did not run.`,
    {
      code: 'DECORATOR_WITHOUT_SERVICE',
      hint: 'Let Nest build the instance, as a provider or controller or by ModuleRef.create(Class). Instances from `new`, useValue and useFactory get no service. In a test call SyncGuardTesting.bind(instance) of nestjs-syncguard/testing.',
    },
  );
}

export const memberName = (target: object, propertyKey: string | symbol): string =>
  `${typeof target === 'function' ? target.name : target.constructor.name}.${String(propertyKey)}`;
