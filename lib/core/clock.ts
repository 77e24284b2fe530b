/** Where a backend in this process reads the time: wall-clock milliseconds since 1970. */
export interface Clock {
  /** Returns the time in ms since 1970. */
  now(): number;
}

export const systemClock: Clock = { now: () => Date.now() };

/** Starts with the time of the wall clock, and never jumps. For durations that are stored as instants. */
export const steadyClock: Clock = { now: () => Math.floor(performance.timeOrigin + performance.now()) };

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
