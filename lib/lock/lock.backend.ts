import type { Page } from '../core/page.js';
import type { Peers } from '../core/peers.js';
import type { CallOptions } from '../core/validate.js';
import type {
  AcquireOptions,
  AcquireResult,
  BackendCapabilities,
  ExtendOptions,
  ExtendResult,
  ForceReleaseOptions,
  ForceReleaseResult,
  IsLockedOptions,
  ListedLock,
  LockInfo,
  LockListOptions,
  LockTurn,
  LookupOptions,
  RawLockInfo,
  ReleaseOptions,
  ReleaseResult,
  WaitingCall,
} from './lock.types.js';

/**
 * The port of locks. Each method makes one atomic attempt and never waits for another holder. Outcomes are values.
 * Faults reject with a LockError.
 */
export interface LockBackend<C extends BackendCapabilities = BackendCapabilities> {
  /** What this backend can do. */
  readonly capabilities: C;
  /**
   * Tries once. A key with waiters belongs to the first of them, so an attempt without a turn does not get it, even
   * when the key is free.
   */
  acquire(options: AcquireOptions): Promise<AcquireResult>;
  /**
   * Returns a place in the queues, for a call that repeats its attempt until it gets the lock. Calls get the lock in
   * the order in which they came. Where a backend has no such method, `lock()` tries again and again instead.
   *
   * @param options.pollMs - the longest pause between two attempts of a call that nobody wakes, in ms
   * @param options.isNested - the call holds a lock, so it goes before calls that hold none: they may wait for that lock.
   *   Between two such calls the first of the others gets its turn. Default: false.
   */
  takeTurn?(options: { pollMs: number; isNested?: boolean }): LockTurn;
  /** Releases a lock, unless it has expired or belongs to another owner. */
  release(options: ReleaseOptions): Promise<ReleaseResult>;
  /** Gives a lock a new time to live, unless it has expired or belongs to another owner. */
  extend(options: ExtendOptions): Promise<ExtendResult>;
  /** Returns whether somebody holds the key. */
  isLocked(options: IsLockedOptions): Promise<boolean>;
  /** Describes a live lock, found by key or by id. Returns null when there is none. */
  lookup(options: LookupOptions): Promise<LockInfo | null>;
  /** Describes the live lock of a key, with its id. Returns null when there is none. */
  getByKeyRaw(key: string, options?: CallOptions): Promise<RawLockInfo | null>;
  /** Describes a live lock by its id, with its key. Returns null when there is none. */
  getByIdRaw(lockId: string, options?: CallOptions): Promise<RawLockInfo | null>;
  /** Lists the locks that are held, page by page. */
  list?(options?: LockListOptions): Promise<Page<ListedLock>>;
  /** Returns the calls that wait for a key, in the order in which they get it: the first 1,000. */
  waiters?(key: string, options?: CallOptions): Promise<WaitingCall[]>;
  /** Ends the grant of a key that has this fence, with all of its keys, and lets the next waiter in. */
  forceRelease?(key: string, options: ForceReleaseOptions): Promise<ForceReleaseResult>;
  /** Reaches the other processes of the app, if the option `operations` is set. */
  readonly peers?: Peers | undefined;
  /** Called when the app starts. Warns if something prevents waiters from learning of their turn. */
  prepare?(): Promise<void>;
  /** Called before the connection closes. Finishes the releases that still run in the background. */
  flush?(): Promise<void>;
}

/** Why an operation failed, in more detail than its public result shows. Telemetry and waiting read it. */
export interface FailureDetail {
  readonly reason: 'locked' | 'mismatch' | 'not_found' | 'expired';
  /** The time that is left of the other owner's lock, in ms, where the backend knows it. */
  readonly remainingMs?: number | undefined;
  /** Set when the call stands in a queue now: try again after this many ms, unless something wakes the call before. */
  readonly lookAgainMs?: number | undefined;
}

const DETAIL = Symbol.for('syncguard:failure-detail');

/** Attaches the detail as a hidden property. The visible properties are `ok` and, for `acquire`, the reason. */
export function withDetail<const Result extends { ok: false }>(
  result: Result,
  detail: FailureDetail,
): Result {
  return Object.defineProperty(result, DETAIL, { value: detail });
}

export const detailOf = (result: object): FailureDetail | undefined =>
  (result as { [DETAIL]?: FailureDetail })[DETAIL];
