import { monotonicMs } from '../clock.js';
import { SyncGuardError } from '../syncguard.errors.js';
import type { Emit, Facts, Feature, SyncGuardEvent } from './telemetry.types.js';

type Method = (...args: never[]) => Promise<unknown>;

/** What a call says of itself: from its result (undefined: it threw, or gives none) and its arguments. */
type Describe<Called extends Method> = (
  result: Awaited<ReturnType<Called>> | undefined,
  ...args: Parameters<Called>
) => Facts;

type Observable<Port> = keyof { [Name in keyof Port as Port[Name] extends Method ? Name : never]: unknown };

/** One description for each method of a port. */
export type Descriptions<Port> = {
  readonly [Name in Observable<Port>]: Port[Name] extends Method ? Describe<Port[Name]> : never;
};

/**
 * The same port, with one event for each call of a described method, whether it gives a result or throws. All else
 * goes to the port as it is.
 */
export function observe<Port extends object>(
  port: Port,
  feature: Feature,
  descriptions: Partial<Descriptions<Port>>,
  emit: Emit,
): Port {
  const methods = Object.entries<unknown>(descriptions).map(([name, describe]) => [
    name,
    observed(port, name, describe as Describe<Method>, (facts) => emit({ feature, ...facts })),
  ]);
  return inFrontOf(port, Object.fromEntries(methods) as Partial<Port>);
}

/** The port with some members of its own in front. The rest is looked up on every use: it may change. */
export function inFrontOf<Port extends object>(port: Port, members: Partial<Port>): Port {
  // Not a proxy of the port itself, which would have to show a frozen member as it is.
  return new Proxy(Object.create(port) as Port, {
    get: (_, name) => {
      if (Object.hasOwn(members, name)) return Reflect.get(members, name) as unknown;
      const member: unknown = Reflect.get(port, name);
      return typeof member === 'function' ? (member.bind(port) as unknown) : member;
    },
  });
}

function observed(
  port: object,
  name: string,
  describe: Describe<Method>,
  emit: (observation: Omit<Parameters<Emit>[0], 'feature'>) => void,
): (...args: never[]) => Promise<unknown> {
  return async (...args) => {
    const startMs = monotonicMs();
    const tell = (facts: Facts, code?: string): void =>
      emit({
        type: name as SyncGuardEvent['type'],
        result: code === undefined && facts.reason === undefined ? 'ok' : 'fail',
        ...facts,
        ...(code === undefined ? {} : { code }),
        durationMs: monotonicMs() - startMs,
      });
    let result: unknown;
    try {
      result = await Reflect.apply<object, never[], Promise<unknown>>(
        Reflect.get(port, name) as Method,
        port,
        args,
      );
    } catch (error: unknown) {
      tell(describe(undefined, ...args), codeOf(error));
      throw error;
    }
    tell(describe(result, ...args));
    return result;
  };
}

const codeOf = (error: unknown): string =>
  error instanceof SyncGuardError ? (error as SyncGuardError).code : 'Internal';
