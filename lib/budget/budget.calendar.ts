import { integer, invalidOption, knownOptions, oneOf } from '../core/validate.js';
import type { BudgetWindow, CalendarPeriod, Period } from './budget.types.js';

const MINUTE_MS = 60_000;
const HOUR_MS = 60 * MINUTE_MS;
const DAY_MS = 24 * HOUR_MS;
/** The longest window, about 100 years. Its end is always an instant that Lua and Date can express. */
const MAX_WINDOW_MS = 100 * 366 * DAY_MS;

type Unit = CalendarPeriod['every'];

const UNITS: readonly Unit[] = ['hour', 'day', 'week', 'month', 'year'];

const ANCHORS: Readonly<Record<Unit, { min: number; max: number; default: number }>> = {
  hour: { min: 0, max: 59, default: 0 },
  day: { min: 0, max: 23, default: 0 },
  week: { min: 1, max: 7, default: 1 },
  month: { min: 1, max: 31, default: 1 },
  year: { min: 1, max: 12, default: 1 },
};

/** Checks a period and leaves out values that equal the defaults, so that equal periods have the same form. */
export function validatePeriod(name: string, period: unknown): Period {
  if (period === 'lifetime') return period;
  if (typeof period !== 'object' || period === null)
    throw invalidOption(name, '"lifetime", { every } or { windowMs }', period);
  if ('windowMs' in period) {
    const { windowMs } = knownOptions(name, period, ['windowMs']);
    return { windowMs: integer(`${name}.windowMs`, windowMs, 1, MAX_WINDOW_MS) };
  }
  const given = knownOptions(name, period, ['every', 'tz', 'anchor']);
  const every = oneOf(`${name}.every`, given.every, UNITS);
  const zone = given.tz === undefined ? 'UTC' : validateTimeZone(`${name}.tz`, given.tz);
  // All names of UTC are one period and one budget.
  const tz = UTC.test(zone) ? 'UTC' : zone;
  const { min, max, default: usual } = ANCHORS[every];
  const anchor = given.anchor === undefined ? usual : integer(`${name}.anchor`, given.anchor, min, max);
  return { every, ...(tz === 'UTC' ? {} : { tz }), ...(anchor === usual ? {} : { anchor }) };
}

/** The names of UTC. They are listed here because versions of `Intl` return different names for it. */
const UTC = /^((etc\/)?(utc|uct|gmt[+-]?0?|zulu|universal|greenwich)|\+00(00)?)$/i;

function validateTimeZone(name: string, tz: unknown): string {
  // The characters are checked too, because the time zone becomes part of a stored name.
  if (typeof tz !== 'string' || !/^[\w+\-/]{1,64}$/.test(tz))
    throw invalidOption(name, 'an IANA time zone', tz);
  try {
    new Intl.DateTimeFormat('en-US', { timeZone: tz });
    return tz;
  } catch {
    throw invalidOption(name, 'an IANA time zone that this Node knows', tz, 'For example "Europe/Berlin".');
  }
}

const KEY = /^(hour|day|week|month|year)(?:\/(\d+))?(?:@(.+))?$/;

/** Returns the stored name of a validated period: `lifetime`, `window:3600000`, `month/15@Europe/Berlin`. */
export function periodKey(period: Period): string {
  if (typeof period === 'string') return period;
  if ('windowMs' in period) return `window:${period.windowMs}`;
  const { every, anchor, tz } = period;
  return `${every}${anchor === undefined ? '' : `/${anchor}`}${tz === undefined ? '' : `@${tz}`}`;
}

export function parsePeriodKey(key: string): Period {
  if (key === 'lifetime') return key;
  if (key.startsWith('window:')) return { windowMs: Number(key.slice('window:'.length)) };
  const [, every, anchor, tz] = KEY.exec(key) ?? [];
  if (!every) throw new TypeError('not the name of a period');
  return {
    every: every as Unit,
    ...(tz === undefined ? {} : { tz }),
    ...(anchor === undefined ? {} : { anchor: Number(anchor) }),
  };
}

/** Finds the window of an instant. Remembers the last window of each period, because `Intl` is slow. */
export class BudgetCalendar {
  readonly #formats = new Map<string, Intl.DateTimeFormat>();
  readonly #windows = new Map<string, BudgetWindow>();

  windowAt(period: Period, nowMs: number): BudgetWindow {
    if (period === 'lifetime') return { startMs: 0, endMs: null };
    if ('windowMs' in period) {
      const startMs = nowMs - (nowMs % period.windowMs);
      return { startMs, endMs: startMs + period.windowMs };
    }
    const key = periodKey(period);
    const last = this.#windows.get(key);
    if (last && last.startMs <= nowMs && nowMs < (last.endMs as number)) return last;
    const { every } = period;
    const window = every === 'hour' ? this.#hourAt(period, nowMs) : this.#unitAt(every, period, nowMs);
    this.#windows.set(key, window);
    return window;
  }

  /**
   * Returns the window of a day, week, month or year that contains `nowMs`. A window starts when the wall clock first
   * reaches its boundary, or at the skip where daylight saving skips it. So windows neither overlap nor leave gaps.
   */
  #unitAt(every: Exclude<Unit, 'hour'>, { tz = 'UTC', anchor }: CalendarPeriod, nowMs: number): BudgetWindow {
    const { indexOf, wallMsOf } = BOUNDARIES[every];
    const startOf = (n: number): number =>
      this.#firstInstantOf(tz, wallMsOf(n, anchor ?? ANCHORS[every].default));
    const n = indexOf(nowMs + this.#offsetMs(tz, nowMs));
    // Window n starts in unit n, and `nowMs` is in unit n. Before the start of window n, `nowMs` is in window
    // n - 1. Where the clock was set back over the start of window n + 1, that window has begun already.
    const starts = [n - 1, n, n + 1, n + 2].map(startOf);
    const next = starts.findIndex((startMs) => startMs > nowMs);
    return { startMs: starts[next - 1] as number, endMs: starts[next] as number };
  }

  /**
   * Returns the window of a period `hour` that contains `nowMs`. It has 60 minutes, also where daylight saving skips or
   * repeats an hour. But where the clock moves by half an hour, the change ends one window and starts the next.
   */
  #hourAt({ tz = 'UTC', anchor = 0 }: CalendarPeriod, nowMs: number): BudgetWindow {
    const phase = (ms: number): number => modulo(this.#offsetMs(tz, ms) - anchor * MINUTE_MS, HOUR_MS);
    const startMs = nowMs - modulo(nowMs + phase(nowMs), HOUR_MS);
    const endMs = startMs + HOUR_MS;
    return {
      startMs: phase(startMs) === phase(nowMs) ? startMs : this.#transition(tz, startMs, nowMs),
      endMs: phase(endMs - 1) === phase(nowMs) ? endMs : this.#transition(tz, nowMs, endMs),
    };
  }

  /** Returns the first instant at which the wall clock shows `wallMs` (written as if it were UTC) or later. */
  #firstInstantOf(tz: string, wallMs: number): number {
    // Offsets are at most 14 hours, so these are the offsets before and after any change near this time.
    const before = this.#offsetMs(tz, wallMs - 1.5 * DAY_MS);
    const after = this.#offsetMs(tz, wallMs + 1.5 * DAY_MS);
    if (before === after) return wallMs - before;
    const change = this.#transition(tz, wallMs - 1.5 * DAY_MS, wallMs + 1.5 * DAY_MS);
    return wallMs - before < change ? wallMs - before : Math.max(wallMs - after, change);
  }

  /** Returns the instant in (fromMs, toMs] at which the offset becomes that of `toMs`. */
  #transition(tz: string, fromMs: number, toMs: number): number {
    const after = this.#offsetMs(tz, toMs);
    let low = fromMs;
    let high = toMs;
    while (high - low > 1) {
      const middle = Math.floor((low + high) / 2);
      if (this.#offsetMs(tz, middle) === after) high = middle;
      else low = middle;
    }
    return high;
  }

  /** Returns how far the wall clock is ahead of UTC, in ms. */
  #offsetMs(tz: string, atMs: number): number {
    if (tz === 'UTC') return 0;
    const seconds = Math.floor(atMs / 1000) * 1000;
    const fields: Record<string, number> = {};
    for (const { type, value } of this.#format(tz).formatToParts(seconds)) fields[type] = Number(value);
    const { year = 0, month = 1, day = 1, hour = 0, minute = 0, second = 0 } = fields;
    return Date.UTC(year, month - 1, day, hour, minute, second) - seconds;
  }

  #format(tz: string): Intl.DateTimeFormat {
    let format = this.#formats.get(tz);
    if (!format) {
      format = new Intl.DateTimeFormat('en-US', {
        timeZone: tz,
        hourCycle: 'h23',
        year: 'numeric',
        month: 'numeric',
        day: 'numeric',
        hour: 'numeric',
        minute: 'numeric',
        second: 'numeric',
      });
      this.#formats.set(tz, format);
    }
    return format;
  }
}

/** Numbers the units, such as months. Window n starts in unit n. */
interface Boundary {
  /** Returns the number of the unit that contains this wall-clock time. */
  indexOf(wallMs: number): number;
  /** Returns the wall-clock time at which window n starts. */
  wallMsOf(n: number, anchor: number): number;
}

// 1970-01-01 was a Thursday, so its week began on the Monday three days earlier.
const FIRST_MONDAY_MS = -3 * DAY_MS;

const BOUNDARIES: Readonly<Record<Exclude<Unit, 'hour'>, Boundary>> = {
  day: {
    indexOf: (wallMs) => Math.floor(wallMs / DAY_MS),
    wallMsOf: (n, hour) => n * DAY_MS + hour * HOUR_MS,
  },
  week: {
    indexOf: (wallMs) => Math.floor((wallMs - FIRST_MONDAY_MS) / (7 * DAY_MS)),
    wallMsOf: (n, weekday) => FIRST_MONDAY_MS + (7 * n + weekday - 1) * DAY_MS,
  },
  month: {
    indexOf: (wallMs) => new Date(wallMs).getUTCFullYear() * 12 + new Date(wallMs).getUTCMonth(),
    // Day 0 of the next month is the last day of this month.
    wallMsOf: (n, day) => Math.min(monthDay(n, day), monthDay(n + 1, 0)),
  },
  year: {
    indexOf: (wallMs) => new Date(wallMs).getUTCFullYear(),
    wallMsOf: (n, month) => Date.UTC(n, month - 1),
  },
};

const monthDay = (month: number, day: number): number => Date.UTC(Math.floor(month / 12), month % 12, day);

const modulo = (value: number, divisor: number): number => ((value % divisor) + divisor) % divisor;
