import { type Frame, Frames } from '../core/frames.js';
import type { LockContext } from './lease.js';

/** A lock around the running code. */
export interface LockFrame extends Frame<LockFrame> {
  /** The backend that granted the lock. The same key on another backend is another lock. */
  readonly owner: object;
  readonly context: LockContext;
  /** Returns whether the lock was lost. It reads the clock. */
  isLost(): boolean;
}

export const lockFrames = new Frames<LockFrame>('syncguard:als');

/** Returns the innermost lock of a backend around the running code that has one of these keys. */
export const lockAround = (backend: object, keys: readonly string[]): LockContext | undefined =>
  lockFrames.find(({ owner, context }) => owner === backend && context.keys.some((key) => keys.includes(key)))
    ?.context;

/** Returns the keys of all locks of a backend around the running code. */
export function keysAround(backend: object): string[] {
  const held: string[] = [];
  lockFrames.find(({ owner, context }) => {
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
export const currentLock = (): LockContext | undefined => lockFrames.find()?.context;
