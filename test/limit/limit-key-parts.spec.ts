import { joinKeyParts, normalizeAddress, valueAt } from '../../lib/limit/route/key-parts.js';

describe('normalizeAddress', () => {
  it.each([
    ['203.0.113.7', '203.0.113.7'],
    ['203.0.113.7:51234', '203.0.113.7'],
    ['::ffff:203.0.113.7', '203.0.113.7'],
    ['::FFFF:cb00:7107', '203.0.113.7'],
    ['[::ffff:203.0.113.7]:443', '203.0.113.7'],
    ['2001:db8:1:2:3:4:5:6', '2001:db8:1:2::/64'],
    ['2001:DB8:1:2:ffff::9', '2001:db8:1:2::/64'],
    ['[2001:db8:1:2::1]:443', '2001:db8:1:2::/64'],
    ['fe80::1%eth0', 'fe80:0:0:0::/64'],
    ['::1', '0:0:0:0::/64'],
    ['::', '0:0:0:0::/64'],
    ['64:ff9b::192.0.2.33', '64:ff9b:0:0::/64'],
    ['', ''],
  ])('%s is %s', (address, expected) => {
    expect(normalizeAddress(address)).toBe(expected);
  });

  it.each([
    [32, '2001:db8::/32'],
    [48, '2001:db8:1234::/48'],
    [56, '2001:db8:1234:5600::/56'],
    [128, '2001:db8:1234:5678:9abc:def0:1:2/128'],
  ])('keeps %d bits', (bits, expected) => {
    expect(normalizeAddress('2001:db8:1234:5678:9abc:def0:1:2', bits)).toBe(expected);
  });

  it('makes one client of all addresses of a subscriber, and two of two', () => {
    const addresses = Array.from({ length: 100 }, (_, i) =>
      normalizeAddress(`2001:db8::${i.toString(16)}`, 64),
    );
    expect(new Set(addresses).size).toBe(1);
    expect(normalizeAddress('2001:db8:0:1::1', 64)).not.toBe(addresses[0]);
  });
});

describe('valueAt', () => {
  const request = {
    body: {
      email: ' Ann@Example.ORG ',
      n: 7,
      list: ['a'],
      empty: '',
      long: 'x'.repeat(5_000),
      half: 'a\ud800',
    },
    user: { id: 42, name: 'Ann' },
    headers: { 'x-key': 'Key' },
  };

  it.each([
    ['body.email', 'ann@example.org'],
    ['body.n', '7'],
    ['headers.x-key', 'key'],
    ['user.id', '42'],
    ['user.name', 'Ann'],
    ['body.list', 'a'],
    ['body.empty', undefined],
    ['body.missing.deeper', undefined],
    ['query.q', undefined],
    ['body.__proto__.toString', undefined],
    ['body.constructor.name', undefined],
    ['body.half', 'a\ufffd'],
  ])('%s is %p', (path, expected) => {
    expect(valueAt(request, path)).toBe(expected);
  });

  it('takes a long value by its hash, all of it', () => {
    expect(valueAt(request, 'body.long')).toHaveLength(43);
  });

  it('takes the two spellings of a letter for one', () => {
    expect(valueAt({ body: { name: 'Jose\u0301' } }, 'body.name')).toBe(
      valueAt({ body: { name: 'José' } }, 'body.name'),
    );
  });
});

describe('joinKeyParts', () => {
  it('is unambiguous, whatever the parts hold', () => {
    const keys = [
      joinKeyParts([
        ['ip', '1'],
        ['body.email', 'a'],
      ]),
      joinKeyParts([['ip', '1","body.email","a']]),
      joinKeyParts([['ip', '1\0a']]),
      joinKeyParts([
        ['body.email', '1'],
        ['ip', 'a'],
      ]),
    ];
    expect(new Set(keys).size).toBe(keys.length);
  });

  it('is short enough for a key', () => {
    expect(joinKeyParts([['body.email', 'é'.repeat(1_024)]])).toMatch(/^[\w-]{43}$/);
  });
});
