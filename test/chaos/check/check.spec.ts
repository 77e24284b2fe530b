import { type FaultEvent, type HistoryEvent, type Invocation, NAMES_NO_LOCK } from '../history.js';
import { BUDGET, COUNTER_MAX, RATE, VIEWS } from '../settings.js';
import { check } from './check.js';

let n = 1;
beforeEach(() => (n = 1));

type What = Omit<Invocation, 'type' | 'worker' | 'n' | 'atMs'>;

/** A call from one moment to another, and what it gave: nothing, when it never ended. */
function call(what: What, [atMs, endMs]: [number, number], result?: boolean | string): HistoryEvent[] {
  const worker = 1;
  const name = n++;
  const outcome = typeof result === 'string' ? { error: result } : { ok: result };
  return [
    { type: 'call', worker, n: name, ...what, atMs },
    ...(result === undefined ? [] : [{ type: 'done' as const, worker, n: name, atMs: endMs, ...outcome }]),
  ];
}

function section(on: string, fence: string, atMs: number, heldUntilMs: number): HistoryEvent[] {
  const name = { worker: 1, n: n++ };
  return [
    { type: 'entered', ...name, on, fence, lockId: `lock ${fence}`, atMs },
    { type: 'left', ...name, heldUntilMs },
  ];
}

const fault = (loses: FaultEvent['loses'], fromMs: number, toMs: number): FaultEvent => ({
  ...{ type: 'fault', name: 'a fault', loses, fromMs, toMs },
});

const found = (...events: HistoryEvent[][]): string[] => check(events.flat()).violations;

const reserve = (
  id: string,
  amount: number,
  at: [number, number],
  result?: boolean | string,
): HistoryEvent[] => call({ op: 'reserve', on: 'root', id, amount }, at, result);
const finalize = (
  id: string,
  amount: number,
  at: [number, number],
  result?: boolean | string,
): HistoryEvent[] => call({ op: 'finalize', on: 'root', id, amount }, at, result);
const audit = (used: number, reserved = 0): HistoryEvent[] => [
  { type: 'audit', op: 'budget', on: 'root', used, reserved, problems: [], atMs: 9_000 },
];
const LIMIT = BUDGET.limit;

describe('locks', () => {
  it('one after the other with rising fences are right', () => {
    expect(
      found(section('a', '1', 0, 10), section('a', '2', 10, 20), section('b', '1', 5, 30)),
    ).toStrictEqual([]);
  });

  it('two at once are found, also when the first was long inside', () => {
    const sections = [section('a', '1', 0, 100), section('a', '2', 20, 30), section('a', '3', 40, 41)];
    expect(found(...sections)).toStrictEqual([
      expect.stringMatching(/^Two under a for 10.0 ms/),
      expect.stringMatching(/^Two under a for 1.0 ms/),
    ]);
  });

  it('two at once are excused by what loses data between their grants, and by nothing else', () => {
    const sections = [section('a', '1', 0, 100), section('a', '2', 50, 90)];
    expect(check([...sections.flat(), fault('the latest', 20, 30)])).toMatchObject({
      violations: [],
      findings: { 'locks: one inside, fences rise': { excused: [expect.stringContaining('Two under a')] } },
    });
    for (const other of [fault('nothing', 20, 30), fault('all', 60, 70), fault('all', -20, -10)])
      expect(found(...sections, [other])).toHaveLength(1);
  });

  it.each(['1', '2'])('a fence that does not rise (%s after 2) is found, whatever was lost', (fence) => {
    const sections = [section('a', '2', 0, 10), section('a', fence, 20, 30)];
    expect(found(...sections, [fault('all', 12, 15)])).toStrictEqual([
      expect.stringMatching(/^The fence of a fell/),
    ]);
  });
});

interface Ran {
  readonly on?: string;
  readonly at?: [number, number];
  readonly claimedMs?: number;
  readonly attempt?: number;
  readonly fence?: string;
  readonly value?: string;
  readonly end?: 'kept' | 'failed' | 'killed';
  readonly isLate?: boolean;
}

/** A call that ran its body, from one moment to another. */
function ran({
  on = 'run',
  at = [0, 10],
  attempt = 1,
  fence = '1',
  end = 'kept',
  ...given
}: Ran = {}): HistoryEvent[] {
  const names = { worker: 1, n: n++ };
  const [atMs, endMs] = at;
  const { value = `of ${fence}`, isLate = false, claimedMs = atMs } = given;
  const answer = { value, attempt, replayed: false, completedAtMs: endMs };
  const body = {
    type: 'began',
    ...names,
    on,
    payload: 'p',
    value,
    attempt,
    fence,
    claimedMs,
    isLate,
    atMs,
  } as const;
  const called = { type: 'call', ...names, op: 'once', on, payload: 'p', atMs: claimedMs } as const;
  const over = { type: 'over', ...names, heldUntilMs: endMs, failed: end === 'failed', atMs: endMs } as const;
  const done = { type: 'done', ...names, atMs: endMs } as const;
  if (end === 'killed') return [called, body];
  if (end === 'failed') return [called, body, over, { ...done, error: 'Declined' }];
  const completed = { type: 'completed', worker: 1, on, fence, atMs: endMs } as const;
  return [called, body, over, completed, { ...done, ok: true, answer }];
}

/** A call that got the answer of another one. */
function replay(value: string, { payload = 'p', attempt = 1, completedAtMs = 10 } = {}): HistoryEvent[] {
  const names = { worker: 2, n: n++ };
  const answer = { value, attempt, replayed: true, completedAtMs };
  return [
    { type: 'call', ...names, op: 'once', on: 'run', payload, atMs: 20 },
    { type: 'done', ...names, atMs: 21, ok: true, answer },
  ];
}

describe('calls that are answered once', () => {
  const failed = ran({ end: 'failed' });
  const second = { at: [10, 20], attempt: 2, fence: '2' } as const;
  const isOne = (what: RegExp): unknown => [expect.stringMatching(what)];

  it('one body after a failed one, and its answer to all, are right', () => {
    const again = replay('of 2', { attempt: 2, completedAtMs: 20 });
    expect(found(failed, ran({ ...second, at: [10, 20] }), again, again)).toStrictEqual([]);
  });

  it.each<[string, HistoryEvent[][], RegExp]>([
    ['two at once', [failed, ran({ at: [9, 20], attempt: 2, fence: '2' })], /two bodies at once/],
    [
      'one after a kept result',
      [ran(), ran({ at: [10, 20], attempt: 2, fence: '2', end: 'failed' })],
      /came after the kept/,
    ],
    [
      'one after a result that was given again',
      [ran({ end: 'killed' }), replay('of 1'), ran({ at: [10, 20], attempt: 2, fence: '2', end: 'failed' })],
      /came after the kept/,
    ],
    ['an attempt that does not rise', [failed, ran({ at: [10, 20], fence: '2' })], /the attempt does not/],
    [
      'a fence that falls',
      [ran({ at: [0, 10], attempt: 2, fence: '2', end: 'failed' }), ran({ at: [20, 30], end: 'failed' })],
      /the fence falls/,
    ],
    ['a body without a lease', [ran({ isLate: true })], /without a lease/],
    [
      'one after an unknown outcome',
      [ran({ on: 'refuse', end: 'killed' }), ran({ on: 'refuse', at: [10, 20], attempt: 2, fence: '2' })],
      /whose outcome nobody knew/,
    ],
    ['an answer of nobody', [ran(), replay('forged')], /no body has made/],
    ['an answer to another request', [ran(), replay('of 1', { payload: 'q' })], /to another request/],
    [
      'one result at two times',
      [ran(), replay('of 1'), replay('of 1', { completedAtMs: 11 })],
      /at two times/,
    ],
    ['an error that no call has', [call({ op: 'once', on: 'run' }, [0, 1], 'Internal')], /ended by Internal/],
  ])('%s is found', (_, events, what) => {
    // A worker that was killed has calls without an end.
    const kill: FaultEvent = { ...fault('nothing', -2, -1), name: 'a worker is killed', worker: 1 };
    expect(found(...events, [kill])).toStrictEqual(isOne(what));
  });

  it('two results are found, and excused by what loses data between them', () => {
    const both = [ran(), ran({ at: [10, 20], attempt: 2, fence: '2' })];
    expect(found(...both)).toContainEqual(expect.stringMatching(/two results/));
    expect(found(...both, [fault('all', 5, 6)])).toStrictEqual([]);
    expect(found(...both, [fault('nothing', 5, 6)])).not.toStrictEqual([]);
  });
});

describe('budgets', () => {
  it('what was told and what was unknown make up what is committed', () => {
    const told = [reserve('x', 9, [0, 1], true), finalize('x', 4, [2, 3], true)];
    const lost = [reserve('y', 9, [0, 1], true), finalize('y', 5, [2, 3], 'NetworkTimeout')];
    for (const used of [4, 9]) expect(found(...told, ...lost, audit(used))).toStrictEqual([]);
    for (const used of [3, 10])
      expect(found(...told, ...lost, audit(used))).toStrictEqual([
        `root: ${used} committed, but 4 were told and 5 are unknown.`,
      ]);
  });

  it('a try that is answered in the end is known', () => {
    const tries = [finalize('x', 4, [2, 3], 'NetworkTimeout'), finalize('x', 4, [4, 5], true)];
    expect(found(reserve('x', 9, [0, 1], true), ...tries, audit(0))).toHaveLength(1);
  });

  it('more held at once than the limit is found, and holds one after the other are not', () => {
    const held = (id: string, fromMs: number, toMs: number): HistoryEvent[] => [
      ...reserve(id, LIMIT, [fromMs, fromMs + 1], true),
      ...call({ op: 'abort', on: 'root', id }, [toMs, toMs + 1], true),
    ];
    expect(found(held('x', 0, 10), held('y', 11, 20))).toStrictEqual([]);
    expect(found(held('x', 0, 10), held('y', 5, 20))).toStrictEqual([
      `root: ${2 * LIMIT} of ${LIMIT} held or spent at once.`,
    ]);
  });

  it('what is reserved at the end, and a hold that vanished, are found', () => {
    expect(found(reserve('x', 1, [0, 1], true), audit(0, 1))).toStrictEqual([
      'root: 1 reserved when every hold was over.',
    ]);
    expect(found(reserve('x', 1, [0, 1], true), finalize('x', 1, [2, 3], false))).toStrictEqual([
      'root: a hold of 1 vanished.',
    ]);
  });
});

describe('what is lost', () => {
  const work = [reserve('x', 5, [0, 1], true), finalize('x', 4, [2, 3], true)];

  it('excuses that less was committed than was told, and never that more is reserved or spent', () => {
    for (const loses of ['all', 'the latest', 'any key', 'time'] as const)
      expect(found(...work, audit(0), [fault(loses, 10, 20)])).toStrictEqual([]);
    for (const loses of ['all', 'the latest', 'time'] as const) {
      expect(found(...work, audit(4, 1), [fault(loses, 10, 20)])).toStrictEqual([
        'root: 1 reserved when every hold was over.',
      ]);
      expect(found(...work, audit(LIMIT + 1), [fault(loses, 10, 20)])).toStrictEqual([
        `root: ${LIMIT + 1} of ${LIMIT} committed.`,
      ]);
    }
  });

  it('excuses a root in pieces where any key may have gone by itself', () => {
    expect(found(...work, audit(4, 1), [fault('any key', 10, 20)])).toStrictEqual([]);
    expect(found(...work, audit(4, 1), [fault('any key', 9_500, 9_600)])).toHaveLength(1);
  });
});

describe('views, counters and limits', () => {
  const created = (): HistoryEvent[] => call({ op: 'create', on: 'it' }, [-2, -1], true);

  it.each([
    ['view', VIEWS],
    ['increment', COUNTER_MAX],
  ] as const)('one %s too many is found, and a second try of one is not', (op, max) => {
    const times = (count: number): HistoryEvent[] =>
      Array.from({ length: count }, (_, i) => call({ op, on: 'it', id: `${i}` }, [i, i + 1], true)).flat();
    expect(found(created(), times(max), call({ op, on: 'it', id: '0' }, [900, 901], true))).toStrictEqual([]);
    expect(found(created(), times(max + 1))).toStrictEqual([`it: ${max + 1} of ${max} (${op}).`]);
  });

  it('a view that was told and not counted is found, of a secret that was told to be there', () => {
    const events = call({ op: 'view', on: 'it', id: 'x' }, [0, 1], true);
    const counted: HistoryEvent = { type: 'audit', op: 'secret', on: 'it', used: 0, atMs: 9_000 };
    expect(found(created(), events, [counted])).toHaveLength(1);
    expect(found(events, [counted])).toStrictEqual([]);
  });

  it('a view that is refused after its answer was lost may have been the last', () => {
    const tries = [false, 'NetworkTimeout'].map((result, i) =>
      call({ op: 'view', on: 'it', id: 'x' }, [10 - i, 11 - i], result),
    );
    for (const used of [0, 1])
      expect(
        found(created(), ...tries, [{ type: 'audit', op: 'secret', on: 'it', used, atMs: 9_000 }]),
      ).toStrictEqual([]);
  });

  it('one call too many in a window is found, and one after the window is not', () => {
    const calls = (count: number, lastMs: number): HistoryEvent[] =>
      Array.from({ length: count }, (_, i) => {
        const atMs = i === count - 1 ? lastMs : i;
        return call({ op: 'check', on: 'c' }, [atMs, atMs + 1], true);
      }).flat();
    expect(found(calls(RATE.limit, 100))).toStrictEqual([]);
    expect(found(calls(RATE.limit + 1, RATE.windowMs))).toStrictEqual([]);
    expect(found(calls(RATE.limit + 1, 100))).toHaveLength(1);
  });
});

describe('calls and keys', () => {
  const check1: What = { op: 'check', on: 'c' };

  it('one that never settles is found, unless its worker was killed', () => {
    expect(found(call(check1, [0, 0]))).toStrictEqual(['check of c in worker 1 never settled.']);
    const killed: FaultEvent = { ...fault('nothing', 0, 1), name: 'a worker is killed', worker: 1 };
    expect(found(call(check1, [0, 0]), [killed])).toStrictEqual([]);
  });

  it('one that took too long is found, unless its worker stood still', () => {
    const slow = call(check1, [0, 4_000], true);
    expect(found(slow)).toStrictEqual(['check of c took 4000 ms (ok).']);
    expect(found(slow, [{ type: 'late', worker: 1, sinceMs: 100, atMs: 3_900 }])).toStrictEqual([]);
  });

  it('a rejection that nobody heard is found', () => {
    expect(found([{ type: 'unhandled', worker: 1, atMs: 0, detail: 'Error: lost' }])).toHaveLength(1);
  });

  it('a lock that nobody holds is found; one of a worker that was killed, or of a failover, is excused', () => {
    const left: HistoryEvent = {
      type: 'leftover',
      key: 'k',
      problem: 'a lock for 9 ms more',
      lock: 'own 1 0',
    };
    const work = call(check1, [0, 1], true);
    expect(found(work, [left])).toStrictEqual(['k is left over: a lock for 9 ms more.']);
    const killed: FaultEvent = { ...fault('nothing', 0, 1), name: 'a worker is killed', worker: 1 };
    for (const excuse of [killed, fault('the latest', 0, 1)])
      expect(found(work, [left, excuse])).toStrictEqual([]);
    expect(found(work, [left, fault('all', 0, 1)])).toHaveLength(1);
    expect(found(work, [{ type: 'leftover', key: 'k', problem: 'has no TTL' }, killed])).toHaveLength(1);
  });

  it('an entry of the index without its lock is found, and excused by eviction alone', () => {
    const work = call(check1, [0, 1], true);
    const entry: HistoryEvent = { type: 'leftover', key: 'k', problem: NAMES_NO_LOCK };
    for (const loses of ['nothing', 'all', 'the latest', 'time'] as const)
      expect(found(work, [entry, fault(loses, 0, 1)])).toStrictEqual(['k is left over: names no lock.']);
    expect(found(work, [entry, fault('any key', 0, 1)])).toStrictEqual([]);
  });
});
