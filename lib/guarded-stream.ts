import { AsyncLocalStorage } from 'node:async_hooks';
import { isObservable, Observable, Subject, takeUntil } from 'rxjs';
import { handOverFile, isStreamedFile } from './guarded-file.js';
import { SyncGuardError } from './syncguard.errors.js';

type Method = (this: unknown, ...args: never[]) => unknown;

/** How far the stream of a guarded method has come. Of a method that gives no stream nothing changes. */
export interface StreamProgress {
  isStream: boolean;
  /** How many items have left. */
  items: number;
  last: unknown;
  /** It gave all that it had. False where it failed, and where its reader left before its end, by `return` or `throw`. */
  completed: boolean;
}

/** Runs a body under a guard (a lock, a budget): gives what the body gives, or fails as the guard does. */
export type Enter = <T>(
  self: unknown,
  args: unknown[],
  body: () => T | Promise<T>,
  progress: StreamProgress,
) => Promise<T>;

/** How long an Observable of this instance may wait for its subscriber, in ms, before the guard is left. */
export type Patience = (self: unknown) => number;

/**
 * A method that runs under a guard from its call until its work is done: until the promise settles; if that
 * gives an Observable, until it completes, fails or is unsubscribed; of an async generator, from the first item
 * asked for until it returns, throws, or its reader stops reading it; of a StreamableFile, until its stream closes.
 */
export function guardMethod(original: Method, enter: Enter, patience: Patience): Method {
  return isAsyncGenerator(original)
    ? guardGenerator(original, enter)
    : guardPromise(original, enter, patience);
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

/** Its caller would read it after the guard was left. */
const notAGenerator = (name: string): SyncGuardError =>
  new SyncGuardError({
    code: 'InvalidArgument',
    message: `${name}() gives an async iterable, but is no async generator: a guard cannot follow it.`,
    hint: 'Write it as `async *`, with `yield*` for an iterable that you have.',
  });

function guardPromise(original: Method, enter: Enter, patience: Patience): Method {
  // What is async by itself gives a promise; of anything else, such as a wrapper, only a call shows what it gives.
  const isAsync = original.constructor.name === 'AsyncFunction';
  return function (this: unknown, ...args: unknown[]): Promise<unknown> {
    const result = new Promise<unknown>((resolve, reject) => {
      const progress = noProgress(false);
      const body = async (): Promise<unknown> => {
        const returned = original.apply(this, args as never[]);
        const given = await returned;
        if (isObservable(given)) return handOver(given, resolve, () => run, patience(this), progress);
        if (isStreamedFile(given)) return handOverFile(given, resolve, patience(this));
        if (isGenerator(given)) return handOverItems(given, resolve, () => run, patience(this), progress);
        if (given === returned && isAsyncIterable(given)) throw notAGenerator(original.name);
        return given;
      };
      const run: Promise<unknown> = enter(this, args, body, progress);
      run.then(resolve, reject);
    });
    return isAsync ? result : readable(result);
  };
}

/** What an `async *` method gives, also where a compiler has made a function of it; no stream of an SDK. */
const isGenerator = (value: unknown): value is AsyncGenerator =>
  Object.prototype.toString.call(value) === '[object AsyncGenerator]' ||
  (typeof value === 'object' &&
    value !== null &&
    STEPS.every((step) => Object.hasOwn(value, step)) &&
    Object.hasOwn(value, Symbol.asyncIterator));

const STEPS = ['next', 'throw', 'return'] as const;

/** A promise that can be read as the generator it may give, as callers of an `async *` method do without `await`. */
function readable(promise: Promise<unknown>): Promise<unknown> {
  const step =
    (call: (typeof STEPS)[number]) =>
    async (value?: unknown): Promise<unknown> => {
      const items = await promise;
      if (isGenerator(items)) return items[call](value);
      throw new TypeError('The method gives no generator: await it.');
    };
  return Object.defineProperties(promise, {
    next: { value: step('next') },
    throw: { value: step('throw') },
    return: { value: step('return') },
    [Symbol.asyncIterator]: { value: () => promise },
  });
}

/** Hands a generator to the caller while the body stays under its guard; gives the last item when it has ended. */
function handOverItems(
  items: AsyncGenerator,
  give: (copy: AsyncGenerator) => void,
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
        await settled().catch(() => {}); // It fails with this very error, which the generator throws.
      },
    };
    const read = async function* (): AsyncGenerator<unknown, unknown, unknown> {
      if (isOver) throw notReadable(patienceMs);
      clearTimeout(giveUp);
      return yield* readUnder(entered, () => items, progress);
    };
    give(read());
  });
}

const notReadable = (patienceMs: number): SyncGuardError =>
  new SyncGuardError({
    code: 'InvalidArgument',
    message: `Nobody read this generator within ${patienceMs} ms, so its guard was left.`,
    hint: 'Call the method again, and read at once.',
  });

/**
 * Hands an Observable to the caller while the body stays under its guard; gives the last item when it has
 * ended. The caller's copy ends after the guard was left, and fails if that failed.
 */
function handOver(
  source: Observable<unknown>,
  give: (copy: Observable<unknown>) => void,
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
      // Heeded also by a source that gives all its items while it is subscribed.
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
    give(copy);
  });
}

function notSubscribable(state: 'taken' | 'over', patienceMs: number): SyncGuardError {
  return new SyncGuardError({
    code: 'InvalidArgument',
    message:
      state === 'taken'
        ? 'This Observable runs under a guard that was entered once: it cannot be subscribed a second time.'
        : `Nobody subscribed this Observable within ${patienceMs} ms, so its guard was left.`,
    hint: 'Call the method again for each subscriber, and subscribe at once.',
  });
}

function guardGenerator(original: Method, enter: Enter): Method {
  return async function* (this: unknown, ...args: unknown[]): AsyncGenerator<unknown, unknown, unknown> {
    const progress = noProgress(true);
    const entered = await enterUntilLeft((body) => enter(this, args, body, progress));
    return yield* readUnder(entered, () => original.apply(this, args as never[]) as AsyncGenerator, progress);
  };
}

/** Reads a generator under a guard that was entered, and leaves that when it ends, fails or its reader stops. */
async function* readUnder(
  guarded: Entered,
  start: () => AsyncGenerator,
  progress: StreamProgress,
): AsyncGenerator<unknown, unknown, unknown> {
  let failed = false;
  try {
    const items = guarded.inside(start);
    // Whatever the reader does (asks, throws, stops) reaches the method, and its `finally` runs under the guard.
    const inside =
      (call: (typeof STEPS)[number]) =>
      async (value?: unknown): Promise<IteratorResult<unknown, unknown>> => {
        const step = await guarded.inside(() => items[call](value));
        if (!step.done) advance(progress, step.value);
        else progress.completed = call === 'next';
        return step;
      };
    const steps = { next: inside('next'), throw: inside('throw'), return: inside('return') };
    return yield* { [Symbol.asyncIterator]: () => steps };
  } catch (error) {
    failed = true;
    await guarded.fail(error);
    throw error;
  } finally {
    if (!failed) await guarded.leave(progress.last);
  }
}

interface Entered {
  /** Runs something as the guard's body runs: `currentLock()` knows where it is. */
  inside<T>(run: () => T): T;
  leave(result: unknown): Promise<void>;
  fail(error: unknown): Promise<void>;
}

/** A guard turned inside out: entered now, left when told. */
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
              await run.catch(() => {}); // It fails with this very error, which the generator throws.
            },
          }),
        ),
    );
    run.catch(refused);
  });
}
