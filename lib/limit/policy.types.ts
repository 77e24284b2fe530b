import type { ExecutionContext } from '@nestjs/common';
import type {
  AskTime,
  CallEnd,
  CountedCalls,
  DeniedDecision,
  Escalation,
  LimitAlgorithm,
  OnError,
  Tier,
  TooManyAttemptsCode,
} from './limit.types.js';

/** A provider whose `resolve` returns a value that is known only with the request. */
export interface ContextResolver<T> {
  /** Returns the value for this request. */
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
/** One part of the key: where it is in the request, or a function. */
export type KeyPart = string | FromContext<string | undefined>;

/**
 * Makes the text by which a value of a client counts, for what only the app knows: the collation of its accounts, or plus
 * addresses.
 *
 * @param value - as the client sent it: any JSON value, or a list of texts
 * @param part - as `keyBy` names it, such as `'body.email'`
 * @param folded - the text by which the value counts without this function. Undefined if it is no text
 * @returns undefined or an empty text for a value that counts as without this function
 */
export type Normalize = (value: unknown, part: string, folded: string | undefined) => string | undefined;

/**
 * The values by which a route counts a call, named as in `keyBy`, in place of a key: `{ ip, 'body.email': email }`. They are
 * compared as those of a request are. What a function in `keyBy` returns is named `key`.
 */
export type KeyParts = Readonly<Record<string, unknown>>;

/** The options of a policy besides its limits. */
export interface LimitPolicyOptions {
  /**
   * The name of the limiter. Policies of the same name count together. 1 to 200 printable ASCII characters. Default: its name
   * in `limits`, or the route.
   */
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
   * Whether the limit is asked `'before'` or `'after'` the other guards. Default: `'after'` if `keyBy` names the user, or if the
   * policy has a function in `keyBy`, `cost`, `limit` or `windowMs` and does not count failures; otherwise `'before'`.
   */
  ask?: AskTime;
  /**
   * With `count: 'failure'`: who finds out whether a call has failed. By default that is not known, so a call takes up room until
   * it has ended.
   *
   * - `'guards'`: the guards of the route, such as one that checks API keys. A call that they let pass has succeeded, and
   *   takes up no room any more. What its handler answers does not count. Not with `ask: 'after'`.
   * - `'handler'`: the handler, a guard of its route, or what it calls, but no guard of the whole app. As the default, without
   *   the warning RATE_LIMIT_GUARD_ORDER.
   */
  judgedBy?: 'guards' | 'handler';
  /** With `count: 'failure'`: whether a success (2xx) forgets the failures before it. Default: false. */
  resetOnSuccess?: boolean;
  /** What the limit does while Redis does not answer. Default: the module's `limit.onError`, or `'memory'`. */
  onError?: OnError;
  /** The code of the 429. Default: `'TooManyAttempts'` for a policy that blocks, `'RateLimited'` for one that does not. */
  code?: TooManyAttemptsCode;
  /** Makes repeated blocks longer. Default: every block lasts its `blockMs`. */
  escalation?: Escalation;
  /**
   * What a client is told whose call this policy denies: the `message` of the answer, at most 1,000 characters, or a function that
   * returns it. If the function returns an object, that is the whole body of the 429, in GraphQL the `extensions` of the error.
   * If it fails or takes longer than 1 s, that is logged, and the client is told what it is told without it.
   * AbuseLimiterService uses a text, and no function. Default: none, the text says when to try again.
   *
   * @example message: ({ retryAfterSecs }, context) => translate(context, 'slow-down', { retryAfterSecs })
   */
  message?: string | DenialMessage;
  /**
   * Tries the policy on real traffic: it counts and blocks in a bucket of its own, with the name `<name> shadow` in events, and lets
   * every call in. What it would have denied is in `decision.shadow`, in the header `RateLimit-Shadow`, and in one log line a minute.
   * Live it starts from zero. Default: false.
   */
  shadow?: boolean;
}

/** Returns what a client is told whose call was denied. */
export type DenialMessage = (
  decision: DeniedDecision,
  context: ExecutionContext,
) => string | object | Promise<string | object>;

/**
 * How many attempts a key has. Durations in ms, 1 to 366 days.
 *
 * - `{ limit, windowMs }` lets `limit` calls in within any `windowMs`. A denied call is not counted.
 * - `{ limit, windowMs, blockMs?, algorithm: 'fixed-window' }` keeps one number, for limits in the thousands.
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
         * in a fixed window. A policy that blocks, or counts failures or successes, stops at 9,999 with a warning. A policy
         * given to a method of AbuseLimiterService may have what a function may return. In a decorator or in `limits`, 0
         * and unlimited are errors at boot.
         */
        limit: number | 'unlimited' | FromContext<number | 'unlimited'>;
        /** How far back calls count, in ms. To 366 days. If it is a function, each length has a count of its own. */
        windowMs: number | FromContext<number>;
        /** How long a call too many blocks the key, in ms. To 366 days. Default: it does not block. */
        blockMs?: number;
        /** How calls are counted. Default: `'sliding-log'`. */
        algorithm?: LimitAlgorithm;
        temp?: never;
        long?: never;
      }
    | {
        /** The short tier. */
        temp: Tier;
        /** The long tier. Default: none. */
        long?: Tier;
        algorithm?: 'sliding-log';
        limit?: never;
        windowMs?: never;
        blockMs?: never;
      }
  );

/** Options of a call of `check()`. */
export interface LimitCallOptions {
  /**
   * How much the call counts, from 1 to 1,000. A limit without `blockMs` accepts no more than its `limit`. A fixed window
   * accepts up to its `limit`, even above 1,000. Default: the policy's `cost`.
   */
  cost?: number;
  /** Aborts the call. It may be counted nevertheless. */
  signal?: AbortSignal;
}

/**
 * A policy: its name in the `limits` option, the policy itself, or a list of policies. A single policy needs a `name`.
 * In a list, policies without a name get the names `policy`, `policy#2` and so on. Other lists give the same names, so
 * their policies count together with these.
 */
export type PolicyRef = string | LimitPolicy | readonly LimitPolicy[];
