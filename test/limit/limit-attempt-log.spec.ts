import * as fc from 'fast-check';
import { type Attempt, AttemptLog } from '../../lib/limit/memory/attempt-log.js';

/** The same by the simplest means: a list that is searched and copied. */
class NaiveLog {
  attempts: Attempt[] = [];
  has = (callId: string): boolean => this.attempts.some((each) => each.callId === callId);
  countAfter = (ms: number): number => this.attempts.filter(({ atMs }) => atMs > ms).length;
  dropUpTo = (ms: number): void => void (this.attempts = this.attempts.filter(({ atMs }) => atMs > ms));
  withdraw = (id: string): void => void (this.attempts = this.attempts.filter(({ callId }) => callId !== id));
  clear = (): void => void (this.attempts = []);
  dropNewest(count: number): void {
    this.attempts = this.attempts.slice(0, Math.max(0, this.attempts.length - count));
  }
  add(callId: string, atMs: number, cost: number): void {
    if (this.has(callId)) return;
    const older = this.attempts.filter((each) => each.atMs <= atMs);
    const newer = this.attempts.filter((each) => each.atMs > atMs);
    this.attempts = [...older, ...new Array<Attempt>(cost).fill({ callId, atMs }), ...newer];
  }
}

const contentsOf = (log: AttemptLog): (Attempt | undefined)[] =>
  Array.from({ length: log.length }, (_, i) => log.at(i));

describe('the log of attempts', () => {
  const callId = fc.integer({ min: 0, max: 40 }).map(String);
  const atMs = fc.integer({ min: 0, max: 50 });
  const step = fc.oneof(
    {
      weight: 12,
      arbitrary: fc.tuple(fc.constant('add' as const), callId, atMs, fc.integer({ min: 1, max: 4 })),
    },
    { weight: 2, arbitrary: fc.tuple(fc.constant('dropUpTo' as const), atMs) },
    { weight: 1, arbitrary: fc.tuple(fc.constant('withdraw' as const), callId) },
    { weight: 1, arbitrary: fc.tuple(fc.constant('dropNewest' as const), fc.integer({ min: 1, max: 5 })) },
    { weight: 1, arbitrary: fc.tuple(fc.constant('clear' as const)) },
  );

  it('does what a plain list does', () => {
    fc.assert(
      fc.property(fc.array(step, { maxLength: 80 }), atMs, callId, (steps, ms, id) => {
        const log = new AttemptLog();
        const naive = new NaiveLog();
        for (const [name, ...args] of steps) {
          (log[name] as (...args: unknown[]) => void)(...args);
          (naive[name] as (...args: unknown[]) => void)(...args);
          expect(contentsOf(log)).toStrictEqual(naive.attempts);
          expect(log.newest).toStrictEqual(naive.attempts.at(-1));
          expect(log.has(id)).toBe(naive.has(id));
          expect(log.countAfter(ms)).toBe(naive.countAfter(ms));
        }
      }),
      { numRuns: 500 },
    );
  });

  it('touches few attempts a call, however many are in the window', () => {
    const log = new AttemptLog();
    let reads = 0;
    const instants = { get: (atMs: number) => ({ valueOf: () => (reads++, atMs) }) };
    for (let ms = 0; ms < 30_000; ms++) {
      log.add(String(ms), instants.get(ms) as never, 1);
      log.dropUpTo(ms - 10_000);
      log.countAfter(ms - 5_000);
    }
    expect(log.length).toBe(10_000);
    // Two binary searches and a look at the newest attempt.
    expect(reads / 30_000).toBeLessThan(40);
  });
});
