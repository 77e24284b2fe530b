import { injectedService, injectInto, replaceMethod } from './replace-method.js';
import { type Wrapping, wrapMethod } from './wrap-method.js';

type Method = (this: unknown, ...args: never[]) => unknown;

/** A decorator whose methods run inside a lock or a budget hold. */
export interface GuardingDecorator {
  /** As users write it, such as `@WithLock()`. */
  readonly name: string;
  /** The token of its service. */
  readonly token: symbol;
  /** What a body waits for, such as `lock`. */
  readonly noun: string;
  invalidCall(message: string, hint: string): Error;
}

/** Wraps a decorated method, and has Nest inject the service of the decorator into its instances. */
export function decorateMethod<Service>(
  { name, token, noun, invalidCall }: GuardingDecorator,
  target: object,
  propertyKey: string | symbol,
  descriptor: PropertyDescriptor | undefined,
  wrapping: (serviceOf: (self: unknown) => Service, original: Method) => Wrapping,
): void {
  const method = String(propertyKey);
  const serviceOf = (self: unknown): Service => injectedService<Service>(self, token, name, method);
  replaceMethod(name, target, propertyKey, descriptor, (original) => {
    if (original.constructor.name === 'GeneratorFunction')
      throw invalidCall(
        `${name} on ${method}() cannot work, because a generator that is not async cannot wait for a ${noun}.`,
        'Make the method an async generator (`async *`), or put the decorator on an async method that consumes it.',
      );
    return wrapMethod(original, wrapping(serviceOf, original));
  });
  injectInto(target, token);
}
