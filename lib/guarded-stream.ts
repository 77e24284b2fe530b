import { AsyncLocalStorage } from 'node:async_hooks';
import { isObservable, Observable, Subject, takeUntil } from 'rxjs';
import { SyncGuardError } from './syncguard.errors.js';

type Method = (this: unknown, ...args: never[]) => unknown;

/** How far the stream of a guarded method has come. Of a method that gives no stream nothing changes. */
export interface StreamProgress {
  isStream: boolean;
  /** How many items have left. */
  items: number;
  last: unknown;
  /** It gave all that it had. False where it failed, and where its reader left before its end. */
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
 * asked for until it returns, throws, or its reader stops reading it.
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

function guardPromise(original: Method, enter: Enter, patience: Patience): Method {
  return function (this: unknown, ...args: unknown[]): Promise<unknown> {
    return new Promise((resolve, reject) => {
      const progress = noProgress(false);
      const body = async (): Promise<unknown> => {
        const result = await original.apply(this, args as never[]);
        return isObservable(result) ? handOver(result, resolve, () => run, patience(this), progress) : result;
      };
      const run: Promise<unknown> = enter(this, args, body, progress);
      run.then(resolve, reject);
    });
  };
}

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
    const guarded = await enterUntilLeft((body) => enter(this, args, body, progress));
    let failed = false;
    try {
      const items = guarded.inside(() => original.apply(this, args as never[])) as AsyncGenerator;
      // Whatever the reader does (asks, throws, stops) reaches the method, and its `finally` runs under the guard.
      const inside =
        (call: 'next' | 'throw' | 'return') =>
        async (value?: unknown): Promise<IteratorResult<unknown, unknown>> => {
          const step = await guarded.inside(() => items[call](value));
          if (!step.done) advance(progress, step.value);
          else progress.completed = call !== 'return';
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
  };
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
