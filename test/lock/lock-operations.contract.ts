import * as fc from 'fast-check';
import type { ListedLock, LockBackend, LockListOptions, LockTurn } from 'nestjs-syncguard';
import { granted } from './lock.contract.js';

export interface LockOperationsUnderTest {
  /** Two backends on the same store, as of two processes. */
  readonly backends: readonly [LockBackend, LockBackend];
  advance(ms: number): void;
}

type Operations = Required<Pick<LockBackend, 'list' | 'waiters' | 'forceRelease'>>;

const TTL_MS = 30_000;
const WHY = { reason: 'its pod hangs', by: 'ann' };

/** All pages of a list. */
export async function allOf(
  backend: Pick<LockBackend, 'list'>,
  options: LockListOptions = {},
): Promise<ListedLock[]> {
  const { list } = backend as Operations;
  const items: ListedLock[] = [];
  let cursor: string | undefined;
  do {
    const page = await list.call(backend, { ...options, ...(cursor === undefined ? {} : { cursor }) });
    items.push(...page.items);
    ({ cursor } = page);
    expect(cursor ?? '').toMatch(/^[\w.~-]*$/); // A URL carries it as it is.
  } while (cursor !== undefined);
  return items;
}

const keysOf = (locks: readonly ListedLock[]): string[] => [...new Set(locks.map(({ key }) => key))].sort();

/** What operators see of locks and do to them, whatever the locks stand on. */
export function describeLockOperations(name: string, setUp: () => Promise<LockOperationsUnderTest>): void {
  describe(`an operator of locks on ${name}`, () => {
    let backend: LockBackend & Operations;
    let other: LockBackend & Operations;
    let advance: (ms: number) => void;
    const turns: LockTurn[] = [];

    beforeEach(async () => {
      const { backends, ...rest } = await setUp();
      [backend, other] = backends as unknown as [LockBackend & Operations, LockBackend & Operations];
      ({ advance } = rest);
    });
    afterEach(() => {
      for (const turn of turns.splice(0)) turn.leave();
    });

    const take = async (key: string, ttlMs = TTL_MS) => granted(await backend.acquire({ key, ttlMs }));
    const wait = async (key: string | readonly string[], on: LockBackend = backend, isNested = false) => {
      const turn = on.takeTurn?.({ pollMs: 60_000, isNested }) as LockTurn;
      turns.push(turn);
      const which = typeof key === 'string' ? { key } : { keys: key };
      const attempt = () => on.acquire({ ...which, ttlMs: TTL_MS, turn });
      expect((await attempt()).ok).toBe(false);
      return attempt;
    };

    describe('list', () => {
      it('shows key, fence, times and the number of waiters of each lock that is held', async () => {
        const { fence, expiresAtMs } = await take('order:1');
        await wait('order:1');
        await wait('order:1', other);
        const [lock, ...others] = await allOf(backend);
        expect(others).toStrictEqual([]);
        expect(lock).toStrictEqual({
          ...{ key: 'order:1', fence, expiresAtMs, waiting: 2 },
          acquiredAtMs: expiresAtMs - TTL_MS,
        });
      });

      it('shows neither what has expired nor what was released', async () => {
        await take('short', 1_000);
        await (await take('gone')).release();
        await take('long');
        advance(2_001);
        expect(keysOf(await allOf(backend))).toStrictEqual(['long']);
      });

      it('shows every key of a lock of several', async () => {
        granted(await backend.acquire({ keys: ['{u}:a', '{u}:b'], ttlMs: TTL_MS }));
        const locks = await allOf(backend);
        expect(keysOf(locks)).toStrictEqual(['{u}:a', '{u}:b']);
        expect(new Set(locks.map(({ fence }) => fence)).size).toBe(1);
      });

      it('goes page by page, and shows each lock once at least', async () => {
        const keys = Array.from({ length: 60 }, (_, i) => `order:${i}`).sort();
        for (const key of keys) await take(key);
        const first = await backend.list({ limit: 10 });
        expect(first.items.length).toBeLessThan(60);
        expect(first.cursor).toBeDefined();
        expect(keysOf(await allOf(backend, { limit: 10 }))).toStrictEqual(keys);
      });

      it('goes on where locks come and go meanwhile', async () => {
        const held = await Promise.all(Array.from({ length: 40 }, (_, i) => take(`gone:${i}`)));
        const stays = Array.from({ length: 40 }, (_, i) => `stay:${i}`).sort();
        for (const key of stays) await take(key);
        const seen: ListedLock[] = [];
        let cursor: string | undefined;
        do {
          const page = await backend.list({ limit: 10, cursor });
          seen.push(...page.items);
          ({ cursor } = page);
          await Promise.all([
            ...held.splice(0, 10).map((lock) => lock.release()),
            take(`new:${page.cursor} ${held.length}`),
          ]);
        } while (cursor !== undefined);
        expect(keysOf(seen).filter((key) => key.startsWith('stay:'))).toStrictEqual(stays);
      });

      const text = fc.string({ unit: fc.constantFrom(...'ab*?[]^\\-{}:/', 'é'), minLength: 1, maxLength: 6 });
      it('takes a prefix as it is, whatever it means in a pattern', async () => {
        await fc.assert(
          fc.asyncProperty(
            fc.uniqueArray(text, { minLength: 1, maxLength: 8 }),
            text,
            async (keys, prefix) => {
              const held = await Promise.all(keys.map((key) => backend.acquire({ key, ttlMs: TTL_MS })));
              const found = keysOf(await allOf(backend, { prefix }));
              for (const lock of held) if (lock.ok) await lock.release();
              expect(found).toStrictEqual(keys.filter((key) => key.startsWith(prefix)).sort());
            },
          ),
          {
            numRuns: 40,
            examples: [
              [['[a]b', 'ab'], '[a]'],
              [['a\\*', 'a*'], 'a\\'],
            ],
          },
        );
      });

      it('finds keys that are named like what the package keeps beside locks', async () => {
        const keys = [`id:${'A'.repeat(22)}`, 'fence:order:1', 'id:1', 'queue:1', 'f'];
        for (const key of keys) await take(key);
        expect(keysOf(await allOf(backend))).toStrictEqual([...keys].sort());
        expect(keysOf(await allOf(backend, { prefix: 'fence:order' }))).toStrictEqual(['fence:order:1']);
        expect(keysOf(await allOf(backend, { prefix: 'id:A' }))).toStrictEqual([`id:${'A'.repeat(22)}`]);
        expect(keysOf(await allOf(backend, { prefix: 'f' }))).toStrictEqual(['f', 'fence:order:1']);
      });

      it.each([
        { limit: 0 },
        { limit: 1_001 },
        { cursor: '' },
        { cursor: 7 },
        { prefix: 7 },
        { other: 1 },
        null,
      ])('refuses %j', async (options) => {
        await expect(backend.list(options as LockListOptions)).rejects.toMatchObject({
          code: 'InvalidArgument',
        });
      });
    });

    describe('waiters', () => {
      it('are the calls that wait, in their order, each with its process and since when', async () => {
        await take('order:1');
        const before = Date.now();
        await wait('order:1');
        await wait('order:1', other);
        await wait('order:1');
        const waiting = await backend.waiters('order:1');
        expect(waiting.map(({ position }) => position)).toStrictEqual([1, 2, 3]);
        expect(waiting[0]?.process).toBe(waiting[2]?.process);
        for (const { process, sinceMs } of waiting) {
          expect(process).toMatch(/./);
          expect(sinceMs).toBeGreaterThanOrEqual(before - 2);
          expect(sinceMs).toBeLessThanOrEqual(Date.now() + 2);
        }
      });

      it('are those that hold a lock first, and say when they came too', async () => {
        await take('order:1');
        await wait('order:1');
        const before = Date.now();
        await wait('order:1', other, true);
        const [first] = await other.waiters('order:1');
        expect(first?.sinceMs).toBeGreaterThanOrEqual(before - 2);
        expect(first?.sinceMs).toBeLessThanOrEqual(Date.now() + 2);
      });

      it('are none where nobody waits', async () => {
        expect(await backend.waiters('order:1')).toStrictEqual([]);
        await take('order:1');
        expect(await backend.waiters('order:1')).toStrictEqual([]);
      });
    });

    describe('forceRelease', () => {
      it('ends the lock that was seen, whose holder can neither extend nor release it', async () => {
        const lock = await take('order:1');
        expect(await other.forceRelease('order:1', { fence: lock.fence, ...WHY })).toStrictEqual({
          released: true,
        });
        expect(await backend.isLocked({ key: 'order:1' })).toBe(false);
        expect((await lock.extend(TTL_MS)).ok).toBe(false);
        expect((await backend.release({ lockId: lock.lockId })).ok).toBe(false);
      });

      it('lets the next waiter in, whose fence is higher', async () => {
        const { fence } = await take('order:1');
        const first = await wait('order:1', other);
        const second = await wait('order:1');
        await backend.forceRelease('order:1', { fence, ...WHY });
        expect((await second()).ok).toBe(false);
        expect(granted(await first()).fence > fence).toBe(true);
      });

      it('leaves a lock of another fence, and says whose it is now', async () => {
        const { fence, release } = await take('order:1').then((lock) => ({
          fence: lock.fence,
          release: () => lock.release(),
        }));
        await release();
        expect(await backend.forceRelease('order:1', { fence, ...WHY })).toStrictEqual({ released: false });
        const next = await take('order:1');
        expect(await other.forceRelease('order:1', { fence, ...WHY })).toStrictEqual({
          released: false,
          fence: next.fence,
        });
        expect((await next.extend(TTL_MS)).ok).toBe(true);
      });

      it('ends a lock that was handed over and not taken yet', async () => {
        const lock = await take('order:1');
        await wait('order:1', other);
        await lock.release();
        const [handed] = await allOf(backend);
        expect(handed?.key).toBe('order:1');
        const { fence } = handed as ListedLock;
        expect(await backend.forceRelease('order:1', { fence, ...WHY })).toStrictEqual({ released: true });
      });

      it('ends all keys of a lock, by any of them, and lets in who waits for another', async () => {
        const keys = ['{u}:a', '{u}:b', '{u}:c'];
        const lock = granted(await backend.acquire({ keys, ttlMs: TTL_MS }));
        const attempt = await wait('{u}:c', other);
        expect(await backend.forceRelease('{u}:b', { fence: lock.fence, ...WHY })).toStrictEqual({
          released: true,
        });
        expect((await lock.extend(TTL_MS)).ok).toBe(false);
        expect((await attempt()).ok).toBe(true);
        expect(keysOf(await allOf(backend))).toStrictEqual(['{u}:c']);
      });

      it('of two operators frees one lock, and never that of the one who comes next', async () => {
        for (let i = 0; i < 20; i++) {
          const lock = await take('order:1');
          const attempt = await wait('order:1', other);
          const next = lock.release().then(attempt);
          const results = await Promise.all([
            backend.forceRelease('order:1', { fence: lock.fence, ...WHY }),
            other.forceRelease('order:1', { fence: lock.fence, ...WHY }),
            lock.extend(TTL_MS),
          ]);
          expect(
            results.slice(0, 2).filter((each) => 'released' in each && each.released).length,
          ).toBeLessThan(2);
          const held = granted(await next);
          expect(held.fence > lock.fence).toBe(true);
          expect(await held.release()).toStrictEqual({ ok: true });
        }
      });

      it.each([
        {},
        { fence: '1' },
        { fence: '000000000000001' },
        { fence: '000000000000001', reason: '' },
        { fence: '000000000000001', reason: 'x'.repeat(201) },
        { fence: '000000000000001', reason: 'x', by: '' },
        { fence: '000000000000001', reason: 'x', force: true },
      ])('refuses %j', async (options) => {
        await expect(backend.forceRelease('order:1', options as never)).rejects.toMatchObject({
          code: 'InvalidArgument',
        });
      });
    });
  });
}
