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
      if (!isInTime()) throw notReadable('read', reader.patienceMs);
      return yield* readInside(scope, () => items);
    };
    reader.onReady(read());
  });
}

const notReadable = (did: string, patienceMs: number): Error =>
  tooLate(`${did} this generator`, patienceMs, 'Call the method again, and read the generator at once.');

/** A reader that has taken an item, and asks for no further one for this long, has left without a word. */
const READER_AWAY_MS = 5 * 60_000;

/**
 * Reads a generator inside a lock or a hold, and ends that when the generator ends or fails, or when its reader stops.
 * A reader that stays away would hold it for as long as the process lives, so it is taken to have stopped.
 */
export async function* readInside(
  scope: Scope,
  start: () => AsyncGenerator,
): AsyncGenerator<unknown, unknown, unknown> {
  const { progress } = scope;
  let failed = false;
  let isOver = false;
  let away: NodeJS.Timeout | undefined;
  try {
    const items = scope.inside(start);
    const stop = async (): Promise<void> => {
      isOver = true;
      await scope.inside(() => items.return(undefined)).catch(() => {}); // The reader that would be told is gone.
      await scope.leave().catch(() => {});
    };
    // Whatever the reader does (asks, throws, stops) reaches the method. So its `finally` runs inside the lock too.
    const steps = eachStep((call) => async (value?: unknown): Promise<IteratorResult<unknown, unknown>> => {
      clearTimeout(away);
      if (isOver && call === 'return') return { done: true, value };
      if (isOver) throw notReadable('asked for the next item of', READER_AWAY_MS);
      const step = await scope.inside(() => items[call](value));
      if (step.done) {
        progress.completed = call === 'next';
        if (progress.completed) progress.returned = step.value;
      } else {
        advance(progress, step.value);
        away = setTimeout(() => void stop(), READER_AWAY_MS).unref();
      }
      return step;
    });
    return yield* { [Symbol.asyncIterator]: () => steps };
  } catch (error) {
    failed = true;
    await scope.fail(error).catch(() => {}); // The reader gets the error of the generator.
    throw error;
  } finally {
    if (!failed) await scope.leave();
  }
}
