import { currentResponse } from '../core/current-response.js';
import { type Idle, ReaderWatch } from './reader-watch.js';
import { advance, type Reader, type Scope, staying, tooLate, untilRead } from './scope.js';

/** Recognises the result of an `async *` method, also of a compiled one. Streams of SDKs do not count. */
export const isGenerator = (value: unknown): value is AsyncGenerator =>
  Object.prototype.toString.call(value) === '[object AsyncGenerator]' ||
  OWN.every((name) => Object.hasOwn(Object(value) as object, name));

const STEPS = ['next', 'throw', 'return'] as const;
const OWN = [...STEPS, Symbol.asyncIterator];
type Step = (typeof STEPS)[number];

const eachStep = <T>(make: (call: Step) => T): Record<Step, T> => {
  return { next: make('next'), throw: make('throw'), return: make('return') };
};

/**
 * Returns a promise that can also be read as the generator which it resolves to: callers of an `async *` method read it
 * without `await`.
 */
export function readable(promise: Promise<unknown>): Promise<unknown> {
  const steps = eachStep((call) => ({
    value: async (value?: unknown): Promise<unknown> => {
      const items = await promise;
      if (isGenerator(items)) return items[call](value);
      throw new TypeError('The method returned a promise of something other than a generator. Await it.');
    },
  }));
  return Object.defineProperties(promise, { ...steps, [Symbol.asyncIterator]: { value: () => promise } });
}

/** Hands a generator to the caller while the lock or the hold goes on. Resolves to the last item. */
export function handOverItems(items: AsyncGenerator, reader: Reader): Promise<unknown> {
  return staying(reader, (scope) => {
    const isInTime = untilRead(scope, reader.patienceMs);
    const read = async function* (): AsyncGenerator<unknown, unknown, unknown> {
      if (!isInTime())
        throw tooLate(
          'read this generator',
          reader.patienceMs,
          'Call the method again, and read the generator at once.',
        );
      return yield* readInside(scope, () => items, reader.idle);
    };
    reader.onReady(read());
  });
}

/**
 * Reads a generator inside a lock or a hold, and ends that when the generator ends or fails, or when its reader stops.
 * A reader whose HTTP client stays away would hold it for as long as the process lives, so it is taken to have stopped.
 */
export async function* readInside(
  scope: Scope,
  start: () => AsyncGenerator,
  idle: Idle,
): AsyncGenerator<unknown, unknown, unknown> {
  const { progress } = scope;
  let failed = false;
  let gone: Error | undefined;
  let watch: ReaderWatch | undefined;
  try {
    const items = scope.inside(start);
    const stop = async (reason: Error): Promise<void> => {
      gone = reason;
      await scope.inside(() => items.return(undefined)).catch(() => {}); // The reader that would be told is gone.
      await scope.leave().catch(() => {});
    };
    const response = scope.inside(currentResponse);
    if (response && idle.ms < Infinity)
      watch = new ReaderWatch(idle, (reason) => void stop(reason), response);
    // Whatever the reader does (asks, throws, stops) reaches the method. So its `finally` runs inside the lock too.
    const steps = eachStep((call) => async (value?: unknown): Promise<IteratorResult<unknown, unknown>> => {
      watch?.asked();
      if (gone && call === 'return') return { done: true, value };
      if (gone) throw gone;
      const step = await scope.inside(() => items[call](value));
      if (step.done) {
        progress.completed = call === 'next';
        if (progress.completed) progress.returned = step.value;
      } else {
        advance(progress, step.value);
        watch?.handedOn(step.value);
      }
      return step;
    });
    return yield* { [Symbol.asyncIterator]: () => steps };
  } catch (error) {
    failed = true;
    await scope.fail(error).catch(() => {}); // The reader gets the error of the generator.
    throw error;
  } finally {
    watch?.end();
    if (!failed && !gone) await scope.leave();
  }
}
