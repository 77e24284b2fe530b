import { isObservable, lastValueFrom } from 'rxjs';
import {
  type ComposableMethodDecorator,
  injectedService,
  injectInto,
  memberName,
  replaceMethod,
} from '../../method/replace-method.js';
import { among, optionalFunction, OptionTable, type RowsOf } from '../../core/option-table.js';
import { boolean } from '../../core/validate.js';
import { onceFrames } from '../current-once.js';
import { invalidCall } from '../once.errors.js';
import { ONCE_CALL } from '../once.options.js';
import type { OnceService } from '../once.service.js';
import type { OnceCallOptions, OnceDecoratorOptions } from '../once.types.js';
import { keyMissing, keyText, valueAt } from './once-key.js';
import { ONCE_METHODS, ONCE_PLAN, type OncePlan } from './once-plan.js';
import { bindLast } from './once-routes.js';

/** The token of the OnceService that `@Once()` uses. */
export const ONCE_SERVICE = Symbol.for('syncguard:OnceService (is SyncGuardModule.forRoot() imported?)');

const OWN = new OptionTable({
  key: { check: (name, value) => (typeof value === 'string' ? value : optionalFunction(name, value)) },
  payload: { check: optionalFunction },
  required: { check: boolean, usual: true },
  headers: { check: headerNames, usual: [] },
  scope: { check: among('caller', 'public') },
} satisfies RowsOf<Omit<OnceDecoratorOptions, keyof OnceCallOptions>>);
type Method = (this: unknown, ...args: never[]) => unknown;

/**
 * Answers a repeated call of a route or a method with the result of the first one.
 *
 * Over HTTP it is asked after all guards and before all interceptors, wherever it stands, and keeps status, headers and body as
 * they are sent. Elsewhere it stands around the method, and keeps the result as JSON.
 *
 * @throws OnceError as `OnceService.run()`; over HTTP also OnceKeyMissing, OnceKeyInvalid and OnceNoCaller
 * @example
 * \@Once()
 * \@Post('orders/:id/pay')
 * pay(\@Param('id') id: string) { ... }
 *
 * \@Once({ key: 'body.id' })
 * \@Post('webhooks/stripe')
 * received(\@Body() event: StripeEvent) { ... }
 */
export function Once(options: OnceDecoratorOptions = {}): ComposableMethodDecorator & MethodDecorator {
  const decorate: MethodDecorator = (target, propertyKey, descriptor) => {
    const place = `@Once() on ${memberName(target, propertyKey)}`;
    const plan = planFor(options, place);
    replaceMethod('@Once()', target, propertyKey, descriptor, (original) => {
      if (/Generator/.test(original.constructor.name))
        throw invalidCall(
          `${place} cannot keep what a generator gives.`,
          'Return a promise of the whole result.',
        );
      return around(original, plan, String(propertyKey));
    });
    const method = descriptor.value as object;
    Reflect.defineMetadata(ONCE_PLAN, plan, method);
    bindLast(method);
    const others = (Reflect.getMetadata(ONCE_METHODS, target) ?? []) as unknown[];
    Reflect.defineMetadata(ONCE_METHODS, [...others, propertyKey], target);
    injectInto(target, ONCE_SERVICE);
  };
  return decorate as ComposableMethodDecorator & MethodDecorator;
}

function planFor(options: OnceDecoratorOptions, place: string): OncePlan {
  // A wrong option fails when the class is defined, and not at the first call.
  ONCE_CALL.resolve(place, options, undefined, Object.keys(OWN.rows));
  const { key, payload, required, headers, scope, ...call } = options;
  const own = OWN.resolve(place, { key, payload, required, headers, scope });
  return { place, options, call, required: own.required, headers: new Set(own.headers) };
}

function headerNames(name: string, headers: unknown): readonly string[] {
  if (Array.isArray(headers) && headers.every((each) => typeof each === 'string'))
    return headers.map((each) => each.toLowerCase());
  throw invalidCall(`${name} must be a list of names.`);
}

function around(original: Method, plan: OncePlan, name: string): Method {
  return function (this: unknown, ...args: never[]): unknown {
    const body = (): unknown => original.apply(this, args);
    const frame = onceFrames.find();
    // The guard of the route has claimed the run of this call.
    if (frame?.handler === plan && frame.around) return frame.around(body);
    const service = injectedService<OnceService>(this, ONCE_SERVICE, '@Once()', name);
    return runMethod(service, plan, args, body);
  };
}

async function runMethod(
  service: OnceService,
  { options, call, required, place }: OncePlan,
  args: never[],
  body: () => unknown,
): Promise<unknown> {
  const { key, payload } = options;
  const found = typeof key === 'string' ? valueAt(args, key) : key?.(...args);
  const text = keyText(found, 'The key');
  if (text === undefined && required) throw keyMissing('key');
  if (text === undefined) return body();
  const whole = async (): Promise<unknown> => {
    const value = await body();
    return isObservable(value) ? lastValueFrom(value, { defaultValue: undefined }) : value;
  };
  const asked = service.callOf(text, payload?.(...args), service.resolved(call, place));
  const { value } = await service.runCall(whole, asked);
  return value;
}
