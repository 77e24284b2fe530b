import * as fc from 'fast-check';
import type { CounterBackend } from '../../lib/counter/counter.backend.js';
import { CounterService } from '../../lib/counter/counter.service.js';
import { CounterError } from '../../lib/counter/counter.errors.js';

/** A backend under test, and the clock that ends its windows. */
export interface CountersUnderTest {
  readonly backend: CounterBackend;
  advance(ms: number): void;
}

const windowMs = 60_000;

const codeOf = (promise: Promise<unknown>): Promise<string> =>
  promise.then(
    () => 'no error',
    (error: unknown) => (error instanceof CounterError ? error.code : `not a CounterError: ${String(error)}`),
  );

/** Whole minutes, rounded up: the time that a test itself takes decides nothing. */
const inMinutes = <T extends { resetMs: number }>({ resetMs, ...rest }: T): object => ({
  ...rest,
  resetMinutes: Math.ceil(resetMs / 60_000),
});

/** What the CounterService does, whatever it stands on. */
export function describeCounters(name: string, setUp: () => Promise<CountersUnderTest>): void {
  describe(`CounterService on ${name}`, () => {
    let counters: CounterService;
    let advance: (ms: number) => void;
    beforeEach(async () => {
      const under = await setUp();
      counters = new CounterService(under.backend);
      advance = (ms) => under.advance(ms);
    });

    it('counts up to max and never past it, of 300 at once', async () => {
      const results = await Promise.all(
        Array.from({ length: 300 }, () => counters.increment('k', { max: 101, windowMs })),
      );
      const counted = results.filter(({ ok }) => ok);
      expect(counted.map(({ count }) => count).sort((a, b) => a - b)).toStrictEqual(
        Array.from({ length: 101 }, (_, i) => i + 1),
      );
      for (const { ok, count, remaining } of results) expect(ok ? 101 - count : 0).toBe(remaining);
    });

    it('keeps the window that is open when windowMs changes', async () => {
      await counters.increment('k', { max: 9, windowMs });
      advance(30_000);
      const { resetMs } = await counters.increment('k', { max: 9, windowMs: 10 * windowMs });
      expect(resetMs).toBeLessThanOrEqual(30_000);
    });

    it('counts exactly up to 2^53 - 1', async () => {
      const max = Number.MAX_SAFE_INTEGER;
      await counters.increment('k', { max, windowMs, cost: max - 1 });
      expect(await counters.increment('k', { max, windowMs })).toMatchObject({
        ok: true,
        count: max,
        remaining: 0,
      });
      expect(await counters.increment('k', { max, windowMs })).toMatchObject({ ok: false, count: max });
      expect(await counters.peek('k')).toMatchObject({ count: max });
    });

    it('refuses a cost over max, and opens no window for it', async () => {
      expect(await counters.increment('k', { max: 1, windowMs, cost: 2 })).toStrictEqual({
        ...{ ok: false, count: 0, remaining: 1, resetMs: 0 },
      });
      expect(await counters.increment('k', { max: 0, windowMs })).toMatchObject({ ok: false, remaining: 0 });
    });

    it('keeps keys apart, and takes two spellings of one character for one', async () => {
      await counters.increment('caf\u00e9', { max: 9, windowMs });
      await counters.increment('{caf}', { max: 9, windowMs });
      expect(await counters.peek('cafe\u0301')).toMatchObject({ count: 1 });
    });

    it.each<[string, (counters: CounterService) => Promise<unknown>]>([
      ['no options', (it) => it.increment('k', undefined as never)],
      ['no max', (it) => it.increment('k', { windowMs } as never)],
      ['max: -1', (it) => it.increment('k', { max: -1, windowMs })],
      ['max: 1.5', (it) => it.increment('k', { max: 1.5, windowMs })],
      ['max: Infinity', (it) => it.increment('k', { max: Infinity, windowMs })],
      ['max: "5"', (it) => it.increment('k', { max: '5' as never, windowMs })],
      ['windowMs: 0', (it) => it.increment('k', { max: 5, windowMs: 0 })],
      ['windowMs: 0.5', (it) => it.increment('k', { max: 5, windowMs: 0.5 })],
      ['cost: 0', (it) => it.increment('k', { max: 5, windowMs, cost: 0 })],
      ['cost: -1', (it) => it.increment('k', { max: 5, windowMs, cost: -1 })],
      ['cost: NaN', (it) => it.increment('k', { max: 5, windowMs, cost: NaN })],
      ['an empty key', (it) => it.increment('', { max: 5, windowMs })],
      ['a key of 513 bytes', (it) => it.increment('x'.repeat(513), { max: 5, windowMs })],
      ['an empty id', (it) => it.increment('k', { max: 5, windowMs, id: '' })],
      ['peek of nothing', (it) => it.peek(undefined as never)],
      ['peek with max: 1.5', (it) => it.peek('k', { max: 1.5 })],
      ['reset of nothing', (it) => it.reset('')],
    ])('%s: InvalidArgument, and nothing is counted', async (_, call) => {
      expect(await codeOf(call(counters))).toBe('InvalidArgument');
      expect(await counters.peek('k')).toStrictEqual({ count: 0, resetMs: 0 });
    });

    it('agrees with a model over random calls and a moving clock', async () => {
      const id = fc.option(fc.constantFrom('i', 'j', 'k'), { nil: undefined });
      const increment = fc.record({
        max: fc.integer({ min: 0, max: 6 }),
        cost: fc.integer({ min: 1, max: 3 }),
        id,
      });
      const step = fc.oneof(
        { weight: 8, arbitrary: increment },
        { weight: 2, arbitrary: fc.record({ advanceMinutes: fc.integer({ min: 1, max: 3 }) }) },
        { weight: 1, arbitrary: fc.constant('reset' as const) },
        { weight: 1, arbitrary: fc.constant('peek' as const) },
      );
      // 3.5 minutes, while the clock moves by whole ones: no call falls on a window's end.
      const windowMs = 210_000;
      let round = 0;
      await fc.assert(
        fc.asyncProperty(fc.array(step, { minLength: 5, maxLength: 60, size: 'max' }), async (steps) => {
          const key = `round ${round++}`;
          let nowMs = 0;
          // Each counted call of the window that is open.
          let calls: { cost: number; id: string | undefined; after: number }[] = [];
          let endsAtMs = 0;
          for (const step of steps) {
            if (nowMs >= endsAtMs) calls = [];
            const count = calls.reduce((sum, { cost }) => sum + cost, 0);
            const resetMs = calls.length > 0 ? endsAtMs - nowMs : 0;
            if (step === 'reset') {
              calls = [];
              await counters.reset(key);
            } else if (step === 'peek') {
              expect(inMinutes(await counters.peek(key, { max: 4 }))).toStrictEqual(
                inMinutes({ count, resetMs, remaining: Math.max(0, 4 - count) }),
              );
            } else if ('advanceMinutes' in step) {
              nowMs += step.advanceMinutes * 60_000;
              advance(step.advanceMinutes * 60_000);
            } else {
              const { max, cost, id } = step;
              const before = id === undefined ? undefined : calls.find((call) => call.id === id);
              const ok = before !== undefined || count + cost <= max;
              if (ok && !before) {
                if (calls.length === 0) endsAtMs = nowMs + windowMs;
                calls.push({ cost, id, after: count + cost });
              }
              const after = before?.after ?? (ok ? count + cost : count);
              const left = calls.length > 0 ? endsAtMs - nowMs : 0;
              expect(inMinutes(await counters.increment(key, { max, cost, id, windowMs }))).toStrictEqual(
                inMinutes({ ok, count: after, resetMs: left, remaining: Math.max(0, max - after) }),
              );
            }
          }
        }),
        { numRuns: 100 },
      );
    });
  });
}
