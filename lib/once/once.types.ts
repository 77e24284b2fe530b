import type { PageOptions } from '../core/page.js';

/**
 * What happens to a key whose process died before its result was kept, so that nobody knows whether the body had an effect.
 *
 * - `'run'`: the next call runs, as the next attempt, once the lease of the first has lapsed.
 * - `'refuse'`: no call runs by itself. They get `OutcomeUnknown`, until `settle()` or `forget()` decides, or the record ends.
 */
export type AfterCrash = 'run' | 'refuse';

/** What a body has come to. */
export type OnceOutcome<T = unknown> =
  | {
      /** What it returned. */
      readonly value: T;
    }
  | {
      /** What it threw. */
      readonly error: unknown;
    };

/** The options that a call of `run()` and `@Once()` share. */
export interface OnceCallOptions<T = unknown> {
  /** How long the result is kept, in ms, 1,000 to 2^31 - 1. Default: the module's `once.keepMs`, 24 hours. */
  keepMs?: number;
  /**
   * How long the key stays taken if the process dies, in ms, 1,000 to 2^31 - 1. It is renewed while the body runs. Default:
   * the module's `once.leaseMs`, 30 seconds.
   */
  leaseMs?: number;
  /** After how long the lease is no longer renewed, in ms. Then the `signal` of the body aborts. Default: never. */
  maxRunMs?: number;
  /**
   * How long a call waits for one that runs with the same key, in ms, 0 to 2^31 - 1. If that throws, the longest waiter runs.
   * Default: 0, which refuses at once with `OnceInProgress`.
   */
  waitMs?: number;
  /** What happens after a crash. The first call of a key says it for its record. Default: `once.afterCrash`, `'run'`. */
  afterCrash?: AfterCrash;
  /**
   * Whether the end of the body is kept. An end that is not kept runs again with the next call. Default: a result is kept, and
   * an error is not. Over HTTP an answer of 2xx or 3xx is kept.
   */
  keep?: (end: OnceOutcome<T>) => boolean;
  /**
   * What a call does while Redis does not answer: it is refused (503), or runs without a promise. Default: `once.onError`,
   * `'refuse'`.
   */
  onError?: 'refuse' | 'run';
}

/** Options of `OnceService.run()`. */
export interface OnceOptions<T = unknown> extends OnceCallOptions<T> {
  /** What is done once: 1 to 512 UTF-8 bytes. All processes on one Redis share it. */
  key: string;
  /**
   * What the call was asked to do: anything that can be written as JSON. The same key with another payload is refused with
   * `OncePayloadMismatch`. Only its hash is kept. Default: calls are not compared.
   */
  payload?: unknown;
  /** Ends the wait for another call. It does not end the body. */
  signal?: AbortSignal;
}

/** What a body can see of its run. */
export interface OnceContext {
  /** The key of the run. */
  readonly key: string;
  /** 1 for the first run of the key. A later one follows a run that threw, or whose process died. */
  readonly attempt: number;
  /** Rises with each attempt: 15 digits. A resource that remembers it refuses what an overtaken attempt still writes. */
  readonly fence: string;
  /** Aborts, with an `OnceError` as the reason, when the lease has lapsed: another call may run now. */
  readonly signal: AbortSignal;
}

/** What `OnceService.run()` returns. */
export interface OnceResult<T> {
  /** What the body returned. */
  readonly value: T;
  /** Whether the value is that of an earlier call, so that the body did not run now. */
  readonly replayed: boolean;
  /** Which attempt has made the value. */
  readonly attempt: number;
  /** When it was kept, in ms since 1970, by the clock of the backend. */
  readonly completedAtMs: number;
}

/** What is known of a key. */
export interface OnceRecord {
  /** The key. */
  readonly key: string;
  /**
   * - `running`: a call runs now.
   * - `done`: the call has run, and does not run again. Its result is kept, unless it could not be (`ONCE_NOT_KEPT`).
   * - `failed`: the last call threw, or its process died. The next one runs.
   * - `unknown`: the process of the last call died, and `afterCrash` is `'refuse'`.
   */
  readonly state: 'running' | 'done' | 'failed' | 'unknown';
  /** The number of the last attempt, from 1. */
  readonly attempt: number;
  /** When the last attempt began, in ms since 1970. */
  readonly startedAtMs: number;
  /** When the record ends, so that the key can run anew, in ms since 1970. */
  readonly expiresAtMs: number;
}

/** Options of `OnceService.list()`. */
export interface OnceListOptions extends PageOptions {
  /** Only keys in this state: `'unknown'` are those that wait for `settle()` or `forget()`. Default: all. */
  state?: OnceRecord['state'];
}

/** `already_done`: the call has run. What is kept of it stays. */
export type SettleOnceResult =
  | { readonly ok: true }
  | {
      readonly ok: false;
      /** Why nothing was settled. */
      readonly reason: 'not_found' | 'running' | 'already_done';
    };

/** What `forget()` returns. `running`: a call runs with the key, and `force` was not given. */
export type ForgetOnceResult = { readonly ok: true } | { readonly ok: false; readonly reason: 'running' };

/** Options of `@Once()`. */
// eslint-disable-next-line @typescript-eslint/no-explicit-any -- the arguments of any method
export interface OnceDecoratorOptions<Args extends any[] = any[]> extends OnceCallOptions<any> {
  /**
   * Where the key is: a path in the request, such as `'body.id'`, or a function of the request. Elsewhere than over HTTP a path
   * in the arguments, such as `'0.id'`, or a function of them. Such a key belongs to all callers of the route. Elsewhere it is
   * the whole key: methods with the same one share a result. Default: over HTTP the header `Idempotency-Key`, for each route
   * and caller apart.
   */
  key?: string | ((...args: Args) => string | number | bigint | undefined);
  /**
   * What calls are compared by. It gets the request over HTTP, and elsewhere the arguments. Default: over HTTP the method, the
   * route, its parameters, the query and the body. Elsewhere calls are not compared.
   */
  payload?: (...args: Args) => unknown;
  /** Refuses calls without a key. With `false` they pass unguarded. Default: true. */
  required?: boolean;
  /** Response headers that are kept too, besides Content-Type, Content-Encoding, Location and ETag. */
  headers?: string[];
  /** Replaces `once.scope`. */
  scope?: 'caller' | 'public';
}
