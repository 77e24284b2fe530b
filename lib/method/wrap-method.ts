import { isObservable } from 'rxjs';
import { wantResponses } from '../core/current-response.js';
import { handOverItems, isGenerator, readable, readInside } from './generators.js';
import { handOverFile, handOverObservable, isStreamedFile } from './hand-over.js';
import type { Idle } from './reader-watch.js';
import { misuse, type Scope, staying, type StreamProgress } from './scope.js';

export type { StreamProgress } from './scope.js';

type Method = (this: unknown, ...args: never[]) => unknown;

/**
 * Runs a body inside a lock or a budget hold. Resolves to the result of the body, or rejects with its error or with the
 * error of the lock or budget.
 */
export type Around = <T>(
  self: unknown,
  args: unknown[],
  body: () => T | Promise<T>,
  progress: StreamProgress,
) => Promise<T>;

export interface Wrapping {
  readonly around: Around;
  /** Returns how long a stream of this instance may wait for its first reader, in ms. */
  patienceMs(self: unknown): number;
  /** Returns how long the HTTP client of a stream may stay away, in ms. */
  idleMs(self: unknown): number;
  /** Called when the client stays away longer. Returns the error for whoever reads the stream later. */
  onIdle?(self: unknown, idleMs: number, progress: StreamProgress): Error | undefined;
  /** The index of the parameter that `@HangUp()` marks. Nest fills it where there is a request. */
  readonly hangUpAt: number | undefined;
}

/** Returns a method that runs inside a lock or a budget hold until its work is done, streams included (docs/adr/0008). */
export function wrapMethod(original: Method, wrapping: Wrapping): Method {
  wantResponses();
  return original.constructor.name === 'AsyncGeneratorFunction'
    ? wrapGenerator(original, wrapping)
    : wrapPromise(original, wrapping);
}

/** A direct call, such as that of a scheduler, has nobody who could hang up. */
function fillHangUp(args: unknown[], hangUpAt: number | undefined): void {
  if (hangUpAt !== undefined) args[hangUpAt] ??= new AbortController().signal;
}

const noProgress = (): StreamProgress => ({ isStream: false, items: 0, last: undefined, completed: false });

/** The error for an iterable that the caller would read after the lock or the hold has ended. */
const notAGenerator = (name: string): Error =>
  misuse(
    `${name}() returns an async iterable that is not an async generator, so its end cannot be seen.`,
    'Write the method as `async *`, and pass the items on by `yield*`.',
  );

function idleOf({ idleMs, onIdle }: Wrapping, self: unknown, progress: StreamProgress): Idle {
  const ms = idleMs(self);
  return { ms, end: () => onIdle?.(self, ms, progress) ?? nobodyReads(ms) };
}

const nobodyReads = (idleMs: number): Error =>
  misuse(
    `Nobody has read this stream for ${idleMs} ms, so its lock or budget hold has ended.`,
    'Where readers take longer, raise `idleMs`.',
  );

function wrapPromise(original: Method, wrapping: Wrapping): Method {
  const { around, patienceMs, hangUpAt } = wrapping;
  // An async function returns a promise. For any other function, such as a wrapper, only a call shows what it returns.
  const isAsync = original.constructor.name === 'AsyncFunction';
  return function (this: unknown, ...args: unknown[]): Promise<unknown> {
    fillHangUp(args, hangUpAt);
    const result = new Promise<unknown>((resolve, reject) => {
      const progress = noProgress();
      const body = async (): Promise<unknown> => {
        const returned = original.apply(this, args as never[]);
        const value = await returned;
        if (typeof value !== 'object' || value === null) return value;
        const idle = idleOf(wrapping, this, progress);
        const reader = { onReady: resolve, settled: () => run, patienceMs: patienceMs(this), idle, progress };
        if (isObservable(value)) return handOverObservable(value, reader);
        if (isStreamedFile(value)) return handOverFile(value, reader);
        if (isGenerator(value)) return handOverItems(value, reader);
        if (value === returned && Symbol.asyncIterator in value) throw notAGenerator(original.name);
        return value;
      };
      const run: Promise<unknown> = around(this, args, body, progress);
      run.then(resolve, reject);
    });
    return isAsync ? result : readable(result);
  };
}

function wrapGenerator(original: Method, wrapping: Wrapping): Method {
  const { around, hangUpAt } = wrapping;
  return async function* (this: unknown, ...args: unknown[]): AsyncGenerator<unknown, unknown, unknown> {
    fillHangUp(args, hangUpAt);
    const progress = noProgress();
    const scope = await new Promise<Scope>((entered, refused) => {
      const body = (): Promise<unknown> => staying({ progress, settled: () => run }, entered);
      const run: Promise<unknown> = around(this, args, body, progress);
      run.catch(refused);
    });
    const items = (): AsyncGenerator => original.apply(this, args as never[]) as AsyncGenerator;
    return yield* readInside(scope, items, idleOf(wrapping, this, progress));
  };
}
