import type { CallOptions } from '../core/validate.js';

/** Options of `increment()`. */
export interface IncrementOptions extends CallOptions {
  /** The maximum of the count. An integer from 0 to 2^53 - 1. */
  max: number;
  /** How long a count lasts, from its first increment, in ms. 1 ms to 10 years. */
  windowMs: number;
  /** How much this call counts, all or nothing. An integer of at least 1. Default: 1. */
  cost?: number;
  /**
   * A name of this call, 1 to 512 UTF-8 bytes. A second call with the same id in the same window gets the result of the
   * first, and does not count. Each id is kept until the window ends. Default: a random id, which protects only against
   * a command that the Redis client sends twice with no other call in between.
   */
  id?: string;
}

/** Options of `peek()` of a counter. */
export interface PeekCounterOptions extends CallOptions {
  /** The maximum of the count. With it, the result has `remaining`. */
  max?: number;
}

/** What `increment()` returns. */
export interface CounterResult {
  /** Whether the call was counted. */
  readonly ok: boolean;
  /** The count after this call. */
  readonly count: number;
  /** How much is left until `max`. */
  readonly remaining: number;
  /** How long it takes until the count is 0 again, in ms. 0 if it is 0 now. */
  readonly resetMs: number;
}

/** What `peek()` of a counter returns. */
export interface CounterState {
  /** The count. 0 if there is none. */
  readonly count: number;
  /** How long it takes until the count is 0 again, in ms. 0 if it is 0 now. */
  readonly resetMs: number;
  /** How much is left until `max`. Present if `max` was passed. */
  readonly remaining?: number;
}
