import type { ResolvedMaxWaiting } from '../core/waiting-room.js';
import { among, between, OptionTable, orInfinity, type Resolved, type RowsOf } from '../core/option-table.js';
import { abortSignal, boolean, duration, invalidOption } from '../core/validate.js';
import type { LockKeyOption } from './lock.types.js';

/** How `lock()` waits for a lock, keeps it alive and gives up. Durations are in ms, at most 2^31 - 1. */
export interface LockDefaults {
  /**
   * How long the lock lives after it was granted or last extended. A process that dies blocks others for this time at
   * most. At least 1. Default: 30,000.
   */
  ttlMs?: number;
  /**
   * How long to wait for a lock that somebody else holds, and for a Redis that does not answer. From 0, which tries once.
   * `Infinity` waits without an end. Default: 5,000.
   */
  timeoutMs?: number;
  /**
   * True: callers get the lock in the order in which they came, across all processes, and a message wakes the next one.
   * False: callers try again after a pause, until `timeoutMs` is over. Default: true.
   */
  fair?: boolean;
  /**
   * With `fair: true`: the longest pause after which a waiting caller tries again without a message. No message comes
   * when a lock expires or when another program releases it. The first caller of a process that waits for a key tries
   * once a second at least, whatever this is: for the others too, since they come after it. At least 1. Default: 8,000.
   */
  pollMs?: number;
  /**
   * The first pause between two tries with `fair: false`. Each one after it is twice as long, up to 1 s, and half of each is
   * random, so that callers do not try all at once. With `fair: true` it applies only while Redis does not answer. At
   * least 1. Default: 100.
   */
  retryDelayMs?: number;
  /** Whether the lock is extended again and again while the body runs. Default: true. */
  autoExtend?: boolean;
  /**
   * The longest time for which the lock is held, extensions included. A body that still runs then has lost the lock.
   * Default: no limit.
   */
  maxHoldMs?: number;
  /**
   * How long the HTTP client of a stream under `@WithLock()` may stay away. A client that has been handed a chunk, and
   * takes no more for this time, has left without a word: its lock is lost. That the stream itself has nothing to send is
   * no reason. At least 1, or `Infinity`. Default: 60,000.
   */
  idleMs?: number;
  /** Whether `isLocked` deletes a record that expired over 2 s ago. It never deletes a fence counter. Default: false. */
  cleanupInIsLocked?: boolean;
  /**
   * How many calls of one process may stand in a queue at a time. One more is refused at once with `TooManyWaiting`, which
   * is a 503 over HTTP. A number is `perKey`. `Infinity` is no limit. A call that holds another lock is never refused.
   * Default: `{ perKey: 1_000, perProcess: 10_000 }`.
   */
  maxWaiting?:
    | number
    | {
        /** In the queue of one key. An integer from 1, or `Infinity`. Default: 1,000. */
        perKey?: number;
        /** In all queues together. An integer from 1, or `Infinity`. Default: 10,000. */
        perProcess?: number;
      };
}

/**
 * What `lock()` does when somebody else holds the lock. `'throw'` waits and then throws. `'skip'` and a function do not
 * wait.
 */
export type OnContention = 'throw' | 'skip' | ContentionHandler;

/**
 * @param key - the first of the keys
 */
export type ContentionHandler = (
  key: string,
  keys: readonly string[],
  holder: {
    /** How long the lock of its holder still lives if it is not extended, in ms. 0 if a backend of your own does not say. */
    readonly remainingMs: number;
  },
) => unknown;

/** The options of one `lock()` call or one `@WithLock()`. An option that is not given has the value of the module. */
export interface LockCallOptions extends Omit<LockDefaults, 'cleanupInIsLocked' | 'maxWaiting'> {
  /** Aborts the wait for the lock. It does not stop a body that runs already: pass the signal to the body too. */
  signal?: AbortSignal | undefined;
  /**
   * Whether a call inside a body that holds the same key runs at once under that lock. Otherwise such a call fails with
   * AlreadyHeld. Default: false.
   */
  reentrant?: boolean;
  /**
   * What happens when somebody else holds the lock. Default: `'throw'`.
   * - `'throw'`: waits, and throws AcquisitionTimeout after `timeoutMs`.
   * - `'skip'`: returns undefined at once, without running the body. For a cron job that runs on many machines.
   * - a function: returns at once what the function returns. It is called with the first key, with all keys,
   *   and with `{ remainingMs }`: how long the holder's TTL still runs.
   */
  onContention?: OnContention;
  /**
   * The shortest time for which the lock is held, even when the body ends sooner. Use it for jobs that start at the
   * same time on several machines whose clocks differ: a machine that is late then finds the lock still held, and does
   * not run the job again. In ms, from 0. Default: 0.
   */
  minHoldMs?: number;
  /** Replaces `minHoldMs` when the body throws. In ms, from 0, with which the next caller may try at once. Default: `minHoldMs`. */
  minHoldOnFailureMs?: number;
}

/** Options of `lock()`. */
export type LockOptions = LockCallOptions & LockKeyOption;

const MAX_WAITING = new OptionTable({
  perKey: { check: orInfinity(1), usual: 1_000 },
  perProcess: { check: orInfinity(1), usual: 10_000 },
} satisfies RowsOf<ResolvedMaxWaiting>);

/** What a call may set too. */
const SHARED = {
  ttlMs: { check: duration, usual: 30_000 },
  timeoutMs: { check: orInfinity(0), usual: 5_000 },
  fair: { check: boolean, usual: true },
  pollMs: { check: duration, usual: 8_000 },
  retryDelayMs: { check: duration, usual: 100 },
  autoExtend: { check: boolean, usual: true },
  maxHoldMs: { check: duration },
  idleMs: { check: orInfinity(1), usual: 60_000 },
} as const;

const DEFAULTS = new OptionTable({
  ...SHARED,
  cleanupInIsLocked: { check: boolean, usual: false },
  maxWaiting: { check: maxWaiting, usual: MAX_WAITING.usual },
} satisfies RowsOf<LockDefaults>);

const CALL = new OptionTable({
  ...SHARED,
  signal: { check: abortSignal },
  reentrant: { check: boolean, usual: false },
  onContention: { check: onContention, usual: 'throw' },
  minHoldMs: { check: between(0), usual: 0 },
  minHoldOnFailureMs: { check: between(0) },
} satisfies RowsOf<LockCallOptions>);

export type ResolvedLockDefaults = Resolved<typeof DEFAULTS>;
export type ResolvedLockCall = Resolved<typeof CALL>;

export const DEFAULT_LOCK_OPTIONS = DEFAULTS.usual;

/** Checks the `lock` group of the module's options and fills in the defaults. */
export const resolveLockDefaults = (options: unknown): ResolvedLockDefaults =>
  DEFAULTS.resolve('lock', options);

/** What a call has that gives no options, in a module with these. */
export const usualCall = (defaults: ResolvedLockDefaults): ResolvedLockCall => ({
  ...CALL.usual,
  ...defaults,
});

const KEYS = ['key', 'keys'];

/**
 * Checks the options of one call, which replace what is `usual`. Those of `lock()` may have `key` or `keys` too, which
 * are checked elsewhere. Those of a decorator have no keys, and their errors begin with its `place`.
 */
export const resolveLockCall = (
  options: unknown,
  usual: ResolvedLockCall,
  place?: string,
): ResolvedLockCall =>
  place ? CALL.resolve(`${place}: options`, options, usual) : CALL.resolve('options', options, usual, KEYS);

function onContention(name: string, value: unknown): OnContention {
  return typeof value === 'function' ? (value as ContentionHandler) : among('throw', 'skip')(name, value);
}

function maxWaiting(name: string, value: unknown): ResolvedMaxWaiting {
  if (typeof value === 'number') return { ...MAX_WAITING.usual, perKey: orInfinity(1)(name, value) };
  if (typeof value !== 'object') throw invalidOption(name, 'an integer from 1, Infinity or an object', value);
  return MAX_WAITING.resolve(name, value);
}
