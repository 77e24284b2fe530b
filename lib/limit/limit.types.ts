import type { PageOptions } from '../core/page.js';

/** One of the two windows of a policy that blocks. Durations in ms, 1 to 366 days. */
export interface Tier {
  /** How far back attempts count, in ms. To 366 days. */
  windowMs: number;
  /** The number of the attempt that is denied and sets the block: `threshold: 5` lets 4 in. 1 to 10,000. This or `limit`. */
  threshold?: number;
  /** How many attempts are let in. `limit: 5` denies the 6th, which sets the block. 1 to 9,999. This or `threshold`. */
  limit?: number;
  /** How long a block lasts, in ms. To 366 days. */
  blockMs: number;
}

/**
 * Makes repeated blocks of the same key longer. A block lasts `blockMs * factor^(strikes - 1)`, at most `maxBlockMs`. The
 * strikes are the number of blocks that the tier has set.
 */
export interface Escalation {
  /** Each block is so much longer than the one before. 1 to 100. */
  factor: number;
  /** The longest block, in ms. To 366 days. */
  maxBlockMs: number;
  /** How long strikes are remembered after a block has ended, in ms. At least the longest window. */
  strikeTtlMs: number;
}

/**
 * The behaviour of a limit while Redis does not answer.
 *
 * - `'closed'`: refuses all calls, with 503
 * - `'memory'`: counts in the memory of this process
 * - `'open'`: lets all calls in
 */
export type OnError = 'closed' | 'memory' | 'open';

/**
 * How calls are counted.
 *
 * - `'sliding-log'` keeps every call with its time, so that no period of `windowMs` has more calls than the limit. A
 *   call takes 20 bytes of Redis memory, or 115 where there are more than 128 calls. Use it for limits up to some
 *   hundreds. The highest limit is 9,999.
 * - `'fixed-window'` keeps one number. The window begins with its first call, and when it ends the number is 0 again. Its
 *   size does not grow with the limit, which may be up to 2^31 - 1. Around the end of a window up to twice the limit gets
 *   through. It works with `{ limit, windowMs, blockMs? }` and `count: 'attempt'` only. After a block the number is 0.
 */
export type LimitAlgorithm = 'sliding-log' | 'fixed-window';

/**
 * When a limit is asked: before the other guards of the route, or after all guards and before interceptors. A policy that
 * counts failures and is asked after the guards also counts, by address, the calls that a guard refuses.
 */
export type AskTime = 'before' | 'after';

/** How a call ends, as `isFailure` sees it. */
export interface CallEnd {
  /**
   * The status of the response, or the one that the error names (500 if it names none). Outside of HTTP it is 200 unless an
   * error names another.
   */
  readonly statusCode: number;
  /** The target of a redirect. */
  readonly location: string | undefined;
  /** The value that the handler returned. Undefined if it threw, or writes its own response. */
  readonly value: unknown;
  /** Whether the handler ran. False if a guard, a pipe or an interceptor before it has refused the call. */
  readonly handled: boolean;
}

/** The calls that count: all of them, those that fail, or those that succeed. */
export type CountedCalls = 'attempt' | 'failure' | 'success';

/**
 * The code of a denied call. It may be chosen: `'TooManyAttempts'` suits logins and other attempts, `'RateLimited'` anything else.
 *
 * - `TooManyAttempts`: a policy that blocks denied the call. To do: wait for `Retry-After`.
 * - `RateLimited`: a policy without a block denied the call. To do: wait for `Retry-After`.
 */
export type TooManyAttemptsCode = 'TooManyAttempts' | 'RateLimited';

/** The cause of a denied call: the short tier (`'temp'`), the long tier, or a block that was set by hand (`'manual'`). */
export type LimitScope = 'temp' | 'long' | 'manual';

/** The call is let in. */
export interface AllowedDecision {
  readonly allowed: true;
  /** Attempts in the short window, with this one. */
  readonly shortCount: number;
  /** Attempts in the long window. Without a long tier it is the same as `shortCount`. */
  readonly longCount: number;
  /** How many more calls are let in now. */
  readonly remaining: number;
  /** The longest time until the short window is empty if no more calls come, in ms. A fixed window is empty when it ends. */
  readonly resetMs: number;
  /** Present if Redis did not answer, and the policy's `onError` decided. */
  readonly degraded?: true;
  /** Present if a policy with `shadow: true` would have denied the call: what it would have decided. */
  readonly shadow?: DeniedDecision;
}

/** The call is denied. */
export interface DeniedDecision {
  readonly allowed: false;
  /** What denies the call. */
  readonly scope: LimitScope;
  /** The text that was passed to `block()`, `'busy'` if calls in flight use up the rest, otherwise the scope. */
  readonly reason: string;
  /** `retryAfterMs` in whole seconds, rounded up. */
  readonly retryAfterSecs: number;
  /** At least 1. A call after exactly this time is let in. */
  readonly retryAfterMs: number;
  /** Attempts in the short window when the call was denied, or when the block was set. */
  readonly shortCount: number;
  /** Attempts in the long window. Without a long tier it is the same as `shortCount`. */
  readonly longCount: number;
  readonly degraded?: true;
}

/** What `reset`, `unblock` and `forgive` have found before they changed it. */
export interface FoundAttempts {
  /** Whether the key was blocked. */
  readonly blocked: boolean;
  /** Those of the longest window, also those that a block was set for. Calls in flight are not among them. */
  readonly attempts: number;
}

/** A block that an operator sees. */
export interface BlockedKey {
  /**
   * The policy's name, as in events: `login`, or `login#2`, or `login shadow` of one that is tried. Undefined if nobody has said
   * whose the block is: an older version of the package has set it, or the process that did has lost Redis.
   */
  readonly policy?: string;
  /**
   * Whom the policy has blocked: the hash of the key that log lines and events show (`keyHash`). Where nobody has said it, the tag
   * in the names of its Redis keys.
   */
  readonly tag: string;
  /** What has set it. */
  readonly scope: LimitScope;
  /** The text that was passed to `block()`, else the scope. */
  readonly reason: string;
  /** In ms since 1970. */
  readonly endsAtMs: number;
}

/** Options of `AbuseLimiterService.blocked()`. */
export interface BlockedOptions extends PageOptions {
  /** Only blocks of limits of this name. Default: all. */
  policy?: string | undefined;
}

/** Names blocks by what an operator sees of them. */
export interface BlockTag {
  /** The `tag` of a block, or the `keyHash` of an event. */
  tag: string;
  /** Only under limits of this name. Default: wherever the tag is blocked. */
  policy?: string | undefined;
}

/** What `peek` returns. */
export type PeekedDecision = LimiterDecision & {
  /** Whether anything is remembered about the key: attempts, calls in flight, a block or penalties. */
  readonly known: boolean;
};

/** The decision about one call. A denied call is a value and not an exception. */
export type LimiterDecision = AllowedDecision | DeniedDecision;
