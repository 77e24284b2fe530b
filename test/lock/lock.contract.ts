import * as fc from 'fast-check';
import type { LockHandle, AcquireResult, LockBackend } from 'nestjs-syncguard';
import { LockError } from 'nestjs-syncguard';
import { FENCE_THRESHOLDS } from 'nestjs-syncguard/compat';
import { inspect } from 'node:util';

/** A backend whose server may stand still a while. */
export const PATIENT = { commandTimeoutMs: 10_000 };

/** A backend under test, and the clock that ends its locks. */
export interface LockBackendUnderTest {
  readonly backend: LockBackend;
  advance(ms: number): void;
}

const TTL_MS = 30_000;
const ABSENT_ID = 'A'.repeat(22);

export function granted(result: AcquireResult): LockHandle {
  if (!result.ok) throw new Error('the lock was not granted');
  return result;
}

const codeOf = (promise: Promise<unknown>): Promise<string> =>
  promise.then(
    () => 'no error',
    (error: unknown) => (error instanceof LockError ? error.code : `not a LockError: ${String(error)}`),
  );

/** The error that a call ends with. */
export const failure = (promise: Promise<unknown>): Promise<LockError> =>
  promise.then(
    () => Promise.reject(new Error('it did not fail')),
    (error: unknown) => error as LockError,
  );

/** What every LockBackend does, whatever it stands on. */
export function describeLockBackend(name: string, setUp: () => Promise<LockBackendUnderTest>): void {
  describe(`LockBackend on ${name}`, () => {
    let backend: LockBackend;
    let advance: (ms: number) => void;
    const take = async (key: string, ttlMs = TTL_MS): Promise<LockHandle> =>
      granted(await backend.acquire({ key, ttlMs }));

    beforeEach(async () => {
      ({ backend, advance } = await setUp());
    });

    describe('acquire', () => {
      it('grants a free lock with an id, a fence and an expiry', async () => {
        const before = Date.now();
        const lock = await take('order:1');
        expect(lock.lockId).toMatch(/^[A-Za-z0-9_-]{22}$/);
        expect(lock.fence).toMatch(/^\d{15}$/);
        expect(lock.expiresAtMs).toBeGreaterThanOrEqual(before + TTL_MS);
        expect(lock.expiresAtMs).toBeLessThanOrEqual(Date.now() + TTL_MS);
      });

      it('answers a held lock with a value that says nothing of its holder', async () => {
        await take('order:1');
        expect(await backend.acquire({ key: 'order:1', ttlMs: TTL_MS })).toStrictEqual({
          ok: false,
          reason: 'locked',
        });
      });

      it('grants one of many who ask at once', async () => {
        const results = await Promise.all(
          Array.from({ length: 100 }, () => backend.acquire({ key: 'order:1', ttlMs: TTL_MS })),
        );
        expect(results.filter(({ ok }) => ok)).toHaveLength(1);
      });

      it('takes two spellings of one character for one key', async () => {
        await take('caf\u00e9');
        expect((await backend.acquire({ key: 'cafe\u0301', ttlMs: TTL_MS })).ok).toBe(false);
      });

      it('makes a new id for every grant', async () => {
        const ids = new Set<string>();
        for (let i = 0; i < 600; i++) ids.add((await take(`order:${i}`)).lockId);
        expect(ids.size).toBe(600);
      });
    });

    describe('fences', () => {
      it('rise with every grant of a key, over releases and expiries', async () => {
        const fences: string[] = [];
        for (let i = 0; i < 20; i++) {
          const lock = await take('order:1', 1_000);
          fences.push(lock.fence);
          if (i % 2) await lock.release();
          else advance(1_001);
        }
        expect(fences).toStrictEqual([...new Set(fences)].sort());
      });

      it('rise also while the clock steps back', async () => {
        const first = await take('order:1');
        await first.release();
        advance(-60_000);
        expect((await take('order:1')).fence > first.fence).toBe(true);
      });

      it('keep up with the clock in tenths of a ms, far below the warning', async () => {
        const before = Date.now();
        const { fence, expiresAtMs } = await take('order:1');
        const atMs = Number(fence) / 10;
        expect(atMs).toBeGreaterThanOrEqual(before);
        expect(atMs).toBeLessThan(expiresAtMs - TTL_MS + 1);
        expect(fence < FENCE_THRESHOLDS.WARN).toBe(true);
      });
    });

    describe('release', () => {
      // That nothing more is sent is shown in test/lock/lock.fault.spec.ts.
      it('is remembered by the handle, for what comes after and at once, and for dispose', async () => {
        const lock = await take('order:1');
        const answers = await Promise.all([lock.release(), lock.release(), lock.release()]);
        expect(answers).toStrictEqual([{ ok: true }, { ok: false }, { ok: false }]);
        expect(await lock.extend(TTL_MS)).toStrictEqual({ ok: false });
        await lock[Symbol.asyncDispose]();
        await take('order:1');
      });

      it('works by the bare id', async () => {
        const { lockId } = await take('order:1');
        expect(await backend.release({ lockId })).toStrictEqual({ ok: true });
        expect(await backend.isLocked({ key: 'order:1' })).toBe(false);
      });

      it('says no the second time', async () => {
        const lock = await take('order:1');
        await lock.release();
        expect(await lock.release()).toStrictEqual({ ok: false });
        expect(await backend.release({ lockId: lock.lockId })).toStrictEqual({ ok: false });
      });

      it('says no for an expired lock, without a throw', async () => {
        const lock = await take('order:1', 1_000);
        advance(1_001);
        expect(await lock.release()).toStrictEqual({ ok: false });
      });

      it('leaves the lock of the next owner alone', async () => {
        const first = await take('order:1', 1_000);
        advance(1_001);
        const second = await take('order:1');
        expect(await first.release()).toStrictEqual({ ok: false });
        expect(await backend.release({ lockId: first.lockId })).toStrictEqual({ ok: false });
        expect((await second.extend(TTL_MS)).ok).toBe(true);
      });

      it('says no for an id that was never given', async () => {
        expect(await backend.release({ lockId: ABSENT_ID })).toStrictEqual({ ok: false });
      });

      it('is not fooled by a key that equals a lockId', async () => {
        const { lockId } = await take('order:1');
        const other = await take(lockId);
        expect(await backend.release({ lockId })).toStrictEqual({ ok: true });
        expect(await backend.isLocked({ key: lockId })).toBe(true);
        await other.release();
      });
    });

    describe('extend', () => {
      it('replaces the rest of the life, and may shorten it', async () => {
        const lock = await take('order:1', 10_000);
        const longer = await lock.extend(60_000);
        expect(longer).toStrictEqual({ ok: true, expiresAtMs: lock.expiresAtMs });
        advance(30_000);
        expect(await backend.isLocked({ key: 'order:1' })).toBe(true);
        await lock.extend(1_000);
        advance(1_001);
        expect(await backend.isLocked({ key: 'order:1' })).toBe(false);
      });

      it('works by the bare id, which still finds the lock afterwards', async () => {
        const { lockId } = await take('order:1', 1_000);
        expect((await backend.extend({ lockId, ttlMs: 60_000 })).ok).toBe(true);
        advance(30_000);
        expect((await backend.lookup({ lockId }))?.expiresAtMs).toBeGreaterThan(0);
        expect((await backend.release({ lockId })).ok).toBe(true);
      });

      it('keeps id, fence and the time of acquisition', async () => {
        const lock = await take('order:1');
        const before = await backend.getByIdRaw(lock.lockId);
        advance(1_000);
        await lock.extend(TTL_MS);
        expect(await backend.getByIdRaw(lock.lockId)).toStrictEqual({
          ...before,
          expiresAtMs: lock.expiresAtMs,
        });
      });

      it('never brings an expired lock back', async () => {
        const lock = await take('order:1', 1_000);
        advance(1_001);
        expect(await lock.extend(TTL_MS)).toStrictEqual({ ok: false });
        expect(await backend.isLocked({ key: 'order:1' })).toBe(false);
      });

      it('says no after another owner came and went', async () => {
        const first = await take('order:1', 1_000);
        advance(1_001);
        await (await take('order:1')).release();
        expect(await first.extend(TTL_MS)).toStrictEqual({ ok: false });
        expect(await backend.extend({ lockId: first.lockId, ttlMs: TTL_MS })).toStrictEqual({ ok: false });
      });
    });

    describe('isLocked and lookup', () => {
      it('see a live lock, and none before and after', async () => {
        expect(await backend.isLocked({ key: 'order:1' })).toBe(false);
        expect(await backend.lookup({ key: 'order:1' })).toBeNull();
        const lock = await take('order:1', 1_000);
        expect(await backend.isLocked({ key: 'order:1' })).toBe(true);
        expect(await backend.lookup({ key: 'order:1' })).not.toBeNull();
        advance(1_001);
        expect(await backend.isLocked({ key: 'order:1' })).toBe(false);
        expect(await backend.lookup({ key: 'order:1' })).toBeNull();
        expect(await backend.lookup({ lockId: lock.lockId })).toBeNull();
      });

      it('give facts by key and by id, with nothing raw in them', async () => {
        const lock = await take('payment:123');
        const info = await backend.lookup({ key: 'payment:123' });
        expect(info).toStrictEqual({
          keyHash: 'a422dabee27fcc7ad506f372',
          lockIdHash: expect.stringMatching(/^[0-9a-f]{24}$/) as unknown,
          expiresAtMs: lock.expiresAtMs,
          acquiredAtMs: lock.expiresAtMs - TTL_MS,
          fence: lock.fence,
        });
        expect(await backend.lookup({ lockId: lock.lockId })).toStrictEqual(info);
        const everything = inspect(info, { showHidden: true, depth: null });
        expect(everything).not.toContain('payment:123');
        expect(everything).not.toContain(lock.lockId);
      });

      it('give key and id where they are asked for raw', async () => {
        const { lockId } = await take('payment:123');
        expect(await backend.getByKeyRaw('payment:123')).toMatchObject({ key: 'payment:123', lockId });
        expect(await backend.getByIdRaw(lockId)).toStrictEqual(await backend.getByKeyRaw('payment:123'));
        expect(await backend.getByKeyRaw('payment:124')).toBeNull();
        expect(await backend.getByIdRaw(ABSENT_ID)).toBeNull();
      });

      it('change nothing', async () => {
        const lock = await take('order:1');
        const before = await backend.getByKeyRaw('order:1');
        await backend.isLocked({ key: 'order:1' });
        await backend.lookup({ lockId: lock.lockId });
        expect(await backend.getByKeyRaw('order:1')).toStrictEqual(before);
      });
    });

    describe('keys', () => {
      it.each([
        'id:order',
        `id:${ABSENT_ID}`,
        'fence:order',
        'fence:syncguard:order:1',
        'a b\n"c"\\',
        '","lockId":"AAAAAAAAAAAAAAAAAAAAAA","x":"',
        '{tag}:1',
        'プロジェクト:🔒',
        'x'.repeat(512),
        '\u0000',
        '__proto__',
      ])('%j is a key like any other', async (key) => {
        const lock = await take(key);
        expect((await backend.acquire({ key, ttlMs: TTL_MS })).ok).toBe(false);
        expect(await backend.getByIdRaw(lock.lockId)).toMatchObject({ key, fence: lock.fence });
        expect((await lock.extend(TTL_MS)).ok).toBe(true);
        expect((await backend.release({ lockId: lock.lockId })).ok).toBe(true);
        expect(await backend.isLocked({ key })).toBe(false);
      });

      it('of every kind lock, look up and release', async () => {
        await fc.assert(
          fc.asyncProperty(fc.string({ unit: 'grapheme', minLength: 1, maxLength: 40 }), async (key) => {
            const lock = await take(key);
            expect((await backend.lookup({ lockId: lock.lockId }))?.fence).toBe(lock.fence);
            expect(await lock.release()).toStrictEqual({ ok: true });
          }),
          { numRuns: 200 },
        );
      });
    });

    describe('bad input', () => {
      it.each<[string, unknown]>([
        ['empty', ''],
        ['of 513 bytes', 'x'.repeat(513)],
        ['of 513 bytes in 171 characters', '鍵'.repeat(171)],
        ['half of a character', 'a\ud800'],
        ['undefined', undefined],
        ['a number', 7],
        ['an object', {}],
      ])('a key that is %s is an InvalidArgument', async (_, key) => {
        const wrong = key as string;
        expect(await codeOf(backend.acquire({ key: wrong, ttlMs: TTL_MS }))).toBe('InvalidArgument');
        expect(await codeOf(backend.isLocked({ key: wrong }))).toBe('InvalidArgument');
        expect(await codeOf(backend.lookup({ key: wrong }))).toBe('InvalidArgument');
        expect(await codeOf(backend.getByKeyRaw(wrong))).toBe('InvalidArgument');
      });

      it.each([0, -1, 1.5, NaN, Infinity, 2 ** 31, '1000', undefined, null])(
        'a TTL of %p is an InvalidArgument',
        async (ttlMs) => {
          expect(await codeOf(backend.acquire({ key: 'order:1', ttlMs: ttlMs as number }))).toBe(
            'InvalidArgument',
          );
          expect(await codeOf(backend.extend({ lockId: ABSENT_ID, ttlMs: ttlMs as number }))).toBe(
            'InvalidArgument',
          );
        },
      );

      it.each(['account:undefined', 'order:null:lines', 'a/NaN', 'user:[object Object]'])(
        'a key that was built from a missing value is an InvalidArgument: %s',
        async (key) => {
          const calls = [
            () => take(key),
            () => backend.acquire({ keys: ['order:1', key], ttlMs: TTL_MS }),
            () => backend.isLocked({ key }),
            () => backend.lookup({ key }),
            () => backend.getByKeyRaw(key),
          ];
          for (const call of calls)
            await expect(call()).rejects.toMatchObject({
              code: 'InvalidArgument',
              summary: expect.stringContaining('stands for a missing value') as string,
            });
        },
      );

      it.each(['undefined', 'null', 'account:undefinedX', 'account:nullable', 'x:NaN2'])(
        'a key that only looks like that is legal: %s',
        async (key) => expect((await take(key)).ok).toBe(true),
      );

      it('the longest TTL is legal', async () => {
        expect((await take('order:1', 2 ** 31 - 1)).ok).toBe(true);
      });

      it.each(['', 'short', 'A'.repeat(23), 'A'.repeat(21) + '*', 'A'.repeat(21) + '\n', undefined, 7, {}])(
        'a lockId of %p is an InvalidArgument',
        async (lockId) => {
          const wrong = lockId as string;
          expect(await codeOf(backend.release({ lockId: wrong }))).toBe('InvalidArgument');
          expect(await codeOf(backend.extend({ lockId: wrong, ttlMs: TTL_MS }))).toBe('InvalidArgument');
          expect(await codeOf(backend.getByIdRaw(wrong))).toBe('InvalidArgument');
        },
      );
    });

    describe('await using', () => {
      it('releases at the end of the block', async () => {
        {
          await using lock = await take('order:1');
          expect(lock.ok).toBe(true);
          expect(await backend.isLocked({ key: 'order:1' })).toBe(true);
        }
        expect(await backend.isLocked({ key: 'order:1' })).toBe(false);
      });
    });
  });
}
