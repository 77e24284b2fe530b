import { inspect } from 'node:util';
import { setImmediate as nextTurn } from 'node:timers/promises';
import { Watchdog } from '../../lib/core/watchdog.js';
import { currentOnce } from '../../lib/once/current-once.js';
import type { OnceBackend } from '../../lib/once/once.backend.js';
import { OnceError } from '../../lib/once/once.errors.js';
import type { OnceCall } from '../../lib/once/once.options.js';
import { OnceRun } from '../../lib/once/once.run.js';
import { claimOf as sentClaim } from '../../lib/once/once.wait.js';
import type { OnceService } from '../../lib/once/once.service.js';
import type { OnceListOptions } from '../../lib/once/once.types.js';
import { TURN_MS } from '../../lib/once/once.times.js';
import { eventually } from '../support/eventually.js';
import { claimOf, codeOf, heldBody, onceService, type OnceUnderTest } from './support.js';

const HOUR_MS = 3_600_000;
const DAY_MS = 24 * HOUR_MS;
const value = (text: string) => ({ form: 'value', bytes: Buffer.from(JSON.stringify(text)) }) as const;

/** The contract of OnceService and of its port, on every backend. */
export function describeOnce(name: string, setUp: () => Promise<OnceUnderTest>): void {
  describe(`OnceService on ${name}`, () => {
    let under: OnceUnderTest;
    let backend: OnceBackend;
    let once: OnceService;
    beforeEach(async () => {
      under = await setUp();
      backend = under.backend();
      once = onceService(backend);
    });

    /** A run whose process has died: nobody renews or ends it. */
    const crashed = async (key: string, given = {}): Promise<void> =>
      void expect(await backend.claim(claimOf(key, { leaseMs: 1_000, ...given }), {})).toMatchObject({
        status: 'claimed',
      });

    describe('a result', () => {
      it('is given again, and the body runs once', async () => {
        let runs = 0;
        const pay = () => once.run(() => ({ charge: ++runs }), { key: 'order:7' });
        const first = await pay();
        expect(first).toStrictEqual({
          ...{
            value: { charge: 1 },
            replayed: false,
            attempt: 1,
            completedAtMs: expect.any(Number) as number,
          },
        });
        for (let i = 0; i < 3; i++) expect(await pay()).toStrictEqual({ ...first, replayed: true });
        expect(runs).toBe(1);
      });

      it('of 50 calls at once is one: the others are told to come back', async () => {
        const body = heldBody('paid');
        const calls = Array.from({ length: 50 }, () => once.run(body.fn, { key: 'k' }));
        const codes = Promise.all(calls.map(codeOf));
        await body.started;
        await eventually(async () =>
          expect(await codeOf(once.run(body.fn, { key: 'k' }))).toBe('OnceInProgress'),
        );
        body.end();
        expect((await codes).sort()).toStrictEqual(
          [...Array<string>(49).fill('OnceInProgress'), 'no error'].sort(),
        );
        expect(await once.run(() => 'again', { key: 'k' })).toMatchObject({ value: 'paid', replayed: true });
      });

      it('is kept for keepMs from its end, and then runs anew with a higher fence', async () => {
        const fences: string[] = [];
        const call = () => once.run(({ fence }) => void fences.push(fence), { key: 'k', keepMs: HOUR_MS });
        await call();
        under.advance(HOUR_MS - 2_000);
        expect(await call()).toMatchObject({ replayed: true });
        under.advance(4_000);
        expect(await call()).toMatchObject({ replayed: false, attempt: 1 });
        expect(fences[1]! > fences[0]!).toBe(true);
        expect(fences.every((fence) => /^\d{15}$/.test(fence))).toBe(true);
      });

      it.each<[string, unknown]>([
        ['undefined', undefined],
        ['null', null],
        ['an empty text', ''],
        ['a text', 'snow \u2603 \0\n\r'],
        ['nested', { a: [1, { b: null }], c: 'x', n: 1.5 }],
        ['a date', { at: new Date(1_773_480_413_589) }],
        ['bytes', { file: Buffer.from([0, 255, 10]) }],
        ['a bigint', [2n ** 70n]],
        ['names of our own marks', { $once: 'date', is: [{ $once: 1 }] }],
        ['a name __proto__', JSON.parse('{"__proto__":{"a":1}}')],
      ])('comes back as it was: %s', async (_, given) => {
        expect((await once.run(() => given, { key: 'k' })).value).toBe(given);
        const again = await once.run(() => 'not this', { key: 'k' });
        expect(again).toStrictEqual({ ...again, value: given, replayed: true });
      });

      it('of a class comes back as a plain object', async () => {
        class Charge {
          constructor(readonly id: string) {}
        }
        await once.run(() => new Charge('c1'), { key: 'k' });
        expect((await once.run(() => null, { key: 'k' })).value).toStrictEqual({ id: 'c1' });
      });

      const circular: { self?: unknown } = {};
      circular.self = circular;
      it.each<[string, unknown]>([
        ['circular', circular],
        ['a Map', new Map([[1, 2]])],
        ['larger than maxBytes', 'x'.repeat(101)],
      ])('that is %s is given once, and the call is done without it', async (_, given) => {
        const small = onceService(backend, { maxBytes: 100 });
        expect((await small.run(() => given, { key: 'k' })).value).toBe(given);
        expect(await codeOf(small.run(() => 'again', { key: 'k' }))).toBe('ResultNotKept');
        expect(await small.get('k')).toMatchObject({ state: 'done' });
      });

      it('is written by encode and read by decode', async () => {
        const turned = (text: string) => [...text].reverse().join('');
        const coded = onceService(backend, {
          encode: async (kept) => turned(JSON.stringify(kept)),
          decode: (bytes) => JSON.parse(turned(bytes.toString())) as unknown,
        });
        await coded.run(() => ({ card: 'pan-4242' }), { key: 'k' });
        expect(await under.contents()).not.toContain('pan-4242');
        expect(await coded.run(() => 0, { key: 'k' })).toMatchObject({ value: { card: 'pan-4242' } });
      });

      it('belongs to its key, in either spelling, and to no other', async () => {
        await once.run(() => 'one', { key: 'caf\u00e9:{7}\n*' });
        expect(await once.run(() => 'two', { key: 'cafe\u0301:{7}\n*' })).toMatchObject({ value: 'one' });
        expect(await once.run(() => 'two', { key: 'caf\u00e9:{7}\n* ' })).toMatchObject({ value: 'two' });
        expect(await once.run(() => 'three', { key: 'CAF\u00c9:{7}\n*' })).toMatchObject({ value: 'three' });
      });
    });

    describe('a body that throws', () => {
      it('runs again, as the next attempt with a higher fence', async () => {
        const seen: { attempt: number; fence: string }[] = [];
        const call = (fails: boolean) =>
          once.run(
            ({ attempt, fence }) => {
              seen.push({ attempt, fence });
              if (fails) throw new TypeError('no funds');
              return 'paid';
            },
            { key: 'k' },
          );
        await expect(call(true)).rejects.toThrow(new TypeError('no funds'));
        expect(await once.get('k')).toMatchObject({ state: 'failed', attempt: 1 });
        expect(await call(false)).toMatchObject({ value: 'paid', attempt: 2, replayed: false });
        expect(await call(true)).toMatchObject({ value: 'paid', attempt: 2, replayed: true });
        expect(seen.map(({ attempt }) => attempt)).toStrictEqual([1, 2]);
        expect(seen[1]!.fence > seen[0]!.fence).toBe(true);
      });

      it('is kept where `keep` says so, and thrown again by name and message', async () => {
        let runs = 0;
        const decline = () =>
          once.run(
            () => {
              runs++;
              throw Object.assign(new RangeError('declined'), { secret: 'pan-4242' });
            },
            { key: 'k', keep: (end) => 'error' in end },
          );
        await expect(decline()).rejects.toMatchObject({ secret: 'pan-4242' });
        await expect(decline()).rejects.toThrow(/^declined$/);
        await expect(decline()).rejects.toMatchObject({ name: 'RangeError', message: 'declined' });
        expect(runs).toBe(1);
        expect(await under.contents()).not.toContain('pan-4242');
      });

      it('is not kept if what it returned is refused by `keep`', async () => {
        const call = (answer: string) =>
          once.run(() => answer, { key: 'k', keep: (end) => 'value' in end && end.value !== 'pending' });
        expect((await call('pending')).value).toBe('pending');
        expect(await call('paid')).toMatchObject({ value: 'paid', attempt: 2 });
      });
    });

    describe('a payload', () => {
      const call = (payload: unknown, on = once) => codeOf(on.run(() => 'paid', { key: 'k', payload }));

      it('is the same whatever the order of its names, and another one is refused at each state', async () => {
        const payload = { amount: 5, to: { b: 1, a: [1, 2] } };
        const body = heldBody('paid');
        const running = once.run(body.fn, { key: 'k', payload });
        await body.started;
        expect(await call({ ...payload, amount: 6 })).toBe('OncePayloadMismatch');
        expect(await call(payload)).toBe('OnceInProgress');
        body.end();
        await running;
        expect(await call({ to: { a: [1, 2], b: 1 }, amount: 5 })).toBe('no error');
        for (const other of [
          { ...payload, amount: 6 },
          { ...payload, to: { b: 1, a: [2, 1] } },
          undefined,
          null,
        ])
          expect(await call(other)).toBe('OncePayloadMismatch');
      });

      it.each([
        [{ a: 1 }, { a: '1' }],
        [
          { a: 1, b: undefined },
          { a: 1, b: null },
        ],
        [JSON.parse('{"__proto__":1}'), {}],
        [{ at: new Date(5) }, { at: new Date(5).toJSON() }],
        [[1n], [1]],
        [{ $once: 'bigint', is: '1' }, 1n],
        [['a,b'], ['a', 'b']],
      ])('%j is not %j', async (one, other) => {
        expect(await call(one)).toBe('no error');
        expect(await call(one)).toBe('no error');
        expect(await call(other)).toBe('OncePayloadMismatch');
      });

      it('is refused where it cannot be compared', async () => {
        expect(await call(new Map([[1, 2]]))).toBe('InvalidArgument');
        let deep: unknown = 1;
        for (let i = 0; i < 100_000; i++) deep = [deep];
        expect(await call(deep)).toBe('InvalidArgument');
      });

      it('is in no record, error or event', async () => {
        await call({ card: '4000-1' });
        expect(await under.contents()).not.toContain('4000-1');
        const refused = await once
          .run(() => 1, { key: 'k', payload: { card: '4000-2' } })
          .catch((e: unknown) => e);
        expect(inspect(refused, { depth: null, showHidden: true })).not.toContain('4000');
      });
    });

    it('is asked for again after as long as the first has run, and at the end of its lease at the latest', async () => {
      const retryAfter = async (): Promise<unknown> =>
        once.run(() => 'x', { key: 'k' }).catch(({ context }: OnceError) => context.retryAfter);
      await crashed('k', { leaseMs: 30_000 });
      const found: unknown[] = [await retryAfter()];
      for (const ms of [3_500, 8_000, 11_000, 6_500]) {
        under.advance(ms);
        found.push(await retryAfter());
      }
      expect(found).toStrictEqual([1, 4, 12, 8, 1]);
    });

    describe('a process that dies', () => {
      it('with `refuse` leaves an unknown outcome, which the first call of the key says', async () => {
        await crashed('k', { afterCrash: 'refuse', keepMs: HOUR_MS });
        under.advance(1_001);
        expect(await codeOf(once.run(() => 'x', { key: 'k', afterCrash: 'run' }))).toBe('OutcomeUnknown');
        expect(await once.get('k')).toMatchObject({ state: 'unknown', attempt: 1 });
        await crashed('other', { afterCrash: 'run' });
        under.advance(1_001);
        expect(await codeOf(once.run(() => 'x', { key: 'other', afterCrash: 'refuse' }))).toBe('no error');
        under.advance(HOUR_MS);
        expect(await once.get('k')).toBeNull();
        expect(await codeOf(once.run(() => 'x', { key: 'k' }))).toBe('no error');
      });

      it('cannot store its result over that of the next one', async () => {
        const claim = claimOf('k', { leaseMs: 1_000 });
        await backend.claim(claim, {});
        under.advance(1_001);
        await once.run(() => 'second', { key: 'k' });
        expect(await backend.renew(claim, 1_000)).toBe(false);
        expect(await backend.end(claim, { kept: value('first') })).toBe(0);
        expect(await backend.end(claim, 'failed')).toBe(0);
        expect(await backend.end(claim, 'nothing')).toBe(0);
        expect(await once.run(() => 'x', { key: 'k' })).toMatchObject({ value: 'second', attempt: 2 });
      });
    });

    describe('a lease', () => {
      it('is renewed while the body runs', async () => {
        const body = heldBody('x');
        const running = once.run(body.fn, { key: 'k', leaseMs: 6_000 });
        await body.started;
        const { expiresAtMs } = (await once.get('k'))!;
        await eventually(async () => expect((await once.get('k'))!.expiresAtMs).toBeGreaterThan(expiresAtMs));
        body.end();
        await running;
      });

      it('that was taken over aborts the signal, and the run rejects with OnceLost', async () => {
        const body = heldBody('x');
        let signal: AbortSignal | undefined;
        const running = codeOf(
          once.run((context) => ((signal = context.signal), body.fn()), { key: 'k', leaseMs: 1_000 }),
        );
        await body.started;
        expect(signal!.aborted).toBe(false);
        expect(await once.forget('k')).toStrictEqual({ ok: false, reason: 'running' });
        expect(await once.forget('k', { force: true })).toStrictEqual({ ok: true });
        expect(await once.run(() => 'second', { key: 'k' })).toMatchObject({ replayed: false });
        await eventually(() => expect(signal!.aborted).toBe(true));
        expect(signal!.reason).toMatchObject({ code: 'OnceLost' });
        body.end();
        expect(await running).toBe('OnceLost');
        expect(await once.run(() => 'x', { key: 'k' })).toMatchObject({ value: 'second' });
      });

      it('is not renewed past maxRunMs, when the signal aborts', async () => {
        const body = heldBody('x');
        let signal: AbortSignal | undefined;
        const running = once.run((context) => ((signal = context.signal), body.fn()), {
          ...{ key: 'k', leaseMs: 1_000, maxRunMs: 300 },
        });
        await eventually(() => expect(signal?.aborted).toBe(true));
        under.advance(1_000);
        const second = await once.run(() => 'second', { key: 'k' });
        expect(second).toMatchObject({ attempt: 2 });
        body.end();
        expect(await codeOf(running)).toBe('OnceLost');
      });

      it.each([
        ['lapsed', { maxRunMs: 50 }, async () => {}],
        ['overtaken', {}, () => once.forget('k', { force: true })],
      ])('that is lost says why in one event: %s', async (reason, options, act) => {
        const body = heldBody('x');
        const events: object[] = [];
        const told = onceService(backend, {}, { emit: (event) => events.push(event) });
        const running = codeOf(told.run(body.fn, { key: 'k', leaseMs: 1_000, ...options }));
        await body.started;
        await act();
        const losses = (): object[] => events.filter((event) => 'type' in event && event.type === 'lost');
        await eventually(() => expect(losses()).toMatchObject([{ result: 'fail', reason, key: 'k' }]));
        under.advance(1_000);
        await told.run(() => 'second', { key: 'k' });
        body.end();
        expect(await running).toBe('OnceLost');
        expect(losses()).toHaveLength(1);
      });

      it('that has lapsed when the answer to its claim comes runs no body, and the next call runs', async () => {
        const { claim } = backend;
        jest.spyOn(backend, 'claim').mockImplementationOnce(async (given, options) => {
          const reply = await claim.call(backend, given, options);
          await eventually(() => expect(performance.now()).toBeGreaterThan(sinceMs + 20));
          return reply;
        });
        const sinceMs = performance.now();
        const body = jest.fn();
        expect(await codeOf(once.run(body, { key: 'k', maxRunMs: 20 }))).toBe('OnceLost');
        expect(body).not.toHaveBeenCalled();
        expect(await once.run(() => 'x', { key: 'k' })).toMatchObject({ attempt: 1 });
      });

      it('counts from when the claim was sent, whatever maxRunMs is', () => {
        const watchdog = new Watchdog<OnceRun>();
        const host = { backend, watchdog, onOver: jest.fn(), endLater: jest.fn() };
        const options = { leaseMs: 60_000, maxRunMs: 20_000 } as OnceCall['options'];
        const run = (agoMs: number): OnceRun => {
          const claim = sentClaim({ key: 'k', print: '-', signal: undefined, options });
          const sentMs = performance.now() - agoMs;
          return new OnceRun(
            host,
            options,
            { ...claim, sentMs },
            { status: 'claimed', attempt: 1, fence: '1' },
          );
        };
        expect(run(20_000).lost).toMatchObject({ code: 'OnceLost' });
        expect(run(10_000).lost).toBeUndefined();
      });

      it('throws the error of the body where that has failed after its loss', async () => {
        const body = heldBody('x');
        const running = once.run(body.fn, { key: 'k' });
        await body.started;
        await once.forget('k', { force: true });
        body.fail(new Error('mine'));
        await expect(running).rejects.toThrow(/^mine$/);
      });
    });

    describe('a call that waits', () => {
      const waitMs = 20_000;

      it('gets the result of the first, and each of them the same', async () => {
        const body = heldBody('paid');
        const running = once.run(body.fn, { key: 'k' });
        await body.started;
        const others = Array.from({ length: 10 }, () => once.run(() => 'x', { key: 'k', waitMs }));
        await backend.get('k', {});
        body.end();
        await running;
        for (const result of await Promise.all(others))
          expect(result).toMatchObject({ value: 'paid', replayed: true });
      });

      it('runs if the first has failed: the one that waits longest, and the others go on waiting', async () => {
        const body = heldBody('x');
        const failed = codeOf(once.run(body.fn, { key: 'k' }));
        await body.started;
        const order: string[] = [];
        const second = heldBody('second');
        const others: Promise<unknown>[] = [];
        const claims = jest.spyOn(backend, 'claim');
        for (const name of ['a', 'b', 'c']) {
          const run = () => (order.push(name), second.fn());
          others.push(once.run(run, { key: 'k', waitMs }));
          await claims.mock.results.at(-1)!.value;
        }
        claims.mockRestore();
        body.fail(new Error('x'));
        await failed;
        await eventually(() => expect(order).toStrictEqual(['a']));
        expect(await codeOf(once.run(() => 'x', { key: 'k' }))).toBe('OnceInProgress');
        second.end();
        const results = await Promise.all(others);
        expect(order).toStrictEqual(['a']);
        expect(results).toMatchObject([
          { value: 'second', attempt: 2, replayed: false },
          { value: 'second', attempt: 2, replayed: true },
          { value: 'second', attempt: 2, replayed: true },
        ]);
      });

      it('is refused when waitMs is over', async () => {
        const body = heldBody('x');
        const running = once.run(body.fn, { key: 'k' });
        await body.started;
        const since = performance.now();
        expect(await codeOf(once.run(() => 'x', { key: 'k', waitMs: 300 }))).toBe('OnceInProgress');
        expect(performance.now() - since).toBeGreaterThanOrEqual(299);
        body.end();
        await running;
      });

      it('ends when its signal aborts, and one that has aborted sends nothing', async () => {
        const body = heldBody('x');
        const running = once.run(body.fn, { key: 'k' });
        await body.started;
        const signal = AbortSignal.timeout(50);
        expect(await codeOf(once.run(() => 'x', { key: 'k', waitMs, signal }))).toBe('Aborted');
        body.end();
        await running;
        expect(await codeOf(once.run(() => 'x', { key: 'new', signal: AbortSignal.abort() }))).toBe(
          'Aborted',
        );
        expect(await once.get('new')).toBeNull();
      });

      it('goes on through an outage, and is refused by one in which it begins', async () => {
        const body = heldBody('x');
        const running = once.run(body.fn, { key: 'k' });
        await body.started;
        let [asked, faults] = [0, 0];
        const claim: OnceBackend['claim'] = (...given) => {
          if (asked++ === 0 || faults === 2) return backend.claim(...given);
          faults++;
          return Promise.reject(new OnceError({ code: 'ServiceUnavailable', message: 'It is away.' }));
        };
        const breaking = onceService(
          new Proxy(backend, {
            get: (target, name: keyof OnceBackend) => {
              const value: unknown = name === 'claim' ? claim : target[name];
              return typeof value === 'function' ? (value.bind(target) as unknown) : value;
            },
          }),
        );
        const waiting = breaking.run(() => 'y', { key: 'k', waitMs: 30_000 });
        await eventually(() => expect(faults).toBe(2));
        body.end();
        expect(await waiting).toMatchObject({ value: 'x', replayed: true });
        faults = 0;
        expect(await codeOf(breaking.run(() => 'y', { key: 'other', waitMs: 30_000 }))).toBe(
          'ServiceUnavailable',
        );
        await running;
      });

      it('comes after those that wait longer, even when it asks first', async () => {
        const first = claimOf('k');
        await backend.claim(first, {});
        const longest = claimOf('k', { waiter: 'w1', waitMs });
        const next = claimOf('k', { waiter: 'w2', waitMs });
        expect(await backend.claim(longest, {})).toMatchObject({ status: 'busy' });
        expect(await backend.claim(next, {})).toMatchObject({ status: 'busy' });
        await backend.end(first, 'failed');
        expect(await backend.claim(claimOf('k'), {})).toMatchObject({ status: 'busy' });
        const early = await backend.claim(next, {});
        expect(early).toMatchObject({ status: 'busy' });
        expect((early as { remainingMs: number }).remainingMs).toBeLessThanOrEqual(TURN_MS);
        expect(await backend.claim(longest, {})).toMatchObject({ status: 'claimed', attempt: 2 });
      });

      it('has its turn 500 ms after one that stands still, and a place ends with its waitMs', async () => {
        const first = claimOf('k');
        await backend.claim(first, {});
        await backend.claim(claimOf('k', { waiter: 'still', waitMs }), {});
        await backend.claim(claimOf('k', { waiter: 'gone', waitMs: 1 }), {});
        const next = claimOf('k', { waiter: 'w3', waitMs });
        await backend.claim(next, {});
        under.advance(2);
        await backend.end(first, 'failed');
        expect(await backend.claim(next, {})).toMatchObject({ status: 'busy' });
        under.advance(TURN_MS);
        expect(await backend.claim(next, {})).toMatchObject({ status: 'claimed', attempt: 2 });
      });

      it('is not let in where as many wait as may', async () => {
        const full = onceService(backend, {}, { waitingRoom: { isFull: true } as never });
        const body = heldBody('x');
        const running = full.run(body.fn, { key: 'k' });
        await body.started;
        expect(await codeOf(full.run(() => 'x', { key: 'k', waitMs }))).toBe('OnceInProgress');
        body.end();
        await running;
      });
    });

    describe('by hand', () => {
      it('an unknown outcome is settled, and the value is given from then on', async () => {
        await crashed('k', { afterCrash: 'refuse' });
        expect(await once.settle('k', { value: 'x' })).toStrictEqual({ ok: false, reason: 'running' });
        under.advance(1_001);
        expect(await once.settle('k', { value: { id: 'c1' } })).toStrictEqual({ ok: true });
        expect(await once.get('k')).toMatchObject({ state: 'done', attempt: 1 });
        expect(await once.run(() => 'x', { key: 'k' })).toMatchObject({ value: { id: 'c1' } });
        expect(await once.settle('k', { value: 2 })).toStrictEqual({ ok: false, reason: 'already_done' });
        expect(await once.settle('other', { value: 2 })).toStrictEqual({ ok: false, reason: 'not_found' });
      });
    });

    describe('its arguments', () => {
      it.each([
        [{ key: '' }],
        [{ key: 'x'.repeat(513) }],
        [{ key: '\ud800' }],
        [{ key: 'order:undefined' }],
        [{ key: 7 }],
        [{ key: 'k', leaseMs: 999 }],
        [{ key: 'k', keepMs: 0 }],
        [{ key: 'k', waitMs: -1 }],
        [{ key: 'k', afterCrash: 'perhaps' }],
        [{ key: 'k', keep: true }],
        [null],
      ])('%j are refused', async (options) => {
        expect(await codeOf(once.run(() => 'x', options as never))).toBe('InvalidArgument');
      });

      it('no function and no value are refused', async () => {
        expect(await codeOf(once.run(7 as never, { key: 'k' }))).toBe('InvalidArgument');
        expect(await codeOf(once.settle('k', {} as never))).toBe('InvalidArgument');
        expect(await codeOf(once.get(''))).toBe('InvalidArgument');
      });
    });

    it('knows the running body, and not work that it left behind', async () => {
      let later: Promise<unknown> | undefined;
      let over = (): void => {};
      const ended = new Promise<void>((resolve) => (over = resolve));
      await once.run(
        async () => {
          await nextTurn();
          expect(currentOnce()).toMatchObject({ key: 'k', attempt: 1 });
          later = ended.then(() => currentOnce());
          await once.run(() => expect(currentOnce()!.key).toBe('inner'), { key: 'inner' });
          expect(currentOnce()!.key).toBe('k');
        },
        { key: 'k' },
      );
      expect(currentOnce()).toBeUndefined();
      over();
      expect(await later).toBeUndefined();
    });

    it('takes a claim that is sent twice for one', async () => {
      const claim = claimOf('k');
      const first = await backend.claim(claim, {});
      expect(await backend.claim(claim, {})).toStrictEqual(first);
      expect(await backend.end(claim, { kept: value('x') })).toBe(
        await backend.end(claim, { kept: value('y') }),
      );
      expect(await once.run(() => 'z', { key: 'k' })).toMatchObject({ value: 'x', attempt: 1 });
    });

    it('refuses new calls during a shutdown, and waits for those that run', async () => {
      const body = heldBody('x');
      const running = once.run(body.fn, { key: 'k' });
      await body.started;
      const closed = once.onModuleDestroy();
      expect(await codeOf(once.run(() => 'x', { key: 'new' }))).toBe('ServiceUnavailable');
      body.end();
      await closed;
      expect((await running).value).toBe('x');
      expect(await once.get('k')).toMatchObject({ state: 'done' });
    });

    it('ends waits at a shutdown, and takes back a claim that is answered after it began', async () => {
      const body = heldBody('x');
      const running = once.run(body.fn, { key: 'k' });
      await body.started;
      const claims = jest.spyOn(backend, 'claim');
      const waiting = codeOf(once.run(() => 'y', { key: 'k', waitMs: 5_000 }));
      await claims.mock.results[0]!.value;
      let answer = (): void => {};
      const { claim } = backend;
      claims.mockImplementationOnce(async (given, options) => {
        const reply = await claim.call(backend, given, options);
        await new Promise<void>((resolve) => (answer = resolve));
        return reply;
      });
      const late = jest.fn();
      const claiming = codeOf(once.run(late, { key: 'late' }));
      await eventually(async () => expect(await once.get('late')).toMatchObject({ state: 'running' }));
      const closed = once.onModuleDestroy();
      expect(await waiting).toBe('ServiceUnavailable');
      body.end();
      answer();
      await closed;
      expect([await claiming, (await running).value]).toStrictEqual(['ServiceUnavailable', 'x']);
      expect(late).not.toHaveBeenCalled();
      expect(await once.get('late')).toBeNull();
      expect(await once.get('k')).toMatchObject({ state: 'done' });
    });

    describe('list', () => {
      const all = async (options: OnceListOptions = {}) => {
        const found = [];
        let cursor: string | undefined;
        do {
          const page = await once.list({ ...options, cursor });
          found.push(...page.items);
          ({ cursor } = page);
        } while (cursor !== undefined);
        return new Map(found.map((each) => [each.key, each]));
      };

      it('shows each key with its state, page by page, or those in one state', async () => {
        const keys = Array.from({ length: 30 }, (_, i) => `paid*:${i}`);
        for (const key of keys) await once.run(() => 'x', { key });
        await crashed('lost', { afterCrash: 'refuse' });
        await crashed('dead');
        under.advance(1_001);
        const found = await all({ limit: 10 });
        expect([...found.keys()].sort()).toStrictEqual([...keys, 'dead', 'lost'].sort());
        expect(found.get('lost')).toStrictEqual(await once.get('lost'));
        expect([...(await all({ state: 'unknown' })).keys()]).toStrictEqual(['lost']);
        expect([...(await all({ state: 'failed' })).keys()]).toStrictEqual(['dead']);
        expect([...(await all({ state: 'running' })).keys()]).toStrictEqual([]);
      });

      it.each([{ state: 'lost' }, { limit: 0 }, { cursor: '' }, null])('refuses %j', async (options) => {
        expect(await codeOf(once.list(options as OnceListOptions))).toBe('InvalidArgument');
      });
    });

    it('keeps a day of results apart by the clock of the backend', async () => {
      await once.run(() => 'x', { key: 'k' });
      const { expiresAtMs, startedAtMs } = (await once.get('k'))!;
      expect(Math.abs(expiresAtMs - startedAtMs - DAY_MS)).toBeLessThan(5_000);
    });
  });
}
