import { AsyncLocalStorage } from 'node:async_hooks';
import type { LockContext } from './lease.js';

/** A lock that the code now running stands under. */
export interface LockFrame {
  /** Which backend granted it: the same key on another backend is another lock. */
  readonly owner: object;
  readonly context: LockContext;
  /** The nearest that was live when this one began: a job that schedules itself must not grow a chain. */
  readonly outer: LockFrame | undefined;
  /** False once the lock was released: work left running inherits nothing. */
  active: boolean;
}

// One store for all copies of this package in the process, so that nested locks are seen across them.
const STORAGE = Symbol.for('syncguard:als');
const shared = globalThis as { [STORAGE]?: AsyncLocalStorage<LockFrame> };

export const lockFrames = (): AsyncLocalStorage<LockFrame> =>
  (shared[STORAGE] ??= new AsyncLocalStorage<LockFrame>());

/** The frame of the innermost live lock that satisfies `accepts`. */
export function findFrame(accepts: (frame: LockFrame) => boolean): LockFrame | undefined {
  let frame = lockFrames().getStore();
  while (frame && !(frame.active && accepts(frame))) frame = frame.outer;
  return frame;
}

/**
 * The lock that the running code stands under, the innermost if there are several; undefined outside of one.
 *
 * @example
 * const { fence, lockId } = currentLock() ?? {};
 * await db.query('UPDATE ... WHERE last_fence < $1 OR (last_fence = $1 AND last_lock_id = $2)', [fence, lockId]);
 */
export const currentLock = (): LockContext | undefined => findFrame(() => true)?.context;
