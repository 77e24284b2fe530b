import { Logger } from '@nestjs/common';
import type { BudgetBackend, ReserveRequest } from '../../lib/budget/budget.backend.js';
import { BudgetConflictError } from '../../lib/budget/budget.errors.js';
import { resolveBudgetDefaults } from '../../lib/budget/budget.options.js';
import { BudgetService } from '../../lib/budget/budget.service.js';
import type { BudgetLimit, Crossed, Reserved, ReserveResult } from '../../lib/budget/budget.types.js';
import { currentHold } from '../../lib/budget/current-hold.js';
import { LockError } from '../../lib/lock/lock.errors.js';
import type { BudgetWorld } from './budget.contract.js';

const RETENTION_MS = 900_000;
const MINUTE_MS = 60_000;
const LIMITS: BudgetLimit[] = [{ scope: 'user', period: 'lifetime', limit: 1_000 }];

/** The contract for the end of a body and of a hold, on every backend. */
export function describeBudgetEnds(name: string, fresh: () => Promise<BudgetWorld>): void {
  describe(`the end of a body on ${name}`, () => {
    let world: BudgetWorld;
    let backend: BudgetBackend;
    let budgets: BudgetService;
    const unreadable: string[] = [];

    const open = (limits: BudgetLimit[] = LIMITS): BudgetService =>
      new BudgetService(
        backend,
        resolveBudgetDefaults({ limits, reaper: false, retentionMs: RETENTION_MS }),
        { onUnreadableCost: (id) => unreadable.push(id) },
      );
    const reserve = async (amount: number, more: object = {}): Promise<ReserveResult> =>
      budgets.reserve({ scopes: ['user'], id: 'job', amount, ttlMs: MINUTE_MS, ...more });
    const granted = async (amount: number, more: object = {}): Promise<Reserved> => {
      const hold = await reserve(amount, more);
      if (!hold.ok) throw new Error(`refused: ${hold.reason}`);
      return hold;
    };
    /** committed/reserved */
    const spent = async (): Promise<string> => {
      const [balance] = await budgets.balance({ scope: 'user' });
      return `${balance?.committed}/${balance?.reserved}`;
    };

    beforeEach(async () => {
      world = await fresh();
      backend = world.backend();
      budgets = open();
      unreadable.length = 0;
    });
    afterEach(async () => {
      expect(await budgets.verify()).toEqual({ ok: true, problems: [], quarantined: [] });
    });

    describe('generations', () => {
      it('forgets no newest generation before an older one', async () => {
        const first = await granted(100);
        world.clock.advance(2 * MINUTE_MS);
        await budgets.abort(await granted(50, { renew: true }));
        world.clock.advance(RETENTION_MS / 2);
        await budgets.finalize(first, 40);
        world.clock.advance(RETENTION_MS / 2 + 1_000);
        await budgets.reap();
        expect(await granted(30, { renew: true })).toMatchObject({ generation: 3 });
        world.clock.advance(MINUTE_MS + RETENTION_MS);
        expect((await budgets.reap()).expired).toEqual(['job']);
        expect((await budgets.list()).records).toEqual([]);
        expect(await spent()).toBe('40/0');
      });

      it('forgets no window before the operations that counted in it', async () => {
        budgets = open([{ scope: 'user', period: { windowMs: 10 * MINUTE_MS }, limit: 1_000 }]);
        world.clock.set(Date.parse('2027-03-01T00:00:00Z'));
        const first = await granted(100);
        world.clock.advance(2 * MINUTE_MS);
        const second = await granted(50, { renew: true });
        await budgets.finalize(second, 50);
        world.clock.advance(10 * MINUTE_MS);
        await budgets.finalize(first, 40);
        world.clock.advance(RETENTION_MS - MINUTE_MS);
        await budgets.reap();
        expect(await budgets.refund(second, 10, 'r')).toMatchObject({
          ok: true,
          balances: [{ committed: 80 }],
        });
        world.clock.advance(RETENTION_MS + 2);
        await budgets.reap();
        expect((await budgets.list()).records).toEqual([]);
      });
    });

    describe('one id, one body', () => {
      const spec = { scopes: ['user'], amount: 100, id: 'job', ttlMs: MINUTE_MS, actual: (n: number) => n };

      it('the same id three times at once runs one body, and tells the others when it ends', async () => {
        let end = (_: number): void => {};
        const body = jest.fn(() => new Promise<number>((done) => (end = done)));
        const runs = [1, 2, 3].map(() => budgets.run(body, spec).catch((error: unknown) => error));
        const refusals = (await Promise.race([
          Promise.all([Promise.race(runs), Promise.race([...runs].reverse())]),
        ])) as BudgetConflictError[];
        for (const error of refusals) {
          expect(error).toBeInstanceOf(BudgetConflictError);
          expect(error).toMatchObject({ reason: 'pending', retryAtMs: error.record?.expiresAtMs });
          expect(error.context).toMatchObject({
            retryAtMs: error.retryAtMs,
            retryAfter: expect.any(Number) as number,
          });
        }
        end(90);
        const results = await Promise.all(runs);
        expect(body).toHaveBeenCalledTimes(1);
        expect(results.filter((each) => each === 90)).toHaveLength(1);
        expect(await spent()).toBe('90/0');
      });

      it('a command that is sent again knows its own hold, in whatever state it is', async () => {
        const request: ReserveRequest = {
          ...{ root: 'default', id: 'job', amount: 10, ttlMs: MINUTE_MS, meta: '' },
          ...{ mode: 'run', nonce: 'mine', scopes: [{ scope: 'user', limits: limitsOf(LIMITS) }] },
        };
        expect(await backend.reserve(request)).toMatchObject({ ok: true, replayed: false });
        expect(await backend.reserve(request)).toMatchObject({ ok: true, replayed: true, generation: 1 });
        expect(await backend.reserve({ ...request, nonce: 'other' })).toMatchObject({ reason: 'pending' });
        await budgets.abort({ id: 'job' });
        expect(await backend.reserve(request)).toMatchObject({ reason: 'already_aborted' });
        expect(await backend.reserve({ ...request, nonce: 'other' })).toMatchObject({
          ok: true,
          generation: 2,
        });
      });
    });

    describe('a body that throws', () => {
      const coded = (code: string): Error => Object.assign(new Error(code), { code });
      const named = (errorName: string): Error => Object.assign(new Error('x'), { name: errorName });
      class APIUserAbortError extends Error {}
      const aborted = AbortSignal.abort('gone');
      const paysEstimate: [string, unknown, object?][] = [
        ['AbortError', new DOMException('x', 'AbortError')],
        ['TimeoutError', named('TimeoutError')],
        ...['ABORT_ERR', 'ERR_CANCELED', 'ECONNABORTED', 'ERR_STREAM_PREMATURE_CLOSE'].map(
          (code): [string, unknown] => [code, coded(code)],
        ),
        ...['UND_ERR_ABORTED', 'UND_ERR_HEADERS_TIMEOUT', 'UND_ERR_BODY_TIMEOUT'].map(
          (code): [string, unknown] => [code, new TypeError('fetch failed', { cause: coded(code) })],
        ),
        ['a provider with errors of its own', new APIUserAbortError('Request was aborted.')],
        ['one of several', new AggregateError([coded('ECONNREFUSED'), named('AbortError')])],
        [
          'one of several, in its cause',
          new AggregateError([new TypeError('fetch failed', { cause: coded('UND_ERR_ABORTED') })]),
        ],
        ['the reason of a signal of the options', 'gone', { signal: aborted }],
      ];
      const paysNothing: [string, unknown][] = [
        ['any error', new Error('no')],
        ...['ECONNREFUSED', 'ENOTFOUND', 'EAI_AGAIN', 'UND_ERR_CONNECT_TIMEOUT'].map(
          (code): [string, unknown] => [code, new TypeError('fetch failed', { cause: coded(code) })],
        ),
        [
          'a connect timeout by name',
          Object.assign(coded('UND_ERR_CONNECT_TIMEOUT'), { name: 'TimeoutError' }),
        ],
        ['several that were not reached', new AggregateError([coded('ECONNREFUSED'), coded('ENOTFOUND')])],
        [
          'one of several that says both',
          new AggregateError([Object.assign(named('AbortError'), { cause: coded('ECONNREFUSED') })]),
        ],
        ['our own error', new LockError({ code: 'Aborted', message: 'x', cause: named('AbortError') })],
        ['nothing', undefined],
        ['a string', 'no'],
        ['a code that is no text', Object.assign(new Error('x'), { code: Object.create(null) as unknown })],
        ['a name that cannot be read', Object.assign(new Error('x'), { name: { toString: () => [] } })],
        [
          'a getter that throws',
          Object.defineProperty({}, 'code', {
            get: () => {
              throw new Error('read');
            },
          }),
        ],
      ];
      const throwing = async (error: unknown, more: object = {}, note = 0): Promise<void> => {
        const body = (): never => {
          if (note) currentHold()?.spent(note);
          throw error;
        };
        const { signal, ...options } = more as { signal?: AbortSignal };
        const run = budgets.runs.run(
          body,
          { scopes: ['user'], amount: 100, ...options },
          { args: [{ signal }] },
        );
        await expect(
          run.then(
            () => 'ended well',
            (reason: unknown) => ({ reason }),
          ),
        ).resolves.toEqual({ reason: error });
      };

      it.each(paysEstimate)('by %s pays the estimate, or what it noted', async (...[, error, more = {}]) => {
        await throwing(error, more);
        expect(await spent()).toBe('100/0');
        await throwing(error, more, 30);
        expect(await spent()).toBe('130/0');
      });

      it.each(paysNothing)('by %s gives back all but what it noted', async (_, error) => {
        await throwing(error);
        expect(await spent()).toBe('0/0');
        await throwing(error, {}, 30);
        expect(await spent()).toBe('30/0');
      });

      it('pays what it noted, whatever it was called with', async () => {
        const unread = (): never => {
          throw new Error('read');
        };
        const args = [
          Object.defineProperty({}, 'x', { enumerable: true, get: unread }),
          new Proxy({}, { get: unread, ownKeys: unread, getPrototypeOf: unread }),
        ];
        const body = (hold: { spent(n: number): void }): never => {
          hold.spent(30);
          throw new Error('x');
        };
        const run = budgets.runs.run(body, { scopes: ['user'], amount: 100 }, { args });
        await expect(run).rejects.toThrow('x');
        expect(await spent()).toBe('30/0');
      });

      it('is settled as it was told to', async () => {
        await throwing(named('AbortError'), { onThrow: 'abort' }, 30);
        expect(await spent()).toBe('0/0');
        await throwing(new Error('x'), { onThrow: 'finalize-estimate' });
        expect(await spent()).toBe('100/0');
        const onThrow = jest.fn(
          (error: Error, { hold }: { hold: { noted: number } }) => hold.noted + error.message.length,
        );
        await throwing(new Error('four'), { onThrow }, 30);
        expect(await spent()).toBe('134/0');
        await throwing(new Error('x'), { onThrow: () => 'abort' }, 30);
        expect(await spent()).toBe('134/0');
        expect(unreadable).toEqual([]);
      });

      it('pays the estimate where its own function says no amount', async () => {
        const logged = jest.spyOn(Logger.prototype, 'error').mockImplementation(() => {});
        await throwing(new Error('x'), { onThrow: () => -1 });
        await throwing(new Error('x'), { onThrow: () => Promise.reject(new Error('worse')) });
        await throwing(new Error('x'), {
          onThrow: () => {
            throw new Error('worse');
          },
        });
        expect(await spent()).toBe('300/0');
        expect(logged).toHaveBeenCalledTimes(3);
        logged.mockRestore();
      });
    });

    describe('a body that ends well after its signal was aborted', () => {
      const ending = async (cost: unknown, note = 0): Promise<void> => {
        const body = (hold: { spent(n: number): void }): void => hold.spent(note);
        const spec = { scopes: ['user'], amount: 100, actual: () => cost as number };
        await budgets.runs.run(body, spec, { args: [AbortSignal.abort()] });
      };

      it('pays what it says, or what it noted, and the estimate where that is nothing', async () => {
        await ending(0);
        expect(await spent()).toBe('100/0');
        await ending(undefined);
        expect(await spent()).toBe('200/0');
        await ending(7);
        expect(await spent()).toBe('207/0');
        await ending(0, 30);
        expect(await spent()).toBe('237/0');
        expect(unreadable).toEqual([]); // A caller can cause this.
      });
    });

    describe('a cost that cannot be read', () => {
      it.each([undefined, null, -1, 12.5, '12', NaN])(
        'as %p loses no answer, counts the estimate, and is told',
        async (cost) => {
          const logged = jest.spyOn(Logger.prototype, 'error').mockImplementation(() => {});
          const actual = (): number => cost as number;
          expect(await budgets.run(() => 'answer', { scopes: ['user'], amount: 100, actual })).toBe('answer');
          expect(await spent()).toBe('100/0');
          expect(unreadable).toHaveLength(1);
          expect(logged.mock.calls.join()).toMatch(/could not be read/);
          logged.mockRestore();
        },
      );

      it('by a function that throws, or a promise that rejects, neither', async () => {
        const logged = jest.spyOn(Logger.prototype, 'error').mockImplementation(() => {});
        const missing = (answer: { usage?: { total: number } }): number => answer.usage!.total;
        const rejecting = (() => Promise.reject(new Error('x'))) as unknown as () => number;
        for (const actual of [missing, rejecting])
          expect(await budgets.run(() => ({}), { scopes: ['user'], amount: 100, actual })).toEqual({});
        expect(await spent()).toBe('200/0');
        logged.mockRestore();
      });

      it('in a note does not throw into the body, and counts the estimate where it matters', async () => {
        const logged = jest.spyOn(Logger.prototype, 'error').mockImplementation(() => {});
        const noting = budgets.run(
          (hold) => {
            hold.spent(undefined as never);
            throw new Error('no usage');
          },
          { scopes: ['user'], amount: 100 },
        );
        await expect(noting).rejects.toThrow('no usage');
        expect(await spent()).toBe('100/0');
        expect(unreadable).toHaveLength(1);
        logged.mockRestore();
      });
    });

    describe('currentHold()', () => {
      it('is the innermost hold, with what was noted, and none outside', async () => {
        const spec = { scopes: ['user'], amount: 100 };
        expect(currentHold()).toBeUndefined();
        let left: Promise<unknown> | undefined;
        await budgets.run(async (outer) => {
          expect(currentHold()).toBe(outer);
          outer.spent(5);
          await budgets.run((inner) => {
            expect(currentHold()).toBe(inner);
            inner.spent(7);
            currentHold()?.spent(8);
            expect(inner.noted).toBe(15);
          }, spec);
          expect(currentHold()).toBe(outer);
          left = new Promise((done) => setImmediate(() => done(currentHold())));
        }, spec);
        expect(await spent()).toBe('20/0');
        await left;
        expect(currentHold()).toBeUndefined();
      });

      it('notes are the least that a body pays that ends well', async () => {
        const noting = (note: number, actual: number): Promise<void> =>
          budgets.run((hold) => hold.spent(note), { scopes: ['user'], amount: 100, actual: () => actual });
        await noting(30, 50);
        expect(await spent()).toBe('50/0');
        await noting(30, 10);
        expect(await spent()).toBe('80/0');
      });
    });

    describe('a body that settles its hold itself', () => {
      const spec = { scopes: ['user'], amount: 100, id: 'job', actual: () => 77 };

      it.each<[string, (hold: Reserved) => unknown, string]>([
        ['finalizes', (hold) => budgets.finalize(hold, 42), '42/0'],
        ['finalizes by its id', () => budgets.finalize({ id: 'job' }, 42), '42/0'],
        ['aborts', (hold) => budgets.abort(hold), '0/0'],
        ['does not wait for it', (hold) => void budgets.finalize(hold, 42), '42/0'],
      ])('%s: it is not settled again', async (_, settle, after) => {
        await budgets.run(settle, spec);
        expect(await spent()).toBe(after);
      });

      it('and then throws: its error leaves', async () => {
        const run = budgets.run(async (hold) => {
          await budgets.finalize(hold, 42);
          throw new DOMException('x', 'AbortError');
        }, spec);
        await expect(run).rejects.toThrow('x');
        expect(await spent()).toBe('42/0');
      });
    });

    describe('thresholds', () => {
      const with50And80 = [{ scope: 'user', period: 'lifetime' as const, limit: 100, thresholds: [50, 80] }];
      const percents = ({ crossed }: { crossed?: readonly Crossed[] }): number[] =>
        (crossed ?? []).map(({ percent }) => percent);
      const charge = async (id: string, amount: number, scope = 'user'): Promise<number[]> =>
        percents((await budgets.charge({ scopes: [scope], amount, id, mode: 'record' })) as object);

      beforeEach(() => void (budgets = open(with50And80)));

      it('are armed again by a credit, above the usage that is left', async () => {
        expect(await charge('a', 90)).toEqual([50, 80]);
        await budgets.credit({ scope: 'user', period: 'lifetime', amount: 0, id: 'none' });
        expect(await charge('b', 1)).toEqual([]);
        await budgets.credit({ scope: 'user', period: 'lifetime', amount: 50, id: 'k' }); // 91 of 150
        expect(await charge('c', 40)).toEqual([80]);
      });
    });
  });
}

const limitsOf = (limits: BudgetLimit[]): ReserveRequest['scopes'][number]['limits'] =>
  limits.map(({ period, limit }) => ({ period, limit, thresholds: [], inherited: false }));
