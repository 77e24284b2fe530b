import { type Frame, Frames } from '../core/frames.js';
import type { ExtendResult, LockHandle } from './lock.types.js';

/** What a body can see of its lock, and do with it. */
export interface LockContext extends Pick<LockHandle, 'fences' | 'expiresAtMs'> {
  /** The key. Of several keys it is the first one in sorted order. */
  readonly key: string;
  /** All keys that are locked together, in NFC, sorted. */
  readonly keys: readonly string[];
  /** The id of this grant. Anyone who has it can release the lock, so pass it to the resource and not to a client. */
  readonly lockId: string;
  /**
   * The fence rises with every grant of the key. Send it and the `lockId` along with every write. Let the resource refuse
   * a lower fence, and the same fence with another `lockId`. All keys of a grant have the same fence, which is above
   * every fence that any of them has had.
   */
  readonly fence: string;
  /** Aborts when the lock is lost. `aborted` also reads the clock, so it is right even after a blocked event loop. */
  readonly signal: AbortSignal;
  /**
   * Extends the lock now, in addition to the automatic extensions. Returns `{ ok: false }` if the lock is lost.
   *
   * @param ttlMs - the new life from now, in ms. Default: the `ttlMs` of the lock.
   */
  extend(ttlMs?: number): Promise<ExtendResult>;
  /**
   * Throws if the lock is lost or released. It reads the clock only and does no I/O. Call it before every step that must
   * not be done twice.
   *
   * @throws LockError LockLost
   */
  assertHeld(): void;
}

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

/**
 * Returns the innermost lock around the running code. Undefined outside of a lock.
 *
 * @example
 * const { fence, lockId } = currentLock() ?? {};
 * await db.query('UPDATE ... WHERE last_fence < $1 OR (last_fence = $1 AND last_lock_id = $2)', [fence, lockId]);
 */
export const currentLock = (): LockContext | undefined => lockFrames.find()?.context;
