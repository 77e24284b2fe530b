import { Observable, Subject, takeUntil } from 'rxjs';
import { SyncGuardError } from '../core/errors.js';
import { advance, type Reader, staying, tooLate, untilRead } from './scope.js';

/**
 * Hands an Observable to the caller while the lock or the hold goes on. Resolves to the last item when the source has
 * completed. The caller's copy completes after the lock or the hold has ended, and fails if ending it failed.
 */
export function handOverObservable(source: Observable<unknown>, reader: Reader): Promise<unknown> {
  const { progress, patienceMs } = reader;
  return staying(reader, (scope) => {
    const isInTime = untilRead(scope, patienceMs);
    let isTaken = false;
    const copy = new Observable((subscriber) => {
      const failed = (reason: unknown): void => subscriber.error(reason);
      if (isTaken) return failed(takenTwice());
      if (!isInTime()) return failed(tooLate('subscribed to this Observable', patienceMs, HINT));
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

const HINT = 'Call the method once for each subscriber, and subscribe at once.';

const takenTwice = (): SyncGuardError =>
  new SyncGuardError({
    code: 'InvalidArgument',
    message:
      'This Observable has a lock or a budget hold for one subscriber, and cannot be subscribed a second time.',
    hint: HINT,
  });
