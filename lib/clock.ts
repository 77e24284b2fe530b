/** Where a backend in this process gets its time from: wall-clock milliseconds since the epoch. */
export interface Clock {
  now(): number;
}

export const systemClock: Clock = { now: () => Date.now() };

/** Starts at the wall clock and never jumps: for durations that are told as instants. */
export const steadyClock: Clock = { now: () => Math.floor(performance.timeOrigin + performance.now()) };

/** Milliseconds that never step back: for deadlines and durations inside this process. */
export const monotonicMs = (): number => performance.now();

/**
 * A point in time by both clocks of this process. The monotonic one stands still while the machine is suspended, the
 * wall clock may be set: an end has come when either says so.
 */
export interface Moment {
  readonly monotonicMs: number;
  readonly wallMs: number;
}

export const momentNow = (): Moment => ({ monotonicMs: monotonicMs(), wallMs: Date.now() });

export const momentAfter = (moment: Moment, ms: number): Moment => ({
  monotonicMs: moment.monotonicMs + ms,
  wallMs: moment.wallMs + ms,
});

export const earlierMoment = (a: Moment, b: Moment): Moment => ({
  monotonicMs: Math.min(a.monotonicMs, b.monotonicMs),
  wallMs: Math.min(a.wallMs, b.wallMs),
});

/** What is left until a moment by the clock that says less; 0 or below: it has come. */
export const msUntil = ({ monotonicMs: byMonotonic, wallMs }: Moment): number =>
  Math.min(byMonotonic - monotonicMs(), wallMs - Date.now());

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
