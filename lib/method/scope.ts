import { AsyncLocalStorage } from 'node:async_hooks';
import { SyncGuardError } from '../core/errors.js';
import type { Idle } from './reader-watch.js';

/** How far the stream of a wrapped method has come. It does not change if the method returns no stream. */
export interface StreamProgress {
  isStream: boolean;
  items: number;
  last: unknown;
  /** What a generator returned. Undefined until it has completed. */
  returned?: unknown;
  /** The stream ended by itself. False where it failed, and where its reader stopped it by `return` or `throw`. */
  completed: boolean;
  /** The id of the lock around the stream, if there is one. */
  lockId?: string;
}

export function advance(progress: StreamProgress, item: unknown): void {
  progress.items++;
  progress.last = item;
}

/** A lock or a hold around the stream of a body, which ends with the stream. */
export interface Scope {
  readonly progress: StreamProgress;
  /** Runs a function in the async context of the body, so that `currentLock()` and `currentHold()` work in it. */
  inside<T>(run: () => T): T;
  /** Ends it with the last item. Rejects if ending it failed. */
  leave(): Promise<unknown>;
  /** Ends it by the error of the body. Rejects with that error, or with the one that took its place. */
  fail(error: unknown): Promise<unknown>;
}

/** Where the stream of a body goes, while the lock or the hold goes on. */
export interface Reader {
  readonly patienceMs: number;
  readonly idle: Idle;
  readonly progress: StreamProgress;
  onReady(stream: unknown): void;
  /** Resolves when the lock or the hold has ended. */
  settled(): Promise<unknown>;
}

/** Keeps a body going until its scope is left. Resolves to the last item. */
export function staying(
  { progress, settled }: Pick<Reader, 'progress' | 'settled'>,
  onEntered: (scope: Scope) => void,
): Promise<unknown> {
  progress.isStream = true;
  return new Promise((end, fail) => {
    const ended = (how: (result: unknown) => void, result: unknown): Promise<unknown> => {
      how(result);
      return settled();
    };
    onEntered({
      progress,
      inside: AsyncLocalStorage.snapshot(),
      leave: () => ended(end, progress.last),
      fail: (error) => ended(fail, error),
    });
  });
}

/**
 * Leaves the scope where no reader comes in time. Returns the function that the reader calls when it comes. It returns
 * false if that is too late.
 */
export function untilRead(scope: Scope, patienceMs: number): () => boolean {
  let isOver = false;
  const giveUp = setTimeout(() => {
    isOver = true;
    scope.leave().catch(() => {}); // Nobody is there to be told.
  }, patienceMs).unref();
  return () => {
    clearTimeout(giveUp);
    return !isOver;
  };
}

export const tooLate = (did: string, patienceMs: number, hint: string): Error =>
  misuse(`Nobody ${did} within ${patienceMs} ms, so its lock or budget hold has ended.`, hint);

export const misuse = (message: string, hint: string): Error =>
  new SyncGuardError({ code: 'InvalidArgument', message, hint });
