import { SyncGuardError } from '../core/errors.js';
import type { Emit, Facts, Feature, Observation, SyncGuardEvent } from './telemetry.types.js';

type Method = (...args: never[]) => Promise<unknown>;

/** Returns the facts of a call, in an object of their own. The result is undefined if the call threw or returned nothing. */
type Describe<Called extends Method> = (
  result: Awaited<ReturnType<Called>> | undefined,
  ...args: Parameters<Called>
) => Facts;

type Observable<Port> = keyof { [Name in keyof Port as Port[Name] extends Method ? Name : never]: unknown };

export type Descriptions<Port> = {
  readonly [Name in Observable<Port>]: Port[Name] extends Method ? Describe<Port[Name]> : never;
};

/** A result that says no. */
export type Refusal = { readonly ok: false; readonly reason: string };

export const refusalIn = (result: { readonly ok: true } | Refusal | undefined): string | undefined =>
  result?.ok === false ? result.reason : undefined;

type Mutable<T> = { -readonly [Name in keyof T]: T[Name] };

const UNKNOWN = { code: 'Internal', context: {} as Readonly<Record<string, unknown>> };

/**
 * Returns the port with an event of each call of a described method, when it has returned or thrown. Everything else reaches the
 * port unchanged.
 *
 * @param instead - methods that are called in place of those of the port
 */
export function observe<Port extends object>(
  port: Port,
  feature: Feature,
  descriptions: Partial<Descriptions<Port>>,
  emit: Emit,
  instead: Partial<Port> = {},
): Port {
  const members = Object.entries<unknown>(descriptions).map(([name, describe]) => [
    name,
    async (...args: never[]): Promise<unknown> => {
      const startMs = performance.now();
      const report = (result: unknown, fault?: typeof UNKNOWN): void => {
        // What every event has is added to the facts: to spread them into another object would take longer than all the rest.
        const observed = (describe as Describe<Method>)(result, ...args) as Mutable<Observation>;
        if (fault) observed.code = fault.code;
        // Redis may be well, and this process is what was too busy.
        if (fault?.context.loop === true) observed.reason = 'loop';
        observed.feature = feature;
        observed.type ??= name as SyncGuardEvent['type'];
        observed.result = fault === undefined && observed.reason === undefined ? 'ok' : 'fail';
        observed.durationMs = performance.now() - startMs;
        emit(observed);
      };
      let result: unknown;
      try {
        result = await ((Reflect.get(instead, name) ?? Reflect.get(port, name)) as Method).apply(port, args);
      } catch (error: unknown) {
        report(undefined, error instanceof SyncGuardError ? (error as SyncGuardError) : UNKNOWN);
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
  const others = new Proxy(Object.create(port) as Port, {
    get: (_, name) => {
      const member: unknown = Reflect.get(port, name);
      return typeof member === 'function' ? (member.bind(port) as unknown) : member;
    },
  });
  // As members of its own the replaced ones are found without the proxy, which takes longer than many a call in memory.
  return Object.setPrototypeOf(members, others) as Port;
}
