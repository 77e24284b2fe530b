/** Where a backend in this process reads the time: wall-clock milliseconds since 1970. */
export interface Clock {
  now(): number;
}

export const systemClock: Clock = { now: () => Date.now() };

/** Starts with the time of the wall clock, and never jumps. For durations that are stored as instants. */
export const steadyClock: Clock = { now: () => Math.floor(performance.timeOrigin + performance.now()) };

/**
 * A point in time by both clocks of this process. The monotonic clock stands still while the machine is
 * suspended. The wall clock may be set. So a moment has come when either clock says so.
 */
export interface Moment {
  readonly monotonicMs: number;
  readonly wallMs: number;
}

export const momentNow = (): Moment => ({ monotonicMs: performance.now(), wallMs: Date.now() });

export const momentAfter = (moment: Moment, ms: number): Moment => ({
  monotonicMs: moment.monotonicMs + ms,
  wallMs: moment.wallMs + ms,
});

export const earlierMoment = (a: Moment, b: Moment): Moment => ({
  monotonicMs: Math.min(a.monotonicMs, b.monotonicMs),
  wallMs: Math.min(a.wallMs, b.wallMs),
});

/**
 * Returns the ms until a moment, by the clock that reaches it first. The moment has come if the result is 0 or less.
 */
export const msUntil = ({ monotonicMs: byMonotonic, wallMs }: Moment): number =>
  Math.min(byMonotonic - performance.now(), wallMs - Date.now());

/**
 * How long after its expiry a record still counts as live, in ms, for clocks that disagree. See
 * docs/wire-format.md.
 */
export const TIME_TOLERANCE_MS = 1000;

/**
 * Returns whether a record is live: until its expiry plus the tolerance.
 *
 * @example isLive(lock.expiresAtMs, Date.now(), TIME_TOLERANCE_MS)
 */
export const isLive = (expiresAtMs: number, nowMs: number, toleranceMs: number): boolean =>
  expiresAtMs > nowMs - toleranceMs;

/**
 * Turns a reply of the Redis command `TIME` into ms since 1970. The reply is `[seconds, microseconds]`, as strings or
 * numbers.
 *
 * @example calculateRedisServerTimeMs(await redis.time())
 */
export const calculateRedisServerTimeMs = (time: readonly [number | string, number | string]): number =>
  Number(time[0]) * 1000 + Math.floor(Number(time[1]) / 1000);
