import { type Folding, foldText } from '../../lib/limit/client-text.js';
import { keyPath, normalizeAddress, valueAt } from '../../lib/limit/key-parts.js';
import { joinKeyParts } from '../../lib/transport/request-parts.js';
import { KeyTexts } from '../../lib/limit/key-texts.js';
import { isPlainKey } from '../../lib/core/validate.js';

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
    ['::ffff:0:0', '0.0.0.0'],
    ['64:ff9b::192.0.2.33', '192.0.2.33'],
    ['64:FF9B::c000:221', '192.0.2.33'],
    ['[64:ff9b::192.0.2.33]:443', '192.0.2.33'],
    ['64:ff9b:1::192.0.2.33', '64:ff9b:1:0::/64'],
    ['64:ff9b:0:0:0:1:192.0.2.33', '64:ff9b:0:0::/64'],
    ['64:ff9c::192.0.2.33', '64:ff9c:0:0::/64'],
    ['::203.0.113.7', '203.0.113.7'],
    ['::cb00:7107', '203.0.113.7'],
    ['::1:203.0.113.7', '0:0:0:0::/64'],
    ['1::203.0.113.7', '1:0:0:0::/64'],
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

const textOf = (
  value: unknown,
  part = 'body.email',
  namesAccount = false,
  texts = new KeyTexts(undefined),
): string | undefined => texts.of(keyPath(part), value, namesAccount);

describe('a value of a request', () => {
  const request = {
    body: {
      email: ' Ann@Example.ORG ',
      n: 7,
      yes: true,
      list: ['a'],
      empty: '',
      blank: ' \t\u200b',
      nothing: null,
      long: 'x'.repeat(5_000),
      half: 'a\ud800',
    },
    user: { id: 42, name: 'Ann' },
    session: { id: ' S\u200b ' },
    headers: { 'x-key': ' Key' },
  };

  it.each([
    ['body.email', 'ann@example.org'],
    ['body.n', '7'],
    ['body.yes', 'true'],
    ['headers.X-Key', 'Key'],
    ['user.id', '42'],
    ['user.name', 'Ann'],
    ['session.id', ' S\u200b '],
    ['body.list', 'a'],
    ['body.empty', undefined],
    ['body.blank', undefined],
    ['body.nothing', undefined],
    ['body.missing.deeper', undefined],
    ['query.q', undefined],
    ['body.__proto__.toString', undefined],
    ['body.constructor.name', undefined],
    ['body.half', 'a\ufffd'],
  ])('at %s counts as %p', (path, expected) => {
    expect(textOf(valueAt(request, keyPath(path)), path)).toBe(expected);
  });

  it('counts by its hash if it is long, all of it', () => {
    expect(textOf(request.body.long)).toMatch(/^[0-9a-f]{64}$/);
    expect(textOf(`${request.body.long}y`)).not.toBe(textOf(request.body.long));
  });

  it('counts together with all that is no text, with one warning', () => {
    const warn = jest.fn();
    const texts = new KeyTexts(undefined, warn);
    const deep: unknown = Array.from({ length: 9_000 }).reduce((inner: unknown) => [inner], 'ann');
    const values = [[], ['a', 'b'], [['a']], [null], {}, { a: 1 }, { toString: 'ann' }, deep, new Date(0)];
    const counted = values.map((value) => textOf(value, 'body.email', false, texts));
    expect(new Set(counted).size).toBe(1);
    expect(counted[0]).not.toBe(textOf('no text'));
    expect(warn).toHaveBeenCalledTimes(values.length);
    expect(new Set(warn.mock.calls.map(([message]) => (message as string).split(':')[0]))).toEqual(
      new Set(['RATE_LIMIT_NO_TEXT']),
    );
  });

  describe('with `normalize`', () => {
    const seen: unknown[][] = [];
    const texts = new KeyTexts((value, part, folded) => {
      seen.push([value, part, folded]);
      if (part === 'headers.x-key') return undefined;
      if (part === 'body.name') return (value as string).trim();
      const text = Array.isArray(value) ? (value as unknown[]).join('+') : value;
      return typeof text === 'string' ? text.replace(/\+.*@/, '@') : undefined;
    });
    const normalized = (value: unknown, part?: string): string | undefined =>
      textOf(value, part, true, texts);

    it('gets the raw value, the part and the folded text, and what it gives counts', () => {
      seen.length = 0;
      expect(normalized(' Ánn+spam@Example.org')).toBe(' Ánn@Example.org');
      expect(normalized(['a', 'b'])).toBe('a+b');
      expect(seen).toEqual([
        [' Ánn+spam@Example.org', 'body.email', 'ann+spam@example.org'],
        [['a', 'b'], 'body.email', undefined],
      ]);
    });

    it('leaves a value to our folding by undefined or an empty text', () => {
      expect(normalized(' Key', 'headers.x-key')).toBe('Key');
      expect(normalized('+@', 'body.email')).toBe('@');
      expect(normalized({})).toBe(textOf({}));
      expect(normalized('  ', 'body.name')).toBeUndefined();
    });

    it('is not asked about values of the app', () => {
      seen.length = 0;
      expect(normalized('U+1@x', 'user.name')).toBe('U+1@x');
      expect(seen).toEqual([]);
    });

    it('that throws, or gives no text, leaves the value to our folding, with a warning', () => {
      const warn = jest.fn();
      const broken = new KeyTexts((value) => (value as string).toLowerCase(), warn);
      const wrong = new KeyTexts((() => 7) as never, warn);
      expect(textOf({}, 'body.email', false, broken)).toBe(textOf({}));
      expect(textOf(7, 'body.email', false, broken)).toBe('7');
      expect(textOf('Ann', 'body.email', false, wrong)).toBe('ann');
      expect(warn.mock.calls.map(([message]) => (message as string).split(':')[0])).toEqual(
        expect.arrayContaining(['RATE_LIMIT_NORMALIZE_THREW']),
      );
    });
  });
});

describe('foldText', () => {
  const SAME = [
    'ann@example.org',
    'ANN@EXAMPLE.ORG',
    ' ann@example.org\n',
    'ann@ex\u00adample.org',
    'a\u200bnn@exam\u2060ple.org',
    'ann@example.org\u3164',
    'ann@example.org\uffa0',
    'ann @ example . org',
    'ａｎｎ＠ｅｘａｍｐｌｅ．ｏｒｇ',
    'ⓐⓝⓝ@example.org',
    '𝒶nn@example.org',
    'ann@example.org\ufe0f',
    'ann@example.org\u{e0041}',
    'a\u034fnn@example.org',
    '\ufeffann@example.org',
    'ann@example.org\u2800',
    'ann@example.org\u{1d173}',
    `ann@example.org${'\u200b'.repeat(1_025)}`,
    `${'\u{e0061}'.repeat(9_000)}ann@example.org`,
  ];

  it.each(['text', 'account'] as const)('makes one %s of all spellings', (folding) => {
    expect(new Set(SAME.map((text) => foldText(text, folding)))).toEqual(new Set(['ann@example.org']));
  });

  it('keeps the case of headers', () => {
    expect(foldText(' Key\u200b1', 'header')).toBe('Key1');
    expect(foldText('Key1', 'header')).toBe('Key1');
  });

  it('leaves out the accents of accounts only', () => {
    const accented = [
      'ánn',
      'a\u0301nn',
      'ann\u0332',
      'ãñṉ',
      'ann\u1dc4',
      'ann\u20dd',
      `ann${'\u0301'.repeat(3_000)}`,
    ];
    expect(new Set(accented.map((text) => foldText(text, 'account')))).toEqual(new Set(['ann']));
    expect(foldText('ánn', 'text')).toBe('ánn');
    expect(foldText('a\u0301nn', 'text')).toBe('ánn');
  });

  it('takes the two lower cases of a letter for one in accounts', () => {
    expect(foldText('οδος', 'account')).toBe(foldText('ΟΔΟΣ', 'account'));
    expect(foldText('οδοσ', 'account')).toBe(foldText('ΟΔΟΣ', 'account'));
    expect(foldText('İsmail', 'account')).toBe('ismail');
  });

  it('keeps the marks of Indic scripts, which are letters', () => {
    expect(foldText('कि', 'account')).not.toBe(foldText('क', 'account'));
    expect(foldText('कि', 'account')).not.toBe(foldText('कु', 'account'));
  });

  it('hashes what is long without what is not seen', () => {
    const long = 'é'.repeat(1_025);
    expect(foldText(long, 'text')).toMatch(/^[0-9a-f]{64}$/);
    expect(foldText(`\u200b${long}\u00ad`, 'text')).toBe(foldText(long, 'text'));
    expect(foldText(`${'x'.repeat(9_000)}1`, 'text')).not.toBe(foldText(`${'x'.repeat(9_000)}2`, 'text'));
    expect(foldText(`${'x'.repeat(20_000)}\u200b1`, 'text')).toBe(foldText(`${'x'.repeat(20_000)}1`, 'text'));
  });

  it('leaves out every character that Unicode calls a control, a format, ignorable or a blank, and no letter', () => {
    const unseen = /[\p{Default_Ignorable_Code_Point}\p{Cf}\p{Cc}\p{White_Space}]/u;
    const wrong: string[] = [];
    for (let code = 0; code < 0x11_0000; code++) {
      if (code >= 0xd800 && code < 0xe000) continue;
      const char = String.fromCodePoint(code);
      const isLeftOut = foldText(`a${char}b`, 'header') === 'ab';
      if (isLeftOut !== (unseen.test(char) || code === 0x2800)) wrong.push(code.toString(16));
    }
    expect(wrong).toEqual([]);
  });

  it.each<[Folding, string]>([
    ['text', '\u0301\u0316'],
    ['account', '\u0301\u0316'],
    ['text', '\u0345\u0334'],
    ['account', '\u094d\u093c'],
  ])('folds a %s of 100 kB of combining marks in time that grows as its length does', (folding, marks) => {
    const bestMs = [Infinity, Infinity];
    const texts = [10_000, 100_000].map((bytes) => marks.repeat(bytes / Buffer.byteLength(marks)));
    const growth = (): number => bestMs[1]! / bestMs[0]!;
    // The best of the runs of 5 s: the machine has other work as well. A square would be a growth of 100.
    const untilMs = performance.now() + 5_000;
    do
      for (const [i, text] of texts.entries()) {
        const startMs = performance.now();
        foldText(text, folding);
        bestMs[i] = Math.min(bestMs[i]!, performance.now() - startMs);
      }
    while (growth() >= 20 && performance.now() < untilMs);
    expect(growth()).toBeLessThan(20);
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

  it.each(['é'.repeat(1_024), 'ann:null:', '/undefined/', '\u0301'])(
    'is a plain key, whatever a part holds: %j',
    (value) => {
      const key = joinKeyParts([
        ['ip', '203.0.113.7'],
        ['body.email', value],
      ]);
      expect(isPlainKey(key)).toBe(true);
      expect(key).toMatch(/^\[\["ip","203.0.113.7"\],\["body.email","[\w-]{43}"\]\]$/);
    },
  );

  it('is short enough for a key', () => {
    const many = Array.from({ length: 20 }, (_, i) => [`body.field${i}`, 'é'.repeat(50)] as const);
    expect(joinKeyParts(many)).toMatch(/^[\w-]{43}$/);
    expect(joinKeyParts([['body.email', 'x'.repeat(600)]])).toMatch(/"[\w-]{43}"/);
  });
});
