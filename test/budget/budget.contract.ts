import { Logger } from '@nestjs/common';
import * as fc from 'fast-check';
import type { BudgetLimit, BudgetRecord, ReserveResult } from '../../lib/budget/budget.types.js';
import { resolveBudgetDefaults } from '../../lib/budget/budget.options.js';
import { BudgetService } from '../../lib/budget/budget.service.js';
import type { BudgetBackend } from '../../lib/budget/budget.backend.js';

export interface BudgetWorld {
  /** Another process with the same budgets, which has a connection of its own. */
  backend(): BudgetBackend;
  /** The clock of the backend. */
  readonly clock: { now(): number; set(epochMs: number): void; advance(ms: number): void };
}

const RETENTION_MS = 900_000;
const MINUTE_MS = 60_000;
const HOUR_MS = 60 * MINUTE_MS;
const DAY_MS = 24 * HOUR_MS;

/** The contract of every backend of budgets. `fresh()` returns a world without budgets, at real time. */
export function describeBudgetContract(name: string, fresh: () => Promise<BudgetWorld>): void {
  describe(`budgets on ${name}`, () => {
    let world: BudgetWorld;
    beforeEach(async () => {
      world = await fresh();
    });

    const open = (
      limits: BudgetLimit[] = [{ scope: 'user', period: 'lifetime', limit: 100 }],
    ): BudgetService =>
      new BudgetService(
        world.backend(),
        resolveBudgetDefaults({ limits, reaper: false, retentionMs: RETENTION_MS }),
      );

    /** committed/reserved/available of the first period of a scope. */
    const tuple = async (budgets: BudgetService, scope = 'user', period = 0): Promise<string> => {
      const balance = (await budgets.balance({ scope }))[period];
      return `${balance?.committed}/${balance?.reserved}/${balance?.available}`;
    };

    const reserve = (
      budgets: BudgetService,
      id: string,
      amount: number,
      ttlMs?: number,
    ): Promise<ReserveResult> => budgets.reserve({ scopes: ['user'], id, amount, ttlMs });

    const expectSound = async (budgets: BudgetService, root?: string): Promise<void> =>
      expect(await budgets.verify(root)).toEqual({ ok: true, problems: [], quarantined: [] });

    describe('the worked vectors', () => {
      it('1: reserves up to the limit, and gives back what was not used', async () => {
        const budgets = open();
        expect(await reserve(budgets, 'a', 60)).toMatchObject({
          ok: true,
          status: 'reserved',
          amount: 60,
          replayed: false,
        });
        expect(await tuple(budgets)).toBe('0/60/40');
        expect(await reserve(budgets, 'b', 41)).toEqual({
          ok: false,
          reason: 'exceeded',
          violations: [
            {
              scope: 'user',
              period: 'lifetime',
              limit: 100,
              committed: 0,
              reserved: 60,
              available: 40,
              credits: 0,
              requested: 41,
              resetAtMs: null,
            },
          ],
          retryAtMs: null,
          retryAfterMs: null,
        });
        expect(await reserve(budgets, 'b', 40)).toMatchObject({ ok: true });
        expect(await tuple(budgets)).toBe('0/100/0');
        expect(await budgets.finalize({ id: 'a' }, 25)).toMatchObject({
          ok: true,
          status: 'finalized',
          reserved: 60,
          actual: 25,
          committed: 25,
          released: 35,
          overage: 0,
          uncovered: 0,
          late: false,
          replayed: false,
        });
        expect(await tuple(budgets)).toBe('25/40/35');
        await expectSound(budgets);
      });

      it('4: is exact to 2^53 - 1', async () => {
        const limit = Number.MAX_SAFE_INTEGER;
        const budgets = open([{ scope: 'user', period: 'lifetime', limit }]);
        expect(await budgets.charge({ scopes: ['user'], amount: limit - 7, id: 'most' })).toMatchObject({
          ok: true,
        });
        expect(await reserve(budgets, 'a', 8)).toMatchObject({
          ok: false,
          violations: [{ available: 7, limit, requested: 8 }],
        });
        expect(await reserve(budgets, 'b', 7)).toMatchObject({ ok: true, amount: 7 });
        expect(await reserve(budgets, 'c', 1)).toMatchObject({
          ok: false,
          violations: [{ available: 0, requested: 1, limit }],
        });
        await expectSound(budgets);
      });
    });

    describe('the faults of other budgets, absent', () => {
      const MAX = Number.MAX_SAFE_INTEGER;

      it('refuses a sum beyond 2^53 - 1, and changes nothing', async () => {
        const budgets = open([
          { scope: 'user', period: 'lifetime', limit: 'unlimited' },
          { scope: 'org', period: 'lifetime', limit: MAX - 5 },
        ]);
        await budgets.charge({ scopes: ['user'], amount: MAX - 10, id: 'most' });
        await reserve(budgets, 'a', 10);
        const refused = { code: 'InvalidArgument', message: expect.stringMatching(/2\^53 - 1/) as string };
        await expect(reserve(budgets, 'b', 1)).rejects.toMatchObject(refused);
        await expect(budgets.charge({ scopes: ['user'], amount: 1, id: 'c' })).rejects.toMatchObject(refused);
        const credit = { scope: 'org', period: 'lifetime' } as const;
        await expect(budgets.credit({ ...credit, amount: 6, id: 'k' })).rejects.toMatchObject(refused);
        await budgets.credit({ ...credit, amount: 5, id: 'k' });
        await expect(budgets.setLimit({ ...credit, limit: MAX - 4 })).rejects.toMatchObject(refused);
        await budgets.setLimit({ ...credit, limit: MAX - 5 });
        expect(await tuple(budgets)).toBe(`${MAX - 10}/10/unlimited`);
        expect(await tuple(budgets, 'org')).toBe(`0/0/${MAX}`);
        await expectSound(budgets);
      });

      it('never refuses what is spent: a sum stops at 2^53 - 1, with an error line', async () => {
        const logged = jest.spyOn(Logger.prototype, 'error').mockImplementation(() => {});
        const budgets = open([{ scope: 'user', period: 'lifetime', limit: MAX }]);
        await budgets.charge({ scopes: ['user'], amount: MAX - 10, id: 'most' });
        await reserve(budgets, 'a', 10);
        expect(logged).not.toHaveBeenCalled();
        expect(await budgets.finalize({ id: 'a' }, 100)).toMatchObject({
          ok: true,
          committed: 100,
          uncovered: 90,
        });
        expect(await budgets.charge({ scopes: ['user'], amount: 7, id: 'b', mode: 'record' })).toMatchObject({
          ok: true,
          uncovered: 7,
        });
        expect(await tuple(budgets)).toBe(`${MAX}/0/0`);
        expect(await budgets.refund({ id: 'most' }, MAX - 10, 'r1')).toMatchObject({ ok: true });
        expect(await budgets.refund({ id: 'a' }, 100, 'r2')).toMatchObject({ ok: true, refunded: 100 });
        expect(await tuple(budgets)).toBe(`0/0/${MAX}`);
        expect(logged.mock.calls.flat()).toEqual(
          Array(3).fill(expect.stringMatching(/^BUDGET_SUM_TOO_LARGE: /)),
        );
        logged.mockRestore();
      });

      it('wrongs nobody over a backlog of 5,000 expired holds', async () => {
        const limit = 50_000;
        const budgets = open([{ scope: 'user', period: 'lifetime', limit }]);
        for (let i = 0; i < 5_000; i += 500)
          await Promise.all(
            Array.from({ length: 500 }, (_, j) => reserve(budgets, `hold ${i + j}`, 10, MINUTE_MS)),
          );
        expect(await tuple(budgets)).toBe(`0/${limit}/0`);
        world.clock.advance(MINUTE_MS);
        expect(
          await Promise.all(
            [1, 2, 3].map((n) =>
              reserve(open([{ scope: 'user', period: 'lifetime', limit }]), `new ${n}`, limit / 5),
            ),
          ),
        ).toMatchObject([{ ok: true }, { ok: true }, { ok: true }]);
        expect(await tuple(budgets)).toBe('0/30000/20000');
        const { expired } = await budgets.reap({ max: 100_000 });
        expect(new Set(expired).size).toBe(5_000);
        await expectSound(budgets);
      });
    });

    describe('limits', () => {
      it.each<[string, Parameters<BudgetService['setLimit']>[0]['period'], string]>([
        [
          'user:1',
          { every: 'day', tz: 'Asia/Tokyo' },
          'day@Asia/Tokyo. Their periods are: day@Europe/Berlin, month',
        ],
        ['user', { every: 'day' }, 'day. Their periods are: day@Europe/Berlin, month'],
        ['user', 'lifetime', 'lifetime. Their periods are: day@Europe/Berlin, month'],
      ])('refuses setLimit and credit of %s for %j, and names the periods', async (scope, period, words) => {
        const budgets = open([
          { scope: 'user', period: { every: 'day', tz: 'Europe/Berlin' }, limit: 5 },
          { scope: 'user', period: { every: 'month' }, limit: 50 },
        ]);
        const refused = { code: 'InvalidArgument', message: expect.stringContaining(words) as string };
        for (const limit of [7, null])
          await expect(budgets.setLimit({ scope, period, limit })).rejects.toMatchObject(refused);
        await expect(budgets.credit({ scope, period, amount: 1, id: 'k' })).rejects.toMatchObject(refused);
        await expect(budgets.setLimit({ scope: 'team', period, limit: 1 })).rejects.toThrow(
          /No limit is set/,
        );
      });

      it('takes any text as root, scope, id and meta', async () => {
        const strange = 'ü|;, =:%{}\n~"\u0000😀';
        const budgets = open([{ scope: 'user', period: 'lifetime', limit: 10 }]);
        const options = {
          root: strange,
          scopes: [`user:${strange}`],
          amount: 3,
          id: strange,
          meta: { strange },
        };
        expect(await budgets.reserve(options)).toMatchObject({
          ok: true,
          balances: [{ scope: options.scopes[0] }],
        });
        expect(await budgets.get({ root: strange, id: strange })).toMatchObject({
          scopes: options.scopes,
          meta: { strange },
        });
        expect(await budgets.list({ root: strange, scope: options.scopes[0] })).toMatchObject({
          records: [{ id: strange }],
        });
        const long = 'r'.repeat(512);
        expect(await budgets.charge({ root: long, scopes: ['user:1'], amount: 1, id: 'x' })).toMatchObject({
          ok: true,
        });
        expect(
          await budgets.charge({ root: `${long.slice(1)}s`, scopes: ['user:1'], amount: 10, id: 'x' }),
        ).toMatchObject({ ok: true });
      });

      it('gives a hold back whatever its id is', async () => {
        const budgets = open([{ scope: 'user', period: { windowMs: 24 * HOUR_MS }, limit: 100 }]);
        const odd = fc.oneof(
          fc.constantFrom('~', '-', '+inf', '(1', 'o|', 'n|~', 'c|user|day|0', '*', '\u0000', ' '),
          fc.string({ unit: 'binary', minLength: 1, maxLength: 8 }),
        );
        let root = 0;
        await fc.assert(
          fc.asyncProperty(odd, async (id) => {
            const at = { root: `root${++root}`, scopes: ['user'] };
            await budgets.reserve({ ...at, id, amount: 60, ttlMs: 1_000 });
            // A longer hold: the data in the backend has to stay.
            await budgets.reserve({ ...at, amount: 1, ttlMs: 72 * HOUR_MS });
            world.clock.advance(1_001);
            const [balance] = await budgets.balance({ root: at.root, scope: 'user' });
            expect(balance).toMatchObject({ committed: 0, reserved: 1 });
            expect(await budgets.get({ root: at.root, id })).toMatchObject({ state: 'expired' });
            await expectSound(budgets, at.root);
          }),
          { numRuns: 40, examples: [['~']] },
        );
      });

      it('blocks at 0, and admits an amount of 0 everywhere', async () => {
        const budgets = open([{ scope: 'user', period: { every: 'day' }, limit: 0 }]);
        expect(await reserve(budgets, 'a', 1)).toMatchObject({ ok: false, retryAtMs: null });
        expect(await reserve(budgets, 'b', 0)).toMatchObject({ ok: true });
      });
    });

    describe('windows', () => {
      it('counts the instant of expiry as expired, and the time before as not', async () => {
        const budgets = open();
        const hold = await reserve(budgets, 'a', 100, HOUR_MS);
        if (!hold.ok) throw new Error('refused');
        world.clock.set(hold.expiresAtMs - 1);
        expect(await reserve(budgets, 'b', 1)).toMatchObject({ ok: false, reason: 'exceeded' });
        expect(await budgets.get({ id: 'a' })).toMatchObject({ state: 'pending' });
        world.clock.set(hold.expiresAtMs);
        expect(await budgets.get({ id: 'a' })).toMatchObject({ state: 'expired' });
        expect(await reserve(budgets, 'b', 1)).toMatchObject({ ok: true });
      });

      it('opens the next one to the ms, with no job', async () => {
        const budgets = open([{ scope: 'user', period: { every: 'month' }, limit: 100 }]);
        const midnight = Date.parse('2027-03-01T00:00:00Z');
        world.clock.set(midnight - 1);
        await budgets.charge({ scopes: ['user'], amount: 100, id: 'a' });
        expect(await budgets.charge({ scopes: ['user'], amount: 1, id: 'b' })).toMatchObject({
          ...{ ok: false, retryAtMs: midnight, retryAfterMs: 1 },
        });
        world.clock.set(midnight);
        expect(await budgets.charge({ scopes: ['user'], amount: 100, id: 'b' })).toMatchObject({
          ok: true,
          balances: [{ window: { startMs: midnight, endMs: Date.parse('2027-04-01T00:00:00Z') } }],
        });
      });

      it('files by its own clock, whatever the clock of the process says', async () => {
        const period = { every: 'day', tz: 'America/New_York' } as const;
        const budgets = open([{ scope: 'user', period, limit: 10 }]);
        for (const instant of ['2031-07-04T12:00:00Z', '2024-02-29T12:00:00Z', '2031-07-04T12:00:00Z']) {
          world.clock.set(Date.parse(instant));
          const [balance] = await budgets.balance({ scope: 'user' });
          const day = instant.slice(0, 10);
          expect(new Date(balance?.window.startMs ?? 0).toISOString().slice(0, 10)).toBe(day);
        }
      });

      it('promises a time at which all limits have room, also those that had it by credits', async () => {
        const limit = 100;
        const budgets = open([
          { scope: 'user', period: { windowMs: 4 * HOUR_MS }, limit },
          { scope: 'team', period: { windowMs: HOUR_MS }, limit: 5 },
          { scope: 'org', period: 'lifetime', limit: 5 },
        ]);
        world.clock.set(Date.parse('2027-03-09T12:00:00Z'));
        await budgets.charge({ scopes: ['user'], amount: limit, id: 'all' });
        await budgets.credit({ scope: 'team', period: { windowMs: HOUR_MS }, amount: limit, id: 'k' });
        await budgets.credit({ scope: 'org', period: 'lifetime', amount: limit, id: 'l' });
        const retryAtMs = async (amount: number, ...scopes: string[]) => {
          const refused = await budgets.reserve({ scopes, amount });
          expect(refused).toMatchObject({ ok: false, violations: [{ scope: 'user' }] });
          return 'retryAtMs' in refused && refused.retryAtMs;
        };
        const endMs = Date.parse('2027-03-09T16:00:00Z');
        expect(await retryAtMs(50, 'user', 'org')).toBe(endMs);
        expect(await retryAtMs(5, 'user', 'team', 'org')).toBe(endMs);
        // By then the credits of the team have ended with their window.
        expect(await retryAtMs(6, 'user', 'team', 'org')).toBeNull();
      });
    });

    describe('records', () => {
      it('tells what is known of an operation', async () => {
        const budgets = open();
        const hold = await budgets.reserve({ scopes: ['user'], amount: 9, id: 'a', meta: { job: 7 } });
        expect(await budgets.get(hold.ok ? hold : { id: '' })).toMatchObject<Partial<BudgetRecord>>({
          root: 'default',
          id: 'a',
          kind: 'hold',
          state: 'pending',
          scopes: ['user'],
          amount: 9,
          endedAtMs: null,
          meta: { job: 7 },
        });
      });

      it('lists all of them, by state and scope', async () => {
        const budgets = open();
        for (let i = 0; i < 150; i++)
          await budgets.reserve({
            scopes: [`user:${i % 3}`],
            amount: 1,
            id: `h${i}`,
            ttlMs: i < 30 ? MINUTE_MS : HOUR_MS,
          });
        await budgets.finalize({ id: 'h149' }, 1);
        await budgets.abort({ id: 'h148' });
        world.clock.advance(MINUTE_MS);
        const ids = async (filter: object): Promise<Set<string>> => {
          const found = new Set<string>();
          let cursor: string | null = null;
          do {
            const page = await budgets.list({ ...filter, limit: 20, cursor });
            for (const { id } of page.records) found.add(id);
            cursor = page.cursor;
          } while (cursor !== null);
          return found;
        };
        expect((await ids({})).size).toBe(150);
        expect((await ids({ state: 'expired' })).size).toBe(30);
        expect((await ids({ state: 'pending' })).size).toBe(118);
        expect(await ids({ state: 'finalized' })).toEqual(new Set(['h149']));
        expect(await ids({ state: 'aborted' })).toEqual(new Set(['h148']));
        expect((await ids({ scope: 'user:0' })).size).toBe(50);
      });

      it('keeps a record until retention ends and it is reaped, and its id for longer', async () => {
        const budgets = open();
        const charge = () =>
          budgets.charge({ scopes: ['user'], amount: 10, id: 'a', idTtlMs: 2 * RETENTION_MS });
        await charge();
        await budgets.reserve({ scopes: ['user'], amount: 9, id: 'h', meta: 'job' });
        await budgets.finalize({ id: 'h' }, 4, { idTtlMs: 2 * RETENTION_MS });
        await reserve(budgets, 'aborted', 3);
        await budgets.abort({ id: 'aborted' });
        world.clock.advance(RETENTION_MS - 1);
        expect(await budgets.reap()).toEqual({ expired: [], purged: 0 });
        world.clock.advance(1);
        expect(await budgets.reap()).toEqual({ expired: [], purged: 3 });
        expect(await budgets.list()).toMatchObject({ records: [] });
        expect(await budgets.get({ id: 'aborted' })).toBeNull();

        expect(await charge()).toMatchObject({ ok: true, replayed: true, amount: 10, crossed: [] });
        expect(await reserve(budgets, 'h', 9)).toMatchObject({
          reason: 'already_finalized',
          record: {
            id: 'h',
            kind: 'hold',
            amount: 9,
            actual: 4,
            committed: 4,
            scopes: ['user'],
            meta: undefined,
          },
        });
        expect(await budgets.finalize({ id: 'h' }, 4)).toMatchObject({
          ok: true,
          replayed: true,
          released: 5,
        });
        expect(await budgets.finalize({ id: 'h' }, 5)).toMatchObject({ reason: 'conflict' });
        expect(await budgets.abort({ id: 'h' })).toMatchObject({ reason: 'finalized' });
        expect(await budgets.extend({ id: 'h' }, 1)).toMatchObject({ reason: 'finalized' });
        expect(await tuple(budgets)).toBe('14/0/86');
        await expectSound(budgets);

        world.clock.advance(RETENTION_MS + 1);
        expect(await budgets.get({ id: 'h' })).toBeNull();
        expect(await charge()).toMatchObject({ ok: true, replayed: false });
        expect(await tuple(budgets)).toBe('24/0/76');
        await expectSound(budgets);
      });

      it('mints once, however late a webhook comes again within the window', async () => {
        const budgets = open([
          { scope: 'user', period: { every: 'month' }, limit: 100 },
          { scope: 'wallet', period: 'lifetime', limit: 0 },
        ]);
        world.clock.set(Date.parse('2027-03-02T00:00:00Z'));
        const topUp = (scope: string, period: BudgetLimit['period']) =>
          budgets.credit({ scope, period, amount: 500, id: `paid ${scope}` });
        const both = () => Promise.all([topUp('user', { every: 'month' }), topUp('wallet', 'lifetime')]);
        await both();
        for (const days of [1 / 24, 7, 20]) {
          world.clock.advance(days * DAY_MS);
          await budgets.reap();
          for (const again of await both())
            expect(again).toMatchObject({ replayed: true, balance: { credits: 500 } });
        }
        expect(
          await budgets.credit({ scope: 'wallet', period: 'lifetime', amount: 1, id: 'paid wallet' }),
        ).toEqual({
          ok: false,
          reason: 'conflict',
        });
        world.clock.advance(350 * DAY_MS);
        expect(await topUp('wallet', 'lifetime')).toMatchObject({ replayed: true });
        expect(await topUp('user', { every: 'month' })).toMatchObject({ replayed: false });
      });

      it('keeps an id beyond the end of its window for as long as a retry may come', async () => {
        const budgets = open([{ scope: 'user', period: { windowMs: HOUR_MS }, limit: 100 }]);
        world.clock.set(Date.parse('2027-01-01T00:59:59Z'));
        const once = () => budgets.charge({ scopes: ['user'], amount: 10, id: 'a' });
        await once();
        world.clock.advance(2_000);
        expect(await once()).toMatchObject({ replayed: true });
        expect(await tuple(budgets)).toBe('0/0/100');
      });

      it('refunds what was charged long ago, and knows it for as long as the refund', async () => {
        const budgets = open([
          { scope: 'user', period: { every: 'day' }, limit: 100, thresholds: [50] },
          { scope: 'user', period: { every: 'month' }, limit: 1_000 },
        ]);
        world.clock.set(Date.parse('2027-03-02T12:00:00Z'));
        await budgets.charge({ scopes: ['user'], amount: 80, id: 'old', idTtlMs: 25 * DAY_MS });
        world.clock.advance(20 * DAY_MS);
        await budgets.reap();
        await budgets.charge({ scopes: ['user'], amount: 5, id: 'new' });
        expect(await budgets.refund({ id: 'old' }, 81, 'r0')).toMatchObject({ reason: 'exceeds_committed' });
        const refund = () => budgets.refund({ id: 'old' }, 50, 'r1');
        expect(await refund()).toMatchObject({ ok: true, refunded: 50, replayed: false });
        expect([await tuple(budgets), await tuple(budgets, 'user', 1)]).toEqual(['5/0/95', '35/0/965']);
        world.clock.advance(9 * DAY_MS);
        await budgets.reap();
        expect(await refund()).toMatchObject({ ok: true, refunded: 50, replayed: true });
        expect(await budgets.refund({ id: 'old' }, 31, 'r2')).toMatchObject({ reason: 'exceeds_committed' });
        expect(await budgets.refund({ id: 'old' }, 30, 'r2')).toMatchObject({ ok: true, refunded: 80 });
        expect(await tuple(budgets, 'user', 1)).toBe('5/0/995');
        await expectSound(budgets);
      });

      it('forgets past windows, but not while a hold of theirs is out', async () => {
        const budgets = open([{ scope: 'user', period: { windowMs: HOUR_MS }, limit: 100 }]);
        world.clock.set(Date.parse('2027-01-01T00:30:00Z'));
        await reserve(budgets, 'long', 10, 10 * HOUR_MS);
        world.clock.advance(2 * HOUR_MS);
        expect(await budgets.reap()).toEqual({ expired: [], purged: 0 });
        expect(await budgets.finalize({ id: 'long' }, 7)).toMatchObject({
          balances: [{ committed: 7, reserved: 0 }],
        });
        await expectSound(budgets);
        world.clock.advance(RETENTION_MS + 2);
        expect(await budgets.reap()).toEqual({ expired: [], purged: 2 });
        await expectSound(budgets);
      });
    });

    describe('an operator', () => {
      const all = async <Item>(
        ask: (cursor?: string) => Promise<{ items: readonly Item[]; cursor?: string }>,
      ): Promise<Item[]> => {
        const found: Item[] = [];
        let cursor: string | undefined;
        do {
          const page = await ask(cursor);
          found.push(...page.items);
          ({ cursor } = page);
        } while (cursor !== undefined);
        return found;
      };
      const LIMITS: BudgetLimit[] = [
        { scope: 'user', period: 'lifetime', limit: 100 },
        { scope: 'org', period: 'lifetime', limit: 1_000 },
      ];

      it('lists the roots in use, whatever their names', async () => {
        const budgets = open();
        const roots = ['default', 'a*', 'a{b}:c', 'ä/%', 'a'];
        for (const [i, root] of roots.entries())
          await budgets.charge({ root, scopes: ['user'], amount: 1, id: `c${i}` });
        const found = await all(async (cursor) => {
          const page = await budgets.roots({ cursor, limit: 2 });
          return { items: page.roots, ...(page.cursor === undefined ? {} : { cursor: page.cursor }) };
        });
        expect([...new Set(found)].sort()).toEqual([...roots].sort());
      });

      it('lists the balances of a root, or those of one type of scopes', async () => {
        const budgets = open(LIMITS);
        const users = Array.from({ length: 30 }, (_, i) => `user:${i}|x`);
        for (const [i, user] of users.entries())
          await budgets.charge({ scopes: [user, 'org'], amount: i + 1, id: `c${i}` });
        await budgets.charge({ root: 'other', scopes: ['user:other'], amount: 1, id: 'c' });
        const found = await all((cursor) => budgets.balances({ cursor, limit: 10 }));
        const spent = new Map(found.map(({ scope, committed }) => [scope, committed]));
        expect([...spent.keys()].sort()).toEqual([...users, 'org'].sort());
        expect(spent.get('user:6|x')).toBe(7);
        expect(spent.get('org')).toBe((30 * 31) / 2);
        const orgs = await all((cursor) => budgets.balances({ type: 'org', cursor }));
        expect(new Set(orgs.map(({ scope }) => scope))).toEqual(new Set(['org']));
        expect(await budgets.balances({ root: 'nobody' })).toEqual({ items: [] });
      });

      it('leaves out a scope that has no limit any more', async () => {
        await open(LIMITS).charge({ scopes: ['user:1', 'org'], amount: 1, id: 'c' });
        const found = await all((cursor) => open(LIMITS.slice(0, 1)).balances({ cursor }));
        expect(found.map(({ scope }) => scope)).toEqual(['user:1']);
      });
    });
  });
}
