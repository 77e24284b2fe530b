import type { ResolvedMaxWaiting } from '../core/waiting-room.js';
import {
  abortSignal,
  boolean,
  duration,
  integer,
  invalidOption,
  knownOptions,
  oneOf,
} from '../core/validate.js';

/** How `lock()` waits for a lock, keeps it alive and gives up. Durations are in ms, at most 2^31 - 1. */
export interface LockDefaults {
  /**
   * How long the lock lives after it was granted or last extended. A process that dies blocks others for this time at
   * most. At least 1. Default: 30,000.
   */
  ttlMs?: number;
  /**
   * How long to wait for a lock that somebody else holds, and for a Redis that does not answer. 0 tries once. `Infinity`
   * waits without an end. Default: 5,000.
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
   * What happens when somebody else holds the lock.
   * - `'throw'`: waits, and throws AcquisitionTimeout after `timeoutMs`. The default.
   * - `'skip'`: returns undefined at once, without running the body. For a cron job that runs on many machines.
   * - a function: returns at once what the function returns. It is called with the first key, with all keys,
   *   and with `{ remainingMs }`: how long the holder's TTL still runs.
   */
  onContention?: OnContention;
  /**
   * The shortest time for which the lock is held, even when the body ends sooner. Use it for jobs that start at the
   * same time on several machines whose clocks differ: a machine that is late then finds the lock still held, and does
   * not run the job again. In ms. Default: 0.
   */
  minHoldMs?: number;
  /** Replaces `minHoldMs` when the body throws. With 0 the next caller may try at once. Default: `minHoldMs`. */
  minHoldOnFailureMs?: number;
}

export type ResolvedLockDefaults = Readonly<Required<Omit<LockDefaults, 'maxHoldMs' | 'maxWaiting'>>> & {
  readonly maxHoldMs: number | undefined;
  readonly maxWaiting: ResolvedMaxWaiting;
};

export type ResolvedLockCall = Omit<ResolvedLockDefaults, 'cleanupInIsLocked' | 'maxWaiting'> & {
  readonly signal: AbortSignal | undefined;
  readonly reentrant: boolean;
  readonly onContention: OnContention;
  readonly minHoldMs: number;
  readonly minHoldOnFailureMs: number | undefined;
};

export const DEFAULT_LOCK_OPTIONS: ResolvedLockDefaults = {
  ttlMs: 30_000,
  timeoutMs: 5_000,
  retryDelayMs: 100,
  fair: true,
  pollMs: 8_000,
  autoExtend: true,
  maxHoldMs: undefined,
  idleMs: 60_000,
  cleanupInIsLocked: false,
  maxWaiting: { perKey: 1_000, perProcess: 10_000 },
};

function maxWaiting(name: string, value: unknown): ResolvedMaxWaiting {
  const { maxWaiting: usual } = DEFAULT_LOCK_OPTIONS;
  if (typeof value === 'number') return { ...usual, perKey: atMost(name, value) };
  if (typeof value !== 'object') throw invalidOption(name, 'an integer from 1, Infinity or an object', value);
  const { perKey = usual.perKey, perProcess = usual.perProcess } = knownOptions(name, value, [
    'perKey',
    'perProcess',
  ]);
  return { perKey: atMost(`${name}.perKey`, perKey), perProcess: atMost(`${name}.perProcess`, perProcess) };
}

const atMost = (name: string, value: unknown): number =>
  value === Infinity ? Infinity : integer(name, value, 1);

const CHECKS: Readonly<Record<string, (name: string, value: unknown) => unknown>> = {
  ttlMs: duration,
  timeoutMs: (name, value) => (value === Infinity ? Infinity : integer(name, value)),
  retryDelayMs: duration,
  fair: boolean,
  pollMs: duration,
  autoExtend: boolean,
  maxHoldMs: duration,
  idleMs: (name, value) => atMost(name, value),
  cleanupInIsLocked: boolean,
  maxWaiting,
  signal: abortSignal,
  reentrant: boolean,
  onContention: (name, value) =>
    typeof value === 'function' ? value : oneOf(name, value, ['throw', 'skip']),
  minHoldMs: integer,
  minHoldOnFailureMs: integer,
};

const DEFAULT_NAMES = Object.keys(DEFAULT_LOCK_OPTIONS);
const OF_THE_MODULE_ALONE = ['cleanupInIsLocked', 'maxWaiting'];
const CALL_NAMES = Object.keys(CHECKS).filter((name) => !OF_THE_MODULE_ALONE.includes(name));
const CALL_NAMES_AND_KEYS = ['key', 'keys', ...CALL_NAMES];

/** Checks the `lock` group of the module's options and adds the defaults. */
export const resolveLockDefaults = (options: unknown): ResolvedLockDefaults =>
  resolve('lock', options, DEFAULT_NAMES, DEFAULT_LOCK_OPTIONS);

/**
 * Checks the options of one call and adds the defaults of the module. Those of `lock()` may have `key` or `keys` too, which
 * are checked elsewhere. Those of a decorator have no keys, and their errors begin with its `place`.
 */
export const resolveLockCall = (
  options: unknown,
  defaults: ResolvedLockDefaults,
  place?: string,
): ResolvedLockCall =>
  resolve(place ? `${place}: options` : 'options', options, place ? CALL_NAMES : CALL_NAMES_AND_KEYS, {
    ...defaults,
    signal: undefined,
    reentrant: false,
    onContention: 'throw',
    minHoldMs: 0,
    minHoldOnFailureMs: undefined,
  });

/** Returns `defaults`, replaced by the options that are given. An option that is undefined was not given. */
function resolve<Resolved extends object>(
  group: string,
  options: unknown,
  known: readonly string[],
  defaults: Resolved,
): Resolved {
  const given = knownOptions(group, options, known);
  const resolved = { ...defaults } as Record<string, unknown>;
  for (const [name, value] of Object.entries(given)) {
    const check = CHECKS[name];
    if (check && value !== undefined) resolved[name] = check(`${group}.${name}`, value);
  }
  return resolved as Resolved;
}
