import { AsyncLocalStorage } from 'node:async_hooks';
import { finished, type Readable } from 'node:stream';
import { Observable, Subject, takeUntil } from 'rxjs';
import { advance, misuse, type Reader, staying, tooLate, untilRead } from './scope.js';

const SUBSCRIBE_HINT = 'Call the method once for each subscriber, and subscribe at once.';
const FILE_HINT = 'Return the file from the handler at once, or read it inside the method.';

/**
 * Hands an Observable to the caller while the lock or the hold goes on. Resolves to the last item. The caller's copy
 * completes after the lock or the hold has ended, and fails if ending it failed.
 */
export function handOverObservable(source: Observable<unknown>, reader: Reader): Promise<unknown> {
  const { progress, patienceMs } = reader;
  return staying(reader, (scope) => {
    const isInTime = untilRead(scope, patienceMs);
    let isTaken = false;
    const copy = new Observable((subscriber) => {
      const failed = (reason: unknown): void => subscriber.error(reason);
      if (isTaken) return failed(takenTwice());
      if (!isInTime()) return failed(tooLate('subscribed to this Observable', patienceMs, SUBSCRIBE_HINT));
      isTaken = true;
      // `takeUntil` also stops a source that emits all its items during `subscribe`.
      const stopped = new Subject<void>();
      let left = false;
      subscriber.add(() => {
        left = true;
        stopped.next();
      });
      scope.inside(() =>
        source.pipe(takeUntil(stopped)).subscribe({
          next: (item) => {
            advance(progress, item);
            subscriber.next(item);
          },
          error: (error: unknown) => void scope.fail(error).catch(failed),
          complete: () => {
            progress.completed = !left;
            void scope.leave().then(() => subscriber.complete(), failed);
          },
        }),
      );
    });
    reader.onReady(copy);
  });
}

const takenTwice = (): Error =>
  misuse(
    'This Observable has a lock or a budget hold for one subscriber, and cannot be subscribed a second time.',
    SUBSCRIBE_HINT,
  );

/** Nest's StreamableFile, recognised by its methods: an app may load two copies of the class. */
export interface StreamedFile {
  getStream(): Readable;
  getHeaders(): object;
}

export const isStreamedFile = (value: unknown): value is StreamedFile =>
  typeof (value as StreamedFile | null | undefined)?.getStream === 'function' &&
  typeof (value as StreamedFile).getHeaders === 'function';

/**
 * Hands a file to the caller and resolves when its stream has closed: it was sent, it failed, or its reader stopped. The
 * stream is read in the async context of the body, so that `currentLock()` and `currentHold()` work in its source.
 * The lock or the hold lasts until then. A file that nobody reads never closes. So after `patienceMs` without a first
 * read this resolves, and the stream fails for a later reader.
 */
export function handOverFile(file: StreamedFile, { onReady, patienceMs }: Reader): Promise<StreamedFile> {
  return new Promise((end) => {
    const stream = file.getStream();
    const giveUp = setTimeout(() => {
      stream.destroy(tooLate('read this file', patienceMs, FILE_HINT));
      end(file);
    }, patienceMs).unref();
    readInside(stream, () => clearTimeout(giveUp));
    // The reader of the stream handles its error. `finished` listens too, so an error without a reader is not uncaught.
    finished(stream, () => {
      clearTimeout(giveUp);
      end(file);
    });
    onReady(file);
  });
}

/** Pipes, pipelines, iterators and listeners all call `read()`. */
function readInside(stream: Readable, onRead: () => void): void {
  const inside = AsyncLocalStorage.snapshot();
  const read = stream.read.bind(stream);
  stream.read = (size) => {
    onRead();
    return inside(read, size) as unknown;
  };
}
