import { abortSignal, boolean, duration, integer, knownOptions, oneOf } from '../validate.js';

/** How `lock()` waits, keeps alive and gives up. Durations in ms, at most 2^31 - 1. */
export interface LockDefaults {
  /** How long the lock outlives its last sign of life. At least 1. Default: 30,000. */
  ttlMs?: number;
  /**
   * How long to wait for a lock that somebody else holds, and for Redis to answer; 0 tries once, `Infinity` waits as
   * long as it takes. Default: 5,000.
   */
  timeoutMs?: number;
  /**
   * True: callers get the lock in the order in which they came, also of several processes, and are told of their turn.
   * False: they ask again and again, until `timeoutMs` or `maxRetries` is over. Default: true.
   */
  fair?: boolean;
  /**
   * With `fair: true`: how often a caller looks by itself, at least, since nobody tells it of a lock that expires or that
   * another program releases. 1,000 is advised beside such programs. At least 1. Default: 8,000.
   */
  pollMs?: number;
  /** With `fair: false`: further tries after the first. Default: 10. */
  maxRetries?: number;
  /** With `fair: false`, and while Redis is away: the pause between two tries, before backoff and jitter. At least 1. Default: 100. */
  retryDelayMs?: number;
  /** Whether pauses double (up to 1 s) or stay. Default: `'exponential'`. */
  backoff?: 'exponential' | 'fixed';
  /** How much of a pause is left to chance: half, all or nothing of it. Default: `'equal'`. */
  jitter?: 'equal' | 'full' | 'none';
  /** Extend the lock while the body runs. Default: true. */
  autoExtend?: boolean;
  /** Longest the lock is held, extensions included; a body that is still running then has lost it. Default: no end. */
  maxHoldMs?: number;
  /** Let `isLocked` delete a record dead for over 2 s; a fence counter never. Default: false. */
  cleanupInIsLocked?: boolean;
}

/** How `lock()` answers when somebody else holds the lock: it throws after waiting, or does not wait at all. */
export type OnContention = 'throw' | 'skip' | ((key: string, keys: readonly string[]) => unknown);

/** How one call of `lock()` or one `@WithLock()` differs from the module's defaults. */
export interface LockCallOptions extends Omit<LockDefaults, 'cleanupInIsLocked'> {
  /** Ends the waiting. A body that runs already is its own master: give it the signal too. */
  signal?: AbortSignal | undefined;
  /** Inside a body that holds the same key: run at once under that lock, instead of failing with AlreadyHeld. Default: false. */
  reentrant?: boolean;
  /**
   * `'throw'`: AcquisitionTimeout after `timeoutMs`. `'skip'`: don't wait, don't run, return undefined: for
   * cron jobs on many machines. A function of the key (the first, and all keys): don't wait, return what it returns.
   * Default: `'throw'`.
   */
  onContention?: OnContention;
  /** Keep the lock at least so long, even when the body ends sooner: for jobs whose clocks differ. Default: 0. */
  minHoldMs?: number;
  /** `minHoldMs` of a body that throws: 0 lets the next one try again at once. Default: `minHoldMs`. */
  minHoldOnFailureMs?: number;
}

export type ResolvedLockDefaults = Readonly<Required<Omit<LockDefaults, 'maxHoldMs'>>> & {
  readonly maxHoldMs: number | undefined;
};

export type ResolvedLockCall = Omit<ResolvedLockDefaults, 'cleanupInIsLocked'> & {
  readonly signal: AbortSignal | undefined;
  readonly reentrant: boolean;
  readonly onContention: OnContention;
  readonly minHoldMs: number;
  readonly minHoldOnFailureMs: number | undefined;
};

export const DEFAULT_LOCK_OPTIONS: ResolvedLockDefaults = {
  ttlMs: 30_000,
  timeoutMs: 5_000,
  maxRetries: 10,
  retryDelayMs: 100,
  backoff: 'exponential',
  jitter: 'equal',
  fair: true,
  pollMs: 8_000,
  autoExtend: true,
  maxHoldMs: undefined,
  cleanupInIsLocked: false,
};

type Checks = Readonly<Record<string, (name: string, value: unknown) => unknown>>;

const SHARED_CHECKS: Checks = {
  ttlMs: duration,
  timeoutMs: (name, value) => (value === Infinity ? Infinity : integer(name, value)),
  maxRetries: integer,
  retryDelayMs: duration,
  backoff: (name, value) => oneOf(name, value, ['exponential', 'fixed']),
  jitter: (name, value) => oneOf(name, value, ['equal', 'full', 'none']),
  fair: boolean,
  pollMs: duration,
  autoExtend: boolean,
  maxHoldMs: duration,
};

const DEFAULT_CHECKS: Checks = { ...SHARED_CHECKS, cleanupInIsLocked: boolean };

const CALL_CHECKS: Checks = {
  ...SHARED_CHECKS,
  signal: abortSignal,
  reentrant: boolean,
  onContention: (name, value) =>
    typeof value === 'function' ? value : oneOf(name, value, ['throw', 'skip']),
  minHoldMs: integer,
  minHoldOnFailureMs: integer,
};

const DEFAULT_NAMES = Object.keys(DEFAULT_CHECKS);
const CALL_NAMES = Object.keys(CALL_CHECKS);
const CALL_NAMES_AND_KEYS = ['key', 'keys', ...CALL_NAMES];

/** The `lock` group of the module's options. */
export const resolveLockDefaults = (options: unknown): ResolvedLockDefaults =>
  resolve('lock', options, DEFAULT_CHECKS, DEFAULT_NAMES, DEFAULT_LOCK_OPTIONS);

/** The options of one call, over the module's. `withKeys`: they name the key or keys too, which are checked elsewhere. */
export const resolveLockCall = (
  options: unknown,
  defaults: ResolvedLockDefaults,
  withKeys = false,
): ResolvedLockCall =>
  resolve('options', options, CALL_CHECKS, withKeys ? CALL_NAMES_AND_KEYS : CALL_NAMES, {
    ...defaults,
    signal: undefined,
    reentrant: false,
    onContention: 'throw',
    minHoldMs: 0,
    minHoldOnFailureMs: undefined,
  });

/** Fills `defaults` with what `options` says; an option that is undefined was not given. */
function resolve<Resolved extends object>(
  group: string,
  options: unknown,
  checks: Checks,
  known: readonly string[],
  defaults: Resolved,
): Resolved {
  const given = knownOptions(group, options, known);
  const resolved = { ...defaults } as Record<string, unknown>;
  for (const [name, value] of Object.entries(given)) {
    const check = checks[name];
    if (check && value !== undefined) resolved[name] = check(`${group}.${name}`, value);
  }
  return resolved as Resolved;
}
