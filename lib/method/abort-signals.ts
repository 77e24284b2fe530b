import { offAbort, onAbort } from '../core/abort-listeners.js';
import { read, safely } from '../core/foreign-values.js';

/**
 * Returns the signals among the arguments of a method: an argument that is one, and one that an argument has, such as an
 * options object or a Request.
 */
export function signalsIn(args: readonly unknown[]): AbortSignal[] {
  const found: AbortSignal[] = [];
  for (const arg of args) {
    if (typeof arg !== 'object' || arg === null) continue;
    for (const value of [arg, read(arg, 'signal'), ...valuesIn(arg)])
      if (isSignal(value) && !found.includes(value)) found.push(value);
  }
  return found;
}

const isSignal = (value: unknown): value is AbortSignal =>
  typeof value === 'object' &&
  typeof read(value, 'aborted') === 'boolean' &&
  typeof read(value, 'addEventListener') === 'function';

/** Returns the values of a plain object, and none of anything else. */
function valuesIn(value: object): unknown[] {
  const prototype: unknown = safely(() => Object.getPrototypeOf(value) as unknown);
  if (prototype !== Object.prototype && prototype !== null) return [];
  return (safely(() => Object.keys(value)) ?? []).map((name) => read(value, name));
}

/**
 * Calls `run` with a signal that aborts when any of `signals` does, or with none if there are none.
 *
 * `AbortSignal.any()` would be shorter, but its results stay in memory for as long as the longest-lived of the signals.
 */
export function withAnyOf<T>(
  signals: readonly AbortSignal[],
  run: (signal: AbortSignal | undefined) => Promise<T>,
): Promise<T> {
  if (signals.length < 2) return run(signals[0]);
  const any = new AbortController();
  const listener = {
    handleEvent: () => any.abort(signals.find(({ aborted }) => aborted)?.reason),
  };
  for (const signal of signals) onAbort(signal, listener);
  if (signals.some(({ aborted }) => aborted)) listener.handleEvent();
  return run(any.signal).finally(() => signals.forEach((signal) => offAbort(signal, listener)));
}
