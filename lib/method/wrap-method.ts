import { AsyncLocalStorage } from 'node:async_hooks';
import { isObservable, Observable, Subject, takeUntil } from 'rxjs';
import { handOverFile, isStreamedFile } from './hand-over-file.js';
import { SyncGuardError } from '../core/errors.js';

type Method = (this: unknown, ...args: never[]) => unknown;

/** How far the stream of a wrapped method has come. It does not change if the method returns no stream. */
export interface StreamProgress {
  isStream: boolean;
  /** How many items the caller has received. */
  items: number;
  last: unknown;
  /**
   * The stream ended by itself. False where it failed, and where its reader stopped it by `return` or
   * `throw`.
   */
  completed: boolean;
}

/**
 * Runs a body inside a lock or a budget hold. Resolves to the result of the body, or rejects with its error
 * or with the error of the lock or budget.
 */
export type Around = <T>(
  self: unknown,
  args: unknown[],
  body: () => T | Promise<T>,
  progress: StreamProgress,
) => Promise<T>;

/** Returns how long an Observable or generator of this instance may wait for its first reader, in ms. */
export type Patience = (self: unknown) => number;

/**
 * Returns a method that runs inside a lock or a budget hold until its work is done. For a promise this is
 * until it settles. For an Observable it is until it completes, fails or is unsubscribed. For an async
 * generator it lasts from the first read until the generator returns or throws, or its reader stops. For a
 * StreamableFile it is until the stream closes.
 */
export function wrapMethod(original: Method, around: Around, patience: Patience): Method {
  return isAsyncGenerator(original)
    ? wrapGenerator(original, around)
    : wrapPromise(original, around, patience);
}

const noProgress = (isStream: boolean): StreamProgress => ({
  isStream,
  items: 0,
  last: undefined,
  completed: false,
});

function advance(progress: StreamProgress, item: unknown): void {
  progress.items++;
  progress.last = item;
}

const isAsyncGenerator = (method: Method): boolean => method.constructor.name === 'AsyncGeneratorFunction';

const isAsyncIterable = (value: unknown): boolean =>
  typeof value === 'object' && value !== null && Symbol.asyncIterator in value;

/** The error for an iterable that the caller would read after the lock or the hold has ended. */
const notAGenerator = (name: string): SyncGuardError =>
  new SyncGuardError({
    code: 'InvalidArgument',
    message: `${name}() returns an async iterable that is not an async generator, so its end cannot be seen.`,
    hint: 'Write the method as `async *`, and pass the items on by `yield*`.',
  });

function wrapPromise(original: Method, around: Around, patience: Patience): Method {
  // An async function returns a promise. For any other function, such as a wrapper, only a call shows what it
  // returns.
  const isAsync = original.constructor.name === 'AsyncFunction';
  return function (this: unknown, ...args: unknown[]): Promise<unknown> {
    const result = new Promise<unknown>((resolve, reject) => {
      const progress = noProgress(false);
      const body = async (): Promise<unknown> => {
        const returned = original.apply(this, args as never[]);
        const value = await returned;
        if (typeof value !== 'object' || value === null) return value;
        if (isObservable(value))
          return handOverObservable(value, resolve, () => run, patience(this), progress);
        if (isStreamedFile(value)) return handOverFile(value, resolve, patience(this));
        if (isGenerator(value)) return handOverItems(value, resolve, () => run, patience(this), progress);
        if (value === returned && isAsyncIterable(value)) throw notAGenerator(original.name);
        return value;
      };
      const run: Promise<unknown> = around(this, args, body, progress);
      run.then(resolve, reject);
    });
    return isAsync ? result : readable(result);
  };
}

/**
 * Recognises the result of an `async *` method, also if a compiler has turned the method into a plain
 * function. Streams of SDKs do not count.
 */
const isGenerator = (value: unknown): value is AsyncGenerator =>
  Object.prototype.toString.call(value) === '[object AsyncGenerator]' ||
  (typeof value === 'object' &&
    value !== null &&
    STEPS.every((step) => Object.hasOwn(value, step)) &&
    Object.hasOwn(value, Symbol.asyncIterator));

const STEPS = ['next', 'throw', 'return'] as const;

/**
 * Returns a promise that can also be read as the generator which it resolves to: callers of an `async *`
 * method read it without `await`.
 */
function readable(promise: Promise<unknown>): Promise<unknown> {
  const step =
    (call: (typeof STEPS)[number]) =>
    async (value?: unknown): Promise<unknown> => {
      const items = await promise;
      if (isGenerator(items)) return items[call](value);
      throw new TypeError('The method returned a promise of something other than a generator. Await it.');
    };
  return Object.defineProperties(promise, {
    next: { value: step('next') },
    throw: { value: step('throw') },
    return: { value: step('return') },
    [Symbol.asyncIterator]: { value: () => promise },
  });
}

/**
 * Hands a generator to the caller while the lock or the hold goes on. Resolves to the last item when the
 * generator has ended.
 */
function handOverItems(
  items: AsyncGenerator,
  onReady: (copy: AsyncGenerator) => void,
  settled: () => Promise<unknown>,
  patienceMs: number,
  progress: StreamProgress,
): Promise<unknown> {
  const inside: Entered['inside'] = AsyncLocalStorage.snapshot();
  progress.isStream = true;
  return new Promise((end, fail) => {
    let isOver = false;
    const giveUp = setTimeout(() => {
      isOver = true;
      end(undefined);
    }, patienceMs).unref();
    const entered = {
      inside,
      leave: async (last: unknown) => {
        end(last);
        await settled();
      },
      fail: async (error: unknown) => {
        fail(error);
        await settled().catch(() => {}); // The generator throws this same error to its reader.
      },
    };
    const read = async function* (): AsyncGenerator<unknown, unknown, unknown> {
      if (isOver) throw notReadable('read', patienceMs);
      clearTimeout(giveUp);
      return yield* readInside(entered, () => items, progress);
    };
    onReady(read());
  });
}

const notReadable = (did: string, patienceMs: number): SyncGuardError =>
  new SyncGuardError({
    code: 'InvalidArgument',
    message: `Nobody ${did} this generator within ${patienceMs} ms, so its lock or budget hold has ended.`,
    hint: 'Call the method again, and read the generator at once.',
  });

/**
 * Hands an Observable to the caller while the lock or the hold goes on. Resolves to the last item when the
 * source has completed. The caller's copy completes after the lock or the hold has ended, and fails if ending it
 * failed.
 */
function handOverObservable(
  source: Observable<unknown>,
  onReady: (copy: Observable<unknown>) => void,
  settled: () => Promise<unknown>,
  patienceMs: number,
  progress: StreamProgress,
): Promise<unknown> {
  const inside = AsyncLocalStorage.snapshot();
  progress.isStream = true;
  return new Promise((end, fail) => {
    let state: 'waiting' | 'taken' | 'over' = 'waiting';
    const giveUp = setTimeout(() => {
      state = 'over';
      end(undefined);
    }, patienceMs).unref();
    const copy = new Observable((subscriber) => {
      if (state !== 'waiting') return subscriber.error(notSubscribable(state, patienceMs));
      state = 'taken';
      clearTimeout(giveUp);
      // `takeUntil` also stops a source that emits all its items during `subscribe`.
      const stopped = new Subject<void>();
      let left = false;
      subscriber.add(() => {
        left = true;
        stopped.next();
      });
      inside(() =>
        source.pipe(takeUntil(stopped)).subscribe({
          next: (item) => {
            advance(progress, item);
            subscriber.next(item);
          },
          error: (error: unknown) => {
            fail(error);
            settled().catch((reason: unknown) => subscriber.error(reason));
          },
          complete: () => {
            progress.completed = !left;
            end(progress.last);
            settled().then(
              () => subscriber.complete(),
              (reason: unknown) => subscriber.error(reason),
            );
          },
        }),
      );
    });
    onReady(copy);
  });
}

function notSubscribable(state: 'taken' | 'over', patienceMs: number): SyncGuardError {
  return new SyncGuardError({
    code: 'InvalidArgument',
    message:
      state === 'taken'
        ? 'This Observable has a lock or a budget hold for one subscriber, and cannot be subscribed a second time.'
        : `Nobody subscribed to this Observable within ${patienceMs} ms, so its lock or budget hold has ended.`,
    hint: 'Call the method once for each subscriber, and subscribe at once.',
  });
}

function wrapGenerator(original: Method, around: Around): Method {
  return async function* (this: unknown, ...args: unknown[]): AsyncGenerator<unknown, unknown, unknown> {
    const progress = noProgress(true);
    const entered = await enterUntilLeft((body) => around(this, args, body, progress));
    return yield* readInside(
      entered,
      () => original.apply(this, args as never[]) as AsyncGenerator,
      progress,
    );
  };
}

/** A reader that has taken an item, and asks for no further one for this long, has left without a word. */
const READER_AWAY_MS = 5 * 60_000;

/**
 * Reads a generator inside a lock or a hold, and ends that when the generator ends or fails, or when its
 * reader stops. A reader that stays away would hold it for as long as the process lives, so it is taken to have stopped.
 */
async function* readInside(
  entered: Entered,
  start: () => AsyncGenerator,
  progress: StreamProgress,
): AsyncGenerator<unknown, unknown, unknown> {
  let failed = false;
  let isOver = false;
  let away: NodeJS.Timeout | undefined;
  try {
    const items = entered.inside(start);
    const stop = async (): Promise<void> => {
      isOver = true;
      await entered.inside(() => items.return(undefined)).catch(() => {}); // The reader that would be told is gone.
      await entered.leave(progress.last).catch(() => {});
    };
    // Whatever the reader does (asks, throws, stops) reaches the method. So its `finally` runs inside the lock too.
    const inside =
      (call: (typeof STEPS)[number]) =>
      async (value?: unknown): Promise<IteratorResult<unknown, unknown>> => {
        clearTimeout(away);
        if (isOver && call === 'return') return { done: true, value };
        if (isOver) throw notReadable('asked for the next item of', READER_AWAY_MS);
        const step = await entered.inside(() => items[call](value));
        if (step.done) progress.completed = call === 'next';
        else {
          advance(progress, step.value);
          away = setTimeout(() => void stop(), READER_AWAY_MS).unref();
        }
        return step;
      };
    const steps = { next: inside('next'), throw: inside('throw'), return: inside('return') };
    return yield* { [Symbol.asyncIterator]: () => steps };
  } catch (error) {
    failed = true;
    await entered.fail(error);
    throw error;
  } finally {
    if (!failed) await entered.leave(progress.last);
  }
}

interface Entered {
  /**
   * Runs a function in the async context of the body, so that `currentLock()` and `currentHold()` work in it.
   */
  inside<T>(run: () => T): T;
  leave(result: unknown): Promise<void>;
  fail(error: unknown): Promise<void>;
}

/** Enters the lock or the hold now, and returns the functions that end it later. */
function enterUntilLeft(enter: (body: () => Promise<unknown>) => Promise<unknown>): Promise<Entered> {
  return new Promise((entered, refused) => {
    const run: Promise<unknown> = enter(
      () =>
        new Promise((finish, fail) =>
          entered({
            inside: AsyncLocalStorage.snapshot(),
            leave: async (result) => {
              finish(result);
              await run;
            },
            fail: async (error) => {
              fail(error);
              await run.catch(() => {}); // The generator throws this same error to its reader.
            },
          }),
        ),
    );
    run.catch(refused);
  });
}
