import type { FenceGuard } from '../../lib/lock/fence-guard.js';
import { LockError } from '../../lib/lock/lock.errors.js';

const [EARLIER, LATER] = ['000000000000007', '000000000000008'];
const [ANN, BOB] = ['A'.repeat(22), 'B'.repeat(22)];
const resource = 'order:7';

/** What FenceGuard does, whatever it stands on. */
export function describeFences(name: string, setUp: () => Promise<FenceGuard>): void {
  describe(`FenceGuard on ${name}`, () => {
    let fences: FenceGuard;
    beforeEach(async () => {
      fences = await setUp();
    });
    const apply = (fence: string, lockId: string, value?: string) =>
      fences.apply({
        resource,
        fence,
        lockId,
        set: value === undefined ? undefined : { key: resource, value },
      });

    it('lets a holder write many times, and a later one after it', async () => {
      for (const fence of [EARLIER, EARLIER, LATER, LATER])
        expect(await apply(fence, fence === EARLIER ? ANN : BOB)).toStrictEqual({ ok: true });
    });

    it('refuses a holder after a later one, and writes nothing for it', async () => {
      expect(await apply(LATER, BOB, 'by bob')).toStrictEqual({ ok: true });
      expect(await apply(EARLIER, ANN, 'by ann')).toStrictEqual({ ok: false, lastFence: LATER });
      expect(await fences.get(resource)).toBe('by bob');
      expect(await apply(LATER, BOB, 'by bob again')).toStrictEqual({ ok: true });
      expect(await fences.get(resource)).toBe('by bob again');
    });

    it('refuses a second holder of the same fence', async () => {
      expect(await apply(EARLIER, ANN)).toStrictEqual({ ok: true });
      expect(await apply(EARLIER, BOB)).toStrictEqual({ ok: false, lastFence: EARLIER });
    });

    it('lets one of 50 at once be the last, and its value stands', async () => {
      const writers = Array.from({ length: 50 }, (_, i) => String(i + 100).padStart(15, '0'));
      await Promise.all(
        [...writers].sort(() => Math.random() - 0.5).map((fence) => apply(fence, ANN, `by ${fence}`)),
      );
      expect(await fences.get(resource)).toBe(`by ${writers.at(-1)}`);
      expect(await apply(EARLIER, ANN)).toStrictEqual({ ok: false, lastFence: writers.at(-1) });
    });

    it('keeps resources apart, whatever their names hold, and knows two spellings of one', async () => {
      const names = ['a', 'a}', '{a}', '{a}:b', '{a}b', '{}a', 'a:b', 'é', 'x'.repeat(512)];
      for (const each of names)
        expect(
          await fences.apply({ resource: each, fence: EARLIER, lockId: each === 'a' ? ANN : BOB }),
        ).toEqual({
          ok: true,
        });
      expect(await fences.apply({ resource: 'e\u0301', fence: EARLIER, lockId: ANN })).toMatchObject({
        ok: false,
      });
    });

    it('reads what was set, byte for byte, and null where nothing was', async () => {
      expect(await fences.get('nothing')).toBeNull();
      for (const value of ['', 'ü🔒\u0000', '{"a":[]}', ' '.repeat(100_000)]) {
        expect(await apply(LATER, BOB, value)).toStrictEqual({ ok: true });
        expect(await fences.get(resource)).toBe(value);
      }
    });

    const valid = { resource, fence: EARLIER, lockId: ANN };
    it.each([
      ['no call at all', undefined, /options must be an object/],
      ['an empty resource', { ...valid, resource: '' }, /^resource must not be empty/],
      ['a long resource', { ...valid, resource: 'x'.repeat(513) }, /^resource must be at most 512/],
      ['a fence that is a number', { ...valid, fence: 7 }, /^fence must be 15 digits/],
      ['a short fence', { ...valid, fence: '7' }, /^fence must/],
      ['a fence with a newline', { ...valid, fence: `${EARLIER}\n` }, /^fence must/],
      ['a lockId of another form', { ...valid, lockId: 'x' }, /^lockId must/],
      ['a misspelt option', { ...valid, sett: {} }, /sett is not an option/],
      ['a set without a key', { ...valid, set: { value: 'x' } }, /^set\.key must be a string/],
      ['a set whose value is an object', { ...valid, set: { key: 'k', value: {} } }, /^set\.value must/],
      [
        'a misspelt part of set',
        { ...valid, set: { key: 'k', value: '', ttl: 1 } },
        /set.ttl is not an option/,
      ],
      [
        'a record of a lock as the key',
        { ...valid, set: { key: 'syncguard:x', value: '' } },
        /belong to SyncGuard/,
      ],
      [
        'a name of ours as the key',
        { ...valid, set: { key: 'syncguard/x', value: '' } },
        /belong to SyncGuard/,
      ],
      [
        'a resource that was built from a missing value',
        { ...valid, resource: 'order:undefined' },
        /^resource has the part "undefined"/,
      ],
      [
        'a key that was built from a missing value',
        { ...valid, set: { key: 'order:undefined', value: '' } },
        /^set\.key has the part "undefined"/,
      ],
    ])('refuses %s', async (_, call, message) => {
      const failed = await fences.apply(call as never).catch((error: unknown) => error);
      expect(failed).toBeInstanceOf(LockError);
      expect(failed).toMatchObject({
        code: 'InvalidArgument',
        message: expect.stringMatching(message) as string,
      });
      expect(await apply(EARLIER, BOB)).toStrictEqual({ ok: true }); // It has noted nothing.
    });
  });
}
