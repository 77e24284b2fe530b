/** Where a backend in this process gets its time from: wall-clock milliseconds since the epoch. */
export interface Clock {
  now(): number;
}

export const systemClock: Clock = { now: () => Date.now() };

/** Starts at the wall clock and never jumps: for durations that are told as instants. */
export const steadyClock: Clock = { now: () => Math.floor(performance.timeOrigin + performance.now()) };

/** Milliseconds that never step back: for deadlines and durations inside this process. */
export const monotonicMs = (): number => performance.now();

/** How far past its expiry a record still counts as live, in ms: covers clocks that disagree (seed 004). */
export const TIME_TOLERANCE_MS = 1000;

/**
 * The one liveness rule of every backend: a record lives until its expiry plus the tolerance.
 *
 * @example isLive(lock.expiresAtMs, Date.now(), TIME_TOLERANCE_MS)
 */
export const isLive = (expiresAtMs: number, nowMs: number, toleranceMs: number): boolean =>
  expiresAtMs > nowMs - toleranceMs;

/**
 * Milliseconds out of the reply of Redis' `TIME`: `[seconds, microseconds]`, as strings or numbers.
 *
 * @example calculateRedisServerTimeMs(await redis.time())
 */
export const calculateRedisServerTimeMs = (time: readonly [number | string, number | string]): number =>
  Number(time[0]) * 1000 + Math.floor(Number(time[1]) / 1000);
