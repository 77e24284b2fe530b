import { hashKey } from 'nestjs-syncguard';
import {
  calculateRedisServerTimeMs,
  FENCE_THRESHOLDS,
  formatFence,
  isLive,
  makeStorageKey,
  TIME_TOLERANCE_MS,
} from 'nestjs-syncguard/compat';

describe('makeStorageKey', () => {
  it.each([
    [['test', 'x'.repeat(500), 100, 0], 'test:almAngpz1zHVEeEfkwDrhg'],
    [['', 'x'.repeat(500), 100, 0], 'w4wr8wVcUWqYrF2X8w58Ng'],
    [['syncguard', 'order:1', 1000, 26], 'syncguard:order:1'],
    [['syncguard::', 'order:1'], 'syncguard:order:1'],
  ] as const)('%j is %s', ([prefix, key, limit, reserve], expected) => {
    expect(makeStorageKey(prefix, key, limit, reserve)).toBe(expected);
  });

  it('counts bytes, not characters, and keeps the reserve free', () => {
    expect(makeStorageKey('p', '鍵'.repeat(3), 11, 0)).toBe('p:' + '鍵'.repeat(3));
    expect(makeStorageKey('p', '鍵'.repeat(3), 11, 1)).toMatch(/^p:[\w-]{22}$/);
  });

  it('makes one key of two spellings of a character, also where it hashes', () => {
    expect(makeStorageKey('p', 'cafe\u0301')).toBe('p:caf\u00e9');
    const [composed, decomposed] = ['\u00e9', 'e\u0301'].map((e) =>
      makeStorageKey('p', e.repeat(60), 100, 0),
    );
    expect(decomposed).toBe(composed);
  });

  it.each<[string, unknown]>([
    ['empty', ''],
    ['of 513 bytes', 'x'.repeat(513)],
    ['half of a character', 'a\ud800'],
    ['undefined', undefined],
    ['a fence of nothing that it made', `fence:${'x'.repeat(1_001)}`],
  ])('refuses a key that is %s', (_, key) => {
    expect(() => makeStorageKey('p', key as string)).toThrow(/^key (must|has)/);
  });

  it('makes the fence key of the longest key', () => {
    const record = makeStorageKey('p'.repeat(128), 'x'.repeat(512));
    expect(makeStorageKey('p'.repeat(128), `fence:${record}`)).toContain(`:fence:${record}`);
  });
});

describe('hashKey', () => {
  it.each([
    ['a', '0000006100000123000002a7'],
    ['test-key', 'bb93bea4cb05bd4c690a29dc'],
    ['payment:123', 'a422dabee27fcc7ad506f372'],
    ['cafe\u0301', '002e7a21248b3503a22cdb87'],
    ['caf\u00e9', '002e7a21248b3503a22cdb87'],
    ['🔒锁鍵', '659c61c9d839a7dbed0876ff'],
  ])('of %j is %s', (key, expected) => {
    expect(hashKey(key)).toBe(expected);
  });
});

describe('time and fences', () => {
  it('reads the reply of TIME', () => {
    expect(calculateRedisServerTimeMs(['1700000000', '123999'])).toBe(1_700_000_000_123);
  });

  it('keeps a record live for the tolerance after its expiry', () => {
    expect(isLive(1_000, 1_000 + TIME_TOLERANCE_MS - 1, TIME_TOLERANCE_MS)).toBe(true);
    expect(isLive(1_000, 1_000 + TIME_TOLERANCE_MS, TIME_TOLERANCE_MS)).toBe(false);
  });

  it('writes fences in 15 digits, whose order as text is their order as numbers', () => {
    expect(formatFence(7)).toBe('000000000000007');
    expect(formatFence(90_000_000_000_000n)).toBe(FENCE_THRESHOLDS.WARN);
    expect(formatFence(999_999_999_999_999)).toBe('9'.repeat(15));
    expect(formatFence(0)).toBe('0'.repeat(15));
    expect(FENCE_THRESHOLDS).toStrictEqual({ WARN: '090000000000000', MAX: '900000000000000' });
  });

  it.each([-1, -1n, 42.9, 1e15, 10n ** 15n, NaN, Infinity, '7', undefined])(
    'refuses %p as a fence',
    (fence) => {
      expect(() => formatFence(fence as number)).toThrow(/A fence must be an integer from 0/);
    },
  );
});
