import fc from 'fast-check';
import {
  BudgetCalendar,
  parsePeriodKey,
  periodKey,
  validatePeriod,
} from '../../lib/budget/budget.calendar.js';
import type { CalendarPeriod, Period } from '../../lib/budget/budget.types.js';

const HOUR_MS = 3_600_000;
const iso = (ms: number | null): string | null => (ms === null ? null : new Date(ms).toISOString());

const windowAt = (period: unknown, instant: string): (string | null)[] => {
  const { startMs, endMs } = new BudgetCalendar().windowAt(
    validatePeriod('period', period),
    Date.parse(instant),
  );
  return [iso(startMs), iso(endMs)];
};

describe('the window of an instant', () => {
  const cases: [name: string, period: unknown, instant: string, start: string, end: string | null][] = [
    [
      'a week from Sunday',
      { every: 'week', anchor: 7 },
      '2027-01-03T00:00:00Z',
      '2027-01-03T00:00:00.000Z',
      '2027-01-10T00:00:00.000Z',
    ],
    [
      'a month from the 31st, in February',
      { every: 'month', anchor: 31 },
      '2027-02-28T00:00:00Z',
      '2027-02-28T00:00:00.000Z',
      '2027-03-31T00:00:00.000Z',
    ],
    [
      'a month from the 31st, before that',
      { every: 'month', anchor: 31 },
      '2027-02-27T23:59:59.999Z',
      '2027-01-31T00:00:00.000Z',
      '2027-02-28T00:00:00.000Z',
    ],
    [
      'a month in Berlin that ends in summer time',
      { every: 'month', tz: 'Europe/Berlin' },
      '2027-03-31T21:59:59.999Z',
      '2027-02-28T23:00:00.000Z',
      '2027-03-31T22:00:00.000Z',
    ],
    [
      'a year from April',
      { every: 'year', anchor: 4 },
      '2027-03-31T23:59:59.999Z',
      '2026-04-01T00:00:00.000Z',
      '2027-04-01T00:00:00.000Z',
    ],
    [
      'a day of 23 hours',
      { every: 'day', tz: 'America/New_York' },
      '2027-03-14T12:00:00Z',
      '2027-03-14T05:00:00.000Z',
      '2027-03-15T04:00:00.000Z',
    ],
    [
      'a day of 25 hours',
      { every: 'day', tz: 'America/New_York' },
      '2027-11-07T12:00:00Z',
      '2027-11-07T04:00:00.000Z',
      '2027-11-08T05:00:00.000Z',
    ],
    [
      'the hour before one that comes twice',
      { every: 'hour', tz: 'America/New_York' },
      '2027-11-07T05:59:59.999Z',
      '2027-11-07T05:00:00.000Z',
      '2027-11-07T06:00:00.000Z',
    ],
    [
      'the hour that comes again',
      { every: 'hour', tz: 'America/New_York' },
      '2027-11-07T06:00:00Z',
      '2027-11-07T06:00:00.000Z',
      '2027-11-07T07:00:00.000Z',
    ],
    [
      'a day that begins at one, midnight being skipped',
      { every: 'day', tz: 'America/Sao_Paulo' },
      '2018-11-04T12:00:00Z',
      '2018-11-04T03:00:00.000Z',
      '2018-11-05T02:00:00.000Z',
    ],
    [
      'a day whose last hour comes twice',
      { every: 'day', tz: 'America/Sao_Paulo' },
      '2018-02-18T02:30:00Z',
      '2018-02-17T02:00:00.000Z',
      '2018-02-18T03:00:00.000Z',
    ],
    [
      'a day whose anchor is skipped',
      { every: 'day', tz: 'America/New_York', anchor: 2 },
      '2027-03-14T07:00:00Z',
      '2027-03-14T07:00:00.000Z',
      '2027-03-15T06:00:00.000Z',
    ],
    [
      'the days around one that Samoa left out',
      { every: 'day', tz: 'Pacific/Apia' },
      '2011-12-30T09:59:59.999Z',
      '2011-12-29T10:00:00.000Z',
      '2011-12-30T10:00:00.000Z',
    ],
    [
      'and the one after',
      { every: 'day', tz: 'Pacific/Apia' },
      '2011-12-30T10:00:00Z',
      '2011-12-30T10:00:00.000Z',
      '2011-12-31T10:00:00.000Z',
    ],
  ];

  it.each(cases)('%s', (_, period, instant, start, end) => {
    expect(windowAt(period, instant)).toEqual([start, end]);
  });

  const zone = fc.constantFrom(
    'UTC',
    'Europe/Berlin',
    'America/New_York',
    'America/Sao_Paulo',
    'Asia/Kolkata',
    'Australia/Lord_Howe',
    'Pacific/Apia',
    'America/Havana',
    'Africa/Casablanca',
    'Pacific/Chatham',
    'Asia/Tehran',
  );
  const calendarPeriod = fc.oneof(
    ...(
      [
        ['hour', 0, 59],
        ['day', 0, 23],
        ['week', 1, 7],
        ['month', 1, 31],
        ['year', 1, 12],
      ] as const
    ).map(([every, min, max]) =>
      fc.record({ every: fc.constant(every), tz: zone, anchor: fc.integer({ min, max }) }),
    ),
  );
  const instant = fc.integer({ min: Date.UTC(2005, 0), max: Date.UTC(2040, 0) });

  it('contains it, and meets its neighbours without gap or overlap, whatever was asked before', () => {
    const remembering = new BudgetCalendar();
    fc.assert(
      fc.property(calendarPeriod, instant, (period, nowMs) => {
        const window = new BudgetCalendar().windowAt(period, nowMs);
        const startMs = window.startMs;
        const endMs = window.endMs ?? NaN;
        expect(startMs <= nowMs && nowMs < endMs).toBe(true);
        for (const ms of [startMs, endMs - 1, nowMs])
          expect(remembering.windowAt(period, ms)).toEqual(window);
        expect(remembering.windowAt(period, endMs).startMs).toBe(endMs);
        expect(remembering.windowAt(period, startMs - 1).endMs).toBe(startMs);
      }),
      { numRuns: 2_000 },
    );
  });

  it('starts where the wall clock first shows the anchor or later', () => {
    const wallClock = (tz: string, ms: number): string =>
      new Intl.DateTimeFormat('sv-SE', { timeZone: tz, dateStyle: 'short', timeStyle: 'medium' }).format(ms);
    fc.assert(
      fc.property(zone, fc.integer({ min: 0, max: 23 }), instant, (tz, anchor, nowMs) => {
        const { startMs } = new BudgetCalendar().windowAt({ every: 'day', tz, anchor }, nowMs);
        const [date, time = ''] = wallClock(tz, startMs).split(' ');
        const boundary = `${String(anchor).padStart(2, '0')}:00:00`;
        const before = wallClock(tz, startMs - 1_000);
        expect(time >= boundary || before.slice(0, 10) < (date ?? '')).toBe(true);
        expect(before < `${date} ${boundary}`).toBe(true);
      }),
      { numRuns: 1_000 },
    );
  });

  it('is of one length where nothing moves the clock', () => {
    fc.assert(
      fc.property(fc.integer({ min: 1, max: 100 * HOUR_MS }), instant, (windowMs, nowMs) => {
        const { startMs, endMs } = new BudgetCalendar().windowAt({ windowMs }, nowMs);
        expect([
          startMs % windowMs,
          (endMs ?? NaN) - startMs,
          startMs <= nowMs && nowMs < (endMs ?? NaN),
        ]).toEqual([0, windowMs, true]);
      }),
    );
  });

  it('is named by a key that gives the period back', () => {
    fc.assert(
      fc.property(calendarPeriod, (period: CalendarPeriod) => {
        const valid = validatePeriod('period', period);
        expect(parsePeriodKey(periodKey(valid))).toEqual(valid);
      }),
    );
    for (const period of ['lifetime', { windowMs: 5 }] satisfies Period[])
      expect(parsePeriodKey(periodKey(period))).toEqual(period);
    expect(() => parsePeriodKey('fortnight')).toThrow(TypeError);
  });
});

describe('a period', () => {
  it('has one form, however its defaults are said', () => {
    expect(validatePeriod('period', { every: 'month', tz: 'UTC', anchor: 1 })).toEqual({ every: 'month' });
    for (const tz of [
      'utc',
      'GMT',
      'Etc/UTC',
      'Etc/GMT',
      'Etc/Zulu',
      'Zulu',
      'UCT',
      'Etc/GMT+0',
      'Greenwich',
    ])
      expect(validatePeriod('period', { every: 'month', tz })).toEqual({ every: 'month' });
    for (const tz of ['Europe/London', 'Etc/GMT+1'])
      expect(validatePeriod('period', { every: 'month', tz })).toEqual({ every: 'month', tz });
    expect(validatePeriod('period', { every: 'hour', anchor: 0 })).toEqual({ every: 'hour' });
  });

  it.each([
    [
      'a word',
      'monthly',
      /period must be "lifetime", \{ every \} or \{ windowMs \}, got "monthly" \(string\)/,
    ],
    ['nothing', undefined, /got undefined/],
    ['an unknown unit', { every: 'fortnight' }, /period.every must be "hour" or "day"/],
    ['an unknown zone', { every: 'day', tz: 'Mars/Olympus' }, /period.tz must be an IANA time zone/],
    ['a zone with separators', { every: 'day', tz: 'UTC|x' }, /period.tz must be an IANA time zone/],
    [
      'an anchor out of bounds',
      { every: 'week', anchor: 8 },
      /period.anchor must be an integer from 1 to 7, got 8 \(number\)/,
    ],
    ['a window of nothing', { windowMs: 0 }, /period.windowMs must be an integer from 1/],
    ['a misspelt option', { every: 'day', zone: 'UTC' }, /period.zone is not an option/],
  ])('is refused: %s', (_, period, message) => {
    expect(() => validatePeriod('period', period)).toThrow(message);
  });
});
