import { checkQueue } from './queue-check.js';
import type { HeldTime, QueueEvent, Trouble } from './queue-history.js';

const key = '{q}:a';

/** A call that asks, is inside for a time, and is done. */
const served = (n: number, askedMs: number, atMs: number, endMs: number): QueueEvent[] => {
  const of = { worker: n, n, key };
  return [
    { type: 'asked', ...of, atMs: askedMs },
    { type: 'entered', ...of, fence: String(n).padStart(15, '0'), atMs },
    { type: 'left', ...of, heldMs: endMs, atMs: endMs },
    { type: 'ended', ...of, end: 'served', atMs: endMs },
  ];
};
const timedOut = (n: number, askedMs: number, endMs: number): QueueEvent[] => {
  const of = { worker: n, n, key };
  return [
    { type: 'asked', ...of, atMs: askedMs },
    { type: 'ended', ...of, end: 'AcquisitionTimeout', atMs: endMs },
  ];
};
const stop = (worker: number, fromMs: number, toMs: number): Trouble => ({
  name: 'stop',
  worker,
  fromMs,
  toMs,
});

const violations = (events: QueueEvent[], troubles: Trouble[] = [], held: HeldTime[] = []): string[] =>
  checkQueue({ events, troubles, held, failures: [] }, 0).violations;

const found = (text: RegExp): unknown[] => [expect.stringMatching(text)];

describe('the check of a queue finds', () => {
  // The second call waits from 10,000 on, when the first one leaves.
  const gap = (freeMs: number): QueueEvent[] => [
    ...served(1, 9_000, 9_000, 10_000),
    ...served(2, 9_500, 10_000 + freeMs, 11_000 + freeMs),
  ];

  it.each([
    ['a lock that is free for longer than somebody takes to look', gap(900), gap(1_100), []],
    ['and half a second for a process that stood still', gap(1_400), gap(1_600), [stop(3, 10_000, 10_500)]],
    ['and for each of two', gap(1_900), gap(2_100), [stop(3, 10_000, 10_500), stop(4, 10_100, 10_900)]],
  ])('%s', (_, fine, late, troubles) => {
    expect(violations(fine, troubles)).toStrictEqual([]);
    expect(violations(late, troubles)).toStrictEqual(found(/was free for/));
  });

  it('no lock that was granted to a process that stands still, but the time before and after it', () => {
    const troubles = [stop(3, 10_000, 13_000)];
    const held = [{ key, fromMs: 10_200, toMs: 11_700 }];
    expect(violations(gap(2_900), troubles, held)).toStrictEqual([]);
    expect(violations(gap(3_100), troubles, held)).toStrictEqual(found(/was free for/));
    expect(violations(gap(2_900), troubles, [{ ...held[0], key: '{q}:b' } as HeldTime])).toHaveLength(1);
  });

  it('who timed out, though those before held for less', () => {
    const late = timedOut(3, 10_000, 18_000);
    expect(violations([...served(1, 9_000, 9_000, 17_500), ...late])).toStrictEqual([]);
    expect(violations([...served(1, 9_000, 9_000, 16_500), ...late])).toStrictEqual(
      found(/timed out at 18000/),
    );
    const alone = [stop(3, 17_000, 17_600)];
    expect(violations([...served(1, 9_000, 9_000, 16_500), ...late], alone)).toStrictEqual([]);
    const other = [stop(4, 17_000, 17_600)];
    expect(violations([...served(1, 9_000, 9_000, 16_600), ...late], other)).toStrictEqual([]);
    expect(violations([...served(1, 9_000, 9_000, 16_400), ...late], other)).toHaveLength(1);
  });

  it('two inside, and a fence that fell', () => {
    expect(violations([...served(1, 0, 0, 100), ...served(2, 0, 50, 200)])).toStrictEqual(
      found(/^Two under/),
    );
    expect(violations([...served(2, 0, 0, 100), ...served(1, 0, 150, 200)])).toStrictEqual(
      found(/^The fence/),
    );
  });
});
