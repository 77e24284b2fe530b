import type { CallOptions } from '../validate.js';
import type {
  AcquireOptions,
  AcquireResult,
  BackendCapabilities,
  ExtendOptions,
  ExtendResult,
  IsLockedOptions,
  LockInfo,
  LockTurn,
  LookupOptions,
  RawLockInfo,
  ReleaseOptions,
  ReleaseResult,
} from './lock.types.js';

/**
 * The lock's port: each method is one atomic attempt that does not wait for anybody. Outcomes are
 * values; faults reject with a LockError.
 */
export interface LockBackend<C extends BackendCapabilities = BackendCapabilities> {
  readonly capabilities: C;
  /** Does not pass those that wait for the key, unless it is the turn that it was given. */
  acquire(options: AcquireOptions): Promise<AcquireResult>;
  /**
   * For attempts that wait for each other in the order in which they came. A backend without it is asked again and again.
   *
   * @param options.pollMs - how often a waiting attempt must be repeated though nobody wakes it, at least
   */
  takeTurn?(options: { pollMs: number }): LockTurn;
  release(options: ReleaseOptions): Promise<ReleaseResult>;
  extend(options: ExtendOptions): Promise<ExtendResult>;
  isLocked(options: IsLockedOptions): Promise<boolean>;
  lookup(options: LookupOptions): Promise<LockInfo | null>;
  getByKeyRaw(key: string, options?: CallOptions): Promise<RawLockInfo | null>;
  getByIdRaw(lockId: string, options?: CallOptions): Promise<RawLockInfo | null>;
  /** When the app starts: warns of what keeps waiters from being told of their turn. */
  prepare?(): Promise<void>;
  /** Before its connection closes: ends what is still being undone in the background. */
  flush?(): Promise<void>;
}

/** Why an operation said no: for telemetry and for waiting, not part of the public result. */
export interface FailureDetail {
  readonly reason: 'locked' | 'mismatch' | 'not_found' | 'expired';
  /** What is left of the other's lock, where the backend saw it. */
  readonly remainingMs?: number | undefined;
  /** The attempt stands in a queue now; when to try again, if nobody wakes it. */
  readonly lookAgainMs?: number | undefined;
}

const DETAIL = Symbol.for('syncguard:failure-detail');

/** Attaches the reason out of sight: the public result of a refusal is `{ ok: false }` and nothing else. */
export function withDetail<const Result extends { ok: false }>(
  result: Result,
  detail: FailureDetail,
): Result {
  return Object.defineProperty(result, DETAIL, { value: detail });
}

export const detailOf = (result: object): FailureDetail | undefined =>
  (result as { [DETAIL]?: FailureDetail })[DETAIL];
