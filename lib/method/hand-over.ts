import { AsyncLocalStorage } from 'node:async_hooks';
import { finished, Readable } from 'node:stream';
import { Observable, Subject, takeUntil } from 'rxjs';
import { currentResponse } from '../core/current-response.js';
import { CHUNK_BYTES, isIdle, ReaderWatch } from './reader-watch.js';
import { advance, misuse, type Reader, staying, tooLate, untilRead } from './scope.js';

const SUBSCRIBE_HINT = 'Call the method once for each subscriber, and subscribe at once.';
const FILE_HINT = 'Return the file from the handler at once, or read it inside the method.';

/**
 * Hands an Observable to the caller while the lock or the hold goes on. Resolves to the last item. The caller's copy
 * completes after the lock or the hold has ended, and fails if ending it failed.
 */
export function handOverObservable(source: Observable<unknown>, reader: Reader): Promise<unknown> {
  const { progress, patienceMs, idle } = reader;
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
      // An Observable is not asked for its items. Only a full response shows that nobody reads them.
      const response = scope.inside(currentResponse);
      const watch = response && idle.ms < Infinity ? new ReaderWatch(idle, failed, response) : undefined;
      subscriber.add(() => {
        left = true;
        watch?.end();
        stopped.next();
      });
      scope.inside(() =>
        source.pipe(takeUntil(stopped)).subscribe({
          next: (item) => {
            if (progress.items === 0) watch?.handedOn();
            advance(progress, item);
            subscriber.next(item);
          },
          error: (error: unknown) => {
            if (isIdle(error)) idle.end();
            void scope.fail(error).catch(failed);
          },
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
 * source is read in the async context of the body, so that `currentLock()` and `currentHold()` work in it. The lock or the
 * hold lasts until then. A file that nobody reads never closes. So the stream fails after `patienceMs` without a first
 * read, and after `idle.ms` in which a chunk was handed on and nobody asks for the next.
 */
export function handOverFile(
  file: StreamedFile,
  { onReady, patienceMs, idle }: Reader,
): Promise<StreamedFile> {
  return new Promise((end) => {
    const source = file.getStream();
    const inside = AsyncLocalStorage.snapshot();
    const giveUp = setTimeout(
      () => stream.destroy(tooLate('read this file', patienceMs, FILE_HINT)),
      patienceMs,
    ).unref();
    const watch = idle.ms < Infinity ? new ReaderWatch(idle, (reason) => stream.destroy(reason)) : undefined;
    const chunks = chunksOf(source, inside);
    const stream = new Readable({
      objectMode: source.readableObjectMode,
      highWaterMark: 0, // A chunk is asked for when the one before it was taken.
      read(): void {
        clearTimeout(giveUp);
        watch?.asked();
        chunks.next().then(
          ({ done, value }) => {
            if (!done) watch?.handedOn();
            stream.push(done ? null : value);
          },
          (error: Error) => stream.destroy(error),
        );
      },
    });
    Object.defineProperty(file, 'getStream', { value: () => stream, configurable: true });
    // The reader of the stream handles its error. `finished` listens too, so an error without a reader is not uncaught.
    finished(source, (error) => void (error && stream.destroy(error)));
    finished(stream, (error) => {
      if (isIdle(error)) idle.end();
      clearTimeout(giveUp);
      watch?.end();
      source.destroy();
      end(file);
    });
    onReady(file);
  });
}

async function* chunksOf(
  source: Readable,
  inside: ReturnType<typeof AsyncLocalStorage.snapshot>,
): AsyncGenerator<unknown, void> {
  const read: AsyncIterator<unknown> = inside(() => source[Symbol.asyncIterator]());
  for (let step; !(step = await inside(() => read.next())).done;) yield* inChunks(step.value);
}

/** A long chunk would take its time to leave, in which nobody can tell whether it is read. */
function* inChunks(item: unknown): Generator<unknown> {
  const bytes = typeof item === 'string' && item.length > CHUNK_BYTES ? Buffer.from(item) : item;
  if (!(bytes instanceof Uint8Array)) yield bytes;
  else
    for (let from = 0; from < bytes.length; from += CHUNK_BYTES)
      yield bytes.subarray(from, from + CHUNK_BYTES);
}
