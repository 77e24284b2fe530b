import type { ResolvedPolicy } from './limit.policy.js';
import type { LimitScope } from './limit.types.js';

/** The most limits that one call is counted against. */
export const MAX_CHECKS = 8;

/** One identity of one limiter. */
export interface Subject {
  /** The limiter's name and the normalized key: what is counted together. */
  readonly identity: string;
  readonly policy: ResolvedPolicy;
}

export interface LimitCheck extends Subject {
  /** 1 to 1,000; of a fixed window up to its limit. */
  readonly cost: number;
}

/** What a backend says of one check. */
export type LimitOutcome =
  | (LimitCounts & {
      readonly status: 'allowed';
      /** Until the shorter window is empty again. */
      readonly resetMs: number;
    })
  | (LimitCounts & {
      readonly status: 'denied';
      readonly scope: LimitScope;
      /** The text given to `block()`, `'busy'`, or the scope. */
      readonly reason: string;
      /** In ms, at least 1. */
      readonly retryAfterMs: number;
      /** A block answered, or was set: until its end every call is denied. */
      readonly blocked: boolean;
    });

export interface LimitCounts {
  readonly shortCount: number;
  readonly longCount: number;
}

export interface CallOptions {
  timeoutMs?: number | undefined;
  signal?: AbortSignal | undefined;
}

/**
 * The limiter's port: each method is one atomic step. `callId` names one call: sent again, it does not count
 * again. Faults reject with a LimitError.
 */
export interface LimitBackend {
  readonly backend: 'redis' | 'memory';
  /**
   * Counts a call against all of its limits, or, when one of them denies it, against none but those that deny.
   * A policy with `count: 'failure'` only notes it as in flight. Outcomes come in the order of `checks`.
   */
  check(checks: readonly LimitCheck[], callId: string, options?: CallOptions): Promise<LimitOutcome[]>;
  /** A call in flight ended in a failure: now it counts. Denied: it was the failure that sets the block. */
  confirm(check: LimitCheck, callId: string, options?: CallOptions): Promise<LimitOutcome>;
  /**
   * A call does not count after all. `forget`: nor do the failures before it, unless they have set a block. A fixed
   * window counts no failures, and does not know its calls one by one: only what it has let in may be taken back.
   */
  withdraw(check: LimitCheck, callId: string, forget: boolean, options?: CallOptions): Promise<void>;
  /** What stands, without counting. */
  peek(subject: Subject, options?: CallOptions): Promise<LimitOutcome>;
  /** Removes the newest `count` attempts, or that much of what a fixed window has counted. A block stays. */
  forgive(subject: Subject, count: number, callId: string, options?: CallOptions): Promise<void>;
  /** Forgets everything: attempts, block, strikes. */
  reset(subject: Subject, options?: CallOptions): Promise<void>;
  /** Blocks by hand, in place of whatever block there is. Clears no window. */
  block(subject: Subject, blockMs: number, reason: string, options?: CallOptions): Promise<void>;
  /** Ends a block. The window that had set it begins afresh. */
  unblock(subject: Subject, options?: CallOptions): Promise<void>;
}
