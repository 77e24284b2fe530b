import { SyncGuardError } from '../core/errors.js';
import type { Emit, Facts, Feature, SyncGuardEvent } from './telemetry.types.js';

type Method = (...args: never[]) => Promise<unknown>;

/** Returns the facts of a call. The result is undefined if the call threw or returned nothing. */
type Describe<Called extends Method> = (
  result: Awaited<ReturnType<Called>> | undefined,
  ...args: Parameters<Called>
) => Facts;

type Observable<Port> = keyof { [Name in keyof Port as Port[Name] extends Method ? Name : never]: unknown };

export type Descriptions<Port> = {
  readonly [Name in Observable<Port>]: Port[Name] extends Method ? Describe<Port[Name]> : never;
};

const UNKNOWN = { code: 'Internal', context: {} as Readonly<Record<string, unknown>> };

/**
 * Returns a proxy of the port. It emits an event when a call of a described method has returned or thrown. Everything
 * else reaches the port unchanged.
 */
export function observe<Port extends object>(
  port: Port,
  feature: Feature,
  descriptions: Partial<Descriptions<Port>>,
  emit: Emit,
): Port {
  const members = Object.entries<unknown>(descriptions).map(([name, describe]) => [
    name,
    async (...args: never[]): Promise<unknown> => {
      const startMs = performance.now();
      const report = (result: unknown, code?: string, more: Facts = {}): void => {
        const facts = { ...(describe as Describe<Method>)(result, ...args), ...more };
        emit({
          ...{ feature, type: name as SyncGuardEvent['type'] },
          result: code === undefined && facts.reason === undefined ? 'ok' : 'fail',
          ...facts,
          ...(code === undefined ? {} : { code }),
          durationMs: performance.now() - startMs,
        });
      };
      let result: unknown;
      try {
        result = await (Reflect.get(port, name) as Method).apply(port, args);
      } catch (error: unknown) {
        const { code, context } = error instanceof SyncGuardError ? (error as SyncGuardError) : UNKNOWN;
        // Redis may be well, and this process is what was too busy.
        report(undefined, code, context.loop === true ? { reason: 'loop' } : {});
        throw error;
      }
      report(result);
      return result;
    },
  ]);
  return inFrontOf(port, Object.fromEntries(members) as Partial<Port>);
}

/** Returns the port with some members replaced. The others are looked up at every use, because they may change. */
export function inFrontOf<Port extends object>(port: Port, members: Partial<Port>): Port {
  // The proxy's target is not the port itself: a proxy may not replace the members of a frozen target.
  return new Proxy(Object.create(port) as Port, {
    get: (_, name) => {
      if (Object.hasOwn(members, name)) return Reflect.get(members, name) as unknown;
      const member: unknown = Reflect.get(port, name);
      return typeof member === 'function' ? (member.bind(port) as unknown) : member;
    },
  });
}
