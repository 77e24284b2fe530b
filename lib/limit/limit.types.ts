import type { ExecutionContext } from '@nestjs/common';

/** One of the two windows of a policy that blocks. Durations in ms, 1 to 366 days. */
export interface Tier {
  /** Attempts of the last `windowMs` count. */
  windowMs: number;
  /** The number of the attempt that is denied and sets the block: `threshold: 5` lets 4 in. 1 to 10,000. This or `limit`. */
  threshold?: number;
  /** How many attempts are let in. `limit: 5` denies the 6th, which sets the block. 1 to 9,999. This or `threshold`. */
  limit?: number;
  /** How long a block lasts. */
  blockMs: number;
}

/**
 * Makes repeated blocks of the same key longer. A block lasts `blockMs * factor^(strikes - 1)`, at most `maxBlockMs`. The
 * strikes are the number of blocks that the tier has set.
 */
export interface Escalation {
  /** 1 to 100. */
  factor: number;
  /** The longest block, in ms. */
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
 *   through. It works with `{ limit, windowMs }` only, without a block and with `count: 'attempt'`.
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

/** The code of a 429: `'TooManyAttempts'` for logins and other attempts, `'RateLimited'` for the rate of anything else. */
export type TooManyAttemptsCode = 'TooManyAttempts' | 'RateLimited';

/** A provider whose `resolve` returns a value that is known only with the request. */
export interface ContextResolver<T> {
  resolve(context: ExecutionContext): T | Promise<T>;
}

/** A value that is known only with the request: a function of its context, or the class of a provider that Nest injects. */
export type FromContext<T> =
  ((context: ExecutionContext) => T | Promise<T>) | (new (...args: never[]) => ContextResolver<T>);

/**
 * The key by which requests are counted.
 *
 * - `'ip'`: the address of the client
 * - `'user'`: the first of `id`, `sub`, `userId`, `_id` and `uid` in `request.user`, or the id that `limit.user` returns
 * - a path in the request, such as `'body.email'`
 * - a function
 * - a list: the combination of its parts. `'route'` in a list counts each route apart. Alone it means `['ip', 'route']`.
 */
export type KeyBy = KeyPart | readonly KeyPart[];
export type KeyPart = string | FromContext<string | undefined>;

/** The options of a policy besides its limits. */
export interface LimitPolicyOptions {
  /** The name of the limiter. Policies of the same name count together. 1 to 200 printable ASCII characters. */
  name?: string;
  /** The key by which the guard counts. AbuseLimiterService ignores it. Default: the module's `limit.keyBy`, or `'ip'`. */
  keyBy?: KeyBy;
  /**
   * How much one call counts, all or nothing. 1 to 1,000, or up to the limit in a fixed window. A limit without a block
   * does not accept a cost above the limit. A function may return 0. Then the call is not counted and passes, unless
   * there is a block. Default: 1.
   */
  cost?: number | FromContext<number>;
  /**
   * The calls that the guard counts: all, those that fail (401 or 403), or those that succeed (a status below 400). Calls in
   * flight take up room. AbuseLimiterService counts every call. Default: `'attempt'`.
   */
  count?: CountedCalls;
  /**
   * Returns whether a call has failed, for `count: 'failure'` and `'success'`. `error` is undefined if nothing was thrown. If
   * the function returns undefined, the status decides: 401 and 403 are failures, and with `'success'` every status from 400.
   * It is called before the response leaves, and again if a filter or an interceptor changes the status. Where the handler
   * writes the response itself (`@Res()`), it is called when the headers are out. If it throws, the call counts.
   *
   * @example isFailure: (error, { location }) => location?.startsWith('/login?error')
   */
  isFailure?: (error: unknown, end: CallEnd) => boolean | undefined;
  /**
   * Default: `'after'` if `keyBy` names the user. Also `'after'` if the policy has a function in `keyBy`, `cost`, `limit` or
   * `windowMs`, unless it counts failures. Otherwise `'before'`.
   */
  ask?: AskTime;
  /** With `count: 'failure'`: whether a success (2xx) forgets the failures before it. Default: false. */
  resetOnSuccess?: boolean;
  /** Default: the module's `limit.onError`, or `'memory'`. */
  onError?: OnError;
  /** Default: `'TooManyAttempts'` for a policy that blocks, `'RateLimited'` for one that does not. */
  code?: TooManyAttemptsCode;
  /** Makes repeated blocks longer. Default: every block lasts its `blockMs`. */
  escalation?: Escalation;
}

/**
 * How many attempts a key has. Durations in ms, 1 to 366 days.
 *
 * - `{ limit, windowMs }` lets `limit` calls in within any `windowMs`. A denied call is not counted.
 * - `{ limit, windowMs, algorithm: 'fixed-window' }` keeps one number, for limits in the thousands.
 * - `{ limit, windowMs, blockMs }` blocks for `blockMs` at the first call too many.
 * - `{ temp, long? }` has a short tier (`temp`) and a long tier: two sliding windows over the same attempts, each with a block
 *   of its own.
 *
 * @example { temp: { windowMs: minutes(1), threshold: 5, blockMs: minutes(1) }, long: { windowMs: hours(1), threshold: 20, blockMs: hours(1) } }
 */
export type LimitPolicy = LimitPolicyOptions &
  (
    | {
        /**
         * How many calls are let in. 1 to 9,999, in a fixed window up to 2^31 - 1. A function may also return 0, which denies
         * every call, and `Infinity` or `'unlimited'`, which count nothing. If it returns more than 9,999, the call is counted
         * in a fixed window. A policy that blocks, or counts failures or successes, stops at 9,999 with a warning.
         */
        limit: number | FromContext<number | 'unlimited'>;
        /** If it is a function, each length of the window has a count of its own. */
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

/** The cause of a denied call: the short tier (`'temp'`), the long tier, or a block that was set by hand (`'manual'`). */
export type LimitScope = 'temp' | 'long' | 'manual';

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
}

export interface DeniedDecision {
  readonly allowed: false;
  readonly scope: LimitScope;
  /** The text that was passed to `block()`, `'busy'` if calls in flight use up the rest, otherwise the scope. */
  readonly reason: string;
  /** Whole seconds, at least 1. A call after exactly this time is let in. */
  readonly retryAfterSecs: number;
  /** Attempts in the short window when the call was denied, or when the block was set. */
  readonly shortCount: number;
  readonly longCount: number;
  readonly degraded?: true;
}

/** The decision about one call. A denied call is a value and not an exception. */
export type LimiterDecision = AllowedDecision | DeniedDecision;
