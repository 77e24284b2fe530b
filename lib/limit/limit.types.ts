import type { ExecutionContext } from '@nestjs/common';

/** One of the two windows of a policy that blocks. Durations in ms, 1 to 366 days. */
export interface Tier {
  /** How far back attempts count: those of the last `windowMs`. */
  windowMs: number;
  /** The attempt that is denied, and blocks: `threshold: 5` lets 4 in. 1 to 10,000. This or `limit`. */
  threshold?: number;
  /** How many attempts are let in: `limit: 5` denies the 6th, which blocks. 1 to 9,999. This or `threshold`. */
  limit?: number;
  /** How long the identity is blocked once the tier is full. */
  blockMs: number;
}

/** How a block grows when the same identity earns it again: `blockMs * factor^(strikes - 1)`, up to the cap. */
export interface Escalation {
  /** 1 to 100. */
  factor: number;
  /** The longest block. In ms. */
  maxBlockMs: number;
  /** How long after a block its strike is remembered. At least the longest window. In ms. */
  strikeTtlMs: number;
}

/** What a limit does while Redis does not answer: refuse (503), count in this process's memory, or let all in. */
export type OnError = 'closed' | 'memory' | 'open';

/**
 * How calls are counted.
 *
 * - `'sliding-log'`: every call with its time, so that no `windowMs` ever holds more than the limit. 20 bytes of Redis
 *   memory a call, 115 where they are more than 128: for limits up to some hundreds, 9,999 at most.
 * - `'fixed-window'`: one number that starts at 0 again when the window ends, which begins with its first call. Its size
 *   does not grow with the limit, which may be up to 2^31 - 1, but around a window's end up to twice the limit gets
 *   through. It goes with `{ limit, windowMs }` only: no block, no `count: 'failure'`.
 */
export type LimitAlgorithm = 'sliding-log' | 'fixed-window';

/**
 * When a limit is asked: before the other guards of the route, or after all of them, but before interceptors. What
 * counts failures and is asked after looks before as well, by address: so what a guard refuses counts.
 */
export type AskTime = 'before' | 'after';

/** How a call is answered. */
export interface CallEnd {
  /** Of the answer, or that the error names (500 if it names none); 200 where there is no status. */
  readonly statusCode: number;
  /** Where a redirect leads. */
  readonly location: string | undefined;
  /** What the handler returned; undefined if it threw, or writes its own response. */
  readonly value: unknown;
  /** Whether the handler ran. False where a guard, a pipe or an interceptor before it has refused the call. */
  readonly handled: boolean;
}

/** Which calls count: all, those that fail, or those that succeed. */
export type CountedCalls = 'attempt' | 'failure' | 'success';

/** The code of a denial: for logins and other attempts, or for the rate of anything else. */
export type TooManyAttemptsCode = 'TooManyAttempts' | 'RateLimited';

/** An injectable provider of something that is known only with the request. */
export interface ContextResolver<T> {
  resolve(context: ExecutionContext): T | Promise<T>;
}

/** Something that is known only with the request: a function, or the class of a provider that Nest injects. */
export type FromContext<T> =
  ((context: ExecutionContext) => T | Promise<T>) | (new (...args: never[]) => ContextResolver<T>);

/**
 * Who a request is counted for: `'ip'`, `'user'` (of `request.user` the first of `id`, `sub`, `userId`, `_id`, `uid`; or
 * what `limit.user` says), a path in the request such as `'body.email'`, or a function; a list counts their combination.
 * `'route'` in a list counts each route apart, under one policy for all; alone it is `['ip', 'route']`.
 */
export type KeyBy = KeyPart | readonly KeyPart[];
export type KeyPart = string | FromContext<string | undefined>;

interface PolicyOptions {
  /** Names the limiter: policies of one name count together. 1 to 200 printable ASCII characters. */
  name?: string;
  /** In the guard: who a request is counted for. Default: the module's `limit.keyBy`, else `'ip'`. */
  keyBy?: KeyBy;
  /**
   * How much one call counts, all or nothing. 1 to 1,000; in a fixed window up to its limit. A function may give 0: the
   * call passes uncounted, unless there is a block. Default: 1.
   */
  cost?: number | FromContext<number>;
  /**
   * In the guard: count every call, only those that end in a failure, or only those that succeed (an answer below 400).
   * Calls in flight take up room. Default: `'attempt'`.
   */
  count?: CountedCalls;
  /**
   * With `count: 'failure'` or `'success'`: whether a call has failed, by what it threw (else undefined) and how it
   * is answered. `undefined` leaves it to the status: 401 and 403 are failures, with `'success'` all from 400. It is asked
   * before the answer leaves, and again if a filter or an interceptor changes its status; where the handler writes its own
   * response (`@Res()`), when the headers are out. If it
   * throws, the call counts.
   *
   * @example isFailure: (error, { location }) => location?.startsWith('/login?error')
   */
  isFailure?: (error: unknown, end: CallEnd) => boolean | undefined;
  /** Default: `'after'` if `keyBy` names the user, or something is a function and not only failures count. */
  ask?: AskTime;
  /** With `count: 'failure'`: a success (2xx) forgets the failures before it. Default: false. */
  resetOnSuccess?: boolean;
  /** Default: the module's `limit.onError`, else `'memory'`. */
  onError?: OnError;
  /** Default: `'TooManyAttempts'` for a policy that blocks, `'RateLimited'` for one that does not. */
  code?: TooManyAttemptsCode;
  /** Makes repeated blocks longer. Default: every block lasts its `blockMs`. */
  escalation?: Escalation;
}

/**
 * How many attempts an identity has. Durations in ms, 1 to 366 days.
 *
 * - `{ limit, windowMs }` lets `limit` in within any `windowMs`; a denied call is not counted.
 * - `{ limit, windowMs, algorithm: 'fixed-window' }` counts by one number, for limits in the thousands.
 * - `{ limit, windowMs, blockMs }` blocks for `blockMs` at the first call too many.
 * - `{ temp, long? }`: two true sliding windows over the same attempts, each with a block of its own.
 *
 * @example { temp: { windowMs: minutes(1), threshold: 5, blockMs: minutes(1) }, long: { windowMs: hours(1), threshold: 20, blockMs: hours(1) } }
 */
export type LimitPolicy = PolicyOptions &
  (
    | {
        /**
         * 1 to 9,999; in a fixed window to 2^31 - 1. A function may also give 0, which lets nobody in, or `Infinity` or
         * `'unlimited'`, which counts nothing. Above 9,999 it counts in a fixed window where the policy could be one; one
         * that blocks or counts outcomes stops at 9,999, with a warning.
         */
        limit: number | FromContext<number | 'unlimited'>;
        /** A function gives each window a count of its own: it is part of what names the bucket. */
        windowMs: number | FromContext<number>;
        blockMs?: number;
        /** Default: `'sliding-log'`. */
        algorithm?: LimitAlgorithm;
        temp?: never;
        long?: never;
      }
    | {
        temp: Tier;
        long?: Tier;
        algorithm?: 'sliding-log';
        limit?: never;
        windowMs?: never;
        blockMs?: never;
      }
  );

/** Which window denied a call, or `'manual'`: a block that was set by hand. */
export type LimitScope = 'temp' | 'long' | 'manual';

export interface AllowedDecision {
  readonly allowed: true;
  /** Attempts in the shorter window, this one included. */
  readonly shortCount: number;
  /** Attempts in the longer window; the same as `shortCount` where there is none. */
  readonly longCount: number;
  /** How many more are let in now. */
  readonly remaining: number;
  /** How long, at most, until the shorter window is empty again if nothing more comes; until a fixed one ends. In ms. */
  readonly resetMs: number;
  /** Redis did not answer: this was decided by the policy's `onError`. */
  readonly degraded?: true;
}

export interface DeniedDecision {
  readonly allowed: false;
  readonly scope: LimitScope;
  /** What was said when the block was set by hand, `'busy'` (calls in flight use up the rest), else the scope. */
  readonly reason: string;
  /** Whole seconds, at least 1: who waits exactly that long is let in. */
  readonly retryAfterSecs: number;
  /** Attempts in the shorter window when it was denied, or when the block was set. */
  readonly shortCount: number;
  readonly longCount: number;
  readonly degraded?: true;
}

/** The answer to one call: expected outcomes are values, not exceptions. */
export type LimiterDecision = AllowedDecision | DeniedDecision;
