import { AsyncLocalStorage } from 'node:async_hooks';
import type { LockContext } from './lease.js';

/** A lock around the running code. */
export interface LockFrame {
  /** The backend that granted the lock. The same key on another backend is another lock. */
  readonly owner: object;
  readonly context: LockContext;
  /** Returns whether the lock was lost. It reads the clock. */
  isLost(): boolean;
  /**
   * The nearest lock around this one that was live when this one began. Released locks are left out, so that a job which
   * schedules itself does not build an endless chain.
   */
  readonly outer: LockFrame | undefined;
  /** False once the body has ended. Work that it left running is no longer under the lock. */
  active: boolean;
}

// All copies of this package in the process share one store, so that nested locks are found across copies.
const STORAGE = Symbol.for('syncguard:als');
const shared = globalThis as { [STORAGE]?: AsyncLocalStorage<LockFrame> };

export const lockFrames = (): AsyncLocalStorage<LockFrame> =>
  (shared[STORAGE] ??= new AsyncLocalStorage<LockFrame>());

/** Returns the innermost live lock around the running code, or from `frame` on, for which `accepts` returns true. */
export function findFrame(
  accepts: (frame: LockFrame) => boolean,
  frame = lockFrames().getStore(),
): LockFrame | undefined {
  while (frame && !(frame.active && accepts(frame))) frame = frame.outer;
  return frame;
}

/** Returns the innermost lock of a backend around the running code that has one of these keys. */
export const lockAround = (backend: object, keys: readonly string[]): LockContext | undefined =>
  findFrame(({ owner, context }) => owner === backend && context.keys.some((key) => keys.includes(key)))
    ?.context;

/** Returns the keys of all locks of a backend around the running code. */
export function keysAround(backend: object): string[] {
  const held: string[] = [];
  findFrame(({ owner, context }) => {
    if (owner === backend) held.push(...context.keys);
    return false;
  });
  return held;
}

/**
 * Returns the innermost lock around the running code. Undefined outside of a lock.
 *
 * @example
 * const { fence, lockId } = currentLock() ?? {};
 * await db.query('UPDATE ... WHERE last_fence < $1 OR (last_fence = $1 AND last_lock_id = $2)', [fence, lockId]);
 */
export const currentLock = (): LockContext | undefined => findFrame(() => true)?.context;
