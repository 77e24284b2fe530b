import {
  calculateRedisServerTimeMs,
  FENCE_THRESHOLDS,
  formatFence,
  hashKey,
  isLive,
  makeStorageKey,
  TIME_TOLERANCE_MS,
} from 'nestjs-syncguard';

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
    expect(FENCE_THRESHOLDS).toStrictEqual({ WARN: '090000000000000', MAX: '900000000000000' });
  });
});
