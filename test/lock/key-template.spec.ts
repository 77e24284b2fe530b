import 'reflect-metadata';
import { Injectable, Logger } from '@nestjs/common';
import { Test } from '@nestjs/testing';
import fc from 'fast-check';
import {
  currentLock,
  Lock,
  type LockContext,
  LockError,
  lockKey,
  SyncGuardModule,
  WithLock,
} from 'nestjs-syncguard';

const expectInvalid = (): unknown => expect.objectContaining({ code: 'InvalidArgument' });

describe('lockKey', () => {
  it.each([
    ['user:{0}', ['ann@x.org'], 'user:ann@x.org'],
    ['user:{0}', ['O\u2019Neill, Zo\u00eb & Co. (~42%)'], 'user:O\u2019Neill, Zo\u00eb & Co. (~42%25)'],
    ['user:{0}', ['Gro\u0308\u00dfe'], 'user:Gr\u00f6\u00dfe'],
    ['file:{0}', ['a/b c.pdf'], 'file:a/b c.pdf'],
    ['path/{0}/item/{1}', ['item-1', 'a/b'], 'path/item-1/item/a%2Fb'],
    ['seat:{0}:{1}', ['a:b', 7], 'seat:a%3Ab:7'],
    ['seat:{0}:order:{1}', ['rod', 7n], 'seat:rod:order:7'],
    ['{0}-{1}', ['a-b', 'c'], 'a%2Db-c'],
    ['{0} to {1}', ['A B', 'oslo'], 'A%20B to oslo'],
    ['{0}x{1}', ['axe', 'b'], 'a%78e' + 'xb'],
    ['{0}={1}', ['a\u2260b', 'c'], 'a%E2%89%A0b=c'],
    ['{{{0}}}:cart', ['{7}\u0000\u0085'], '{%7B7%7D%00%C2%85}:cart'],
    ['{0.id}:{1.user.name}', [{ id: true }, { user: { name: 1.5 } }], 'true:1.5'],
    ['cafe\u0301:{0}', ['x'], 'caf\u00e9:x'],
    ['nightly', [], 'nightly'],
  ])('of %j with %j is %j', (template, values, key) => {
    expect(lockKey(template, ...values)).toBe(key);
  });

  it.each(['', 'a{', 'a}', '{0}{1}', '{0}%{1}', '{0}2{1}', '{0}F%{1}', '{0}\u0301{1}', '{id}', undefined])(
    'refuses the template %j',
    (template) => {
      expect(() => lockKey(template as string, 'a', 'b')).toThrow(/^lockKey\(\): the key template/);
      expect(() => lockKey(template as string, 'a', 'b')).toThrow(LockError);
    },
  );

  it.each([undefined, null, '', NaN, Infinity, {}, [], () => 1, '\ud800', Symbol('s')])(
    'never makes a key of %p',
    (value) => {
      expect(() => lockKey('order:{0}', value)).toThrow(/^The part \{0\} of the key is/);
      expect(() => lockKey('order:{0.id}', { id: value })).toThrow(/^The part \{0\.id\} of the key is/);
    },
  );

  it('keeps no more than it should of templates that somebody builds from values', () => {
    for (let i = 0; i < 3_000; i++) expect(lockKey(`order-${i}:{0}`, 'a')).toBe(`order-${i}:a`);
  });
});

describe('two different tuples', () => {
  // Near to each other and to the templates: separators, percent-encodings, and what NFC joins, decomposes or reorders.
  const PIECES = [
    ...['a', 'b', 'x', '2', 'A', 'F', ':', '-', '=', '/', '%', '{', '}', '<', ' '],
    ...['%3A', '%2D', '%25', '\u0338', '\u0301', '\u0323', '\u2260', '\u226e', '\u00e9', 'e', '\u1e0d'],
    ...['\u1100', '\u1161', '\u11a8', '\uac00', '\u037e', '\u212b', '\u0000', '\u2028', '\ud83d\ude00'],
    ...['\u{16d67}', '\u{16d63}', '\u09c7', '\u09be'],
  ];
  const text = fc.oneof(
    fc.array(fc.constantFrom(...PIECES), { maxLength: 4 }).map((pieces) => pieces.join('')),
    fc.string({ unit: 'binary', maxLength: 3 }),
  );
  const value = text.filter((given) => given !== '' && given.isWellFormed());
  const between = text.filter((given) => given.isWellFormed()).map((given) => given.replace(/[{}]/g, '$&$&'));
  const COUNT = 3;
  const template = fc
    .array(between, { minLength: COUNT + 1, maxLength: COUNT + 1 })
    .map((texts) => texts.map((each, i) => (i < COUNT ? `${each}{${i}}` : each)).join(''));
  const tuple = fc.tuple(value, value, value);

  const keyOr = (made: () => string): string | undefined => {
    try {
      return made();
    } catch (error) {
      if (error instanceof LockError && error.message.includes('separates')) return undefined;
      throw error;
    }
  };

  it('never give one key, whatever the template', () => {
    let compared = 0;
    fc.assert(
      fc.property(template, fc.array(tuple, { minLength: 2, maxLength: 12 }), (given, tuples) => {
        const byKey = new Map<string, string>();
        for (const values of tuples) {
          const key = keyOr(() => lockKey(given, ...values))?.normalize('NFC');
          if (key === undefined) return;
          const same = JSON.stringify(values.map((each) => each.normalize('NFC')));
          expect(byKey.get(key) ?? same).toBe(same);
          byKey.set(key, same);
          compared++;
        }
      }),
      { numRuns: 4_000 },
    );
    expect(compared).toBeGreaterThan(5_000);
  });

  it('never give one key where a value may take over what separates it, all pairs of short values', () => {
    for (const separator of [
      '=',
      '<',
      '-',
      'x',
      '\u2260',
      '\u1100',
      ':',
      '/',
      '%3D',
      '\u{16d67}',
      '\u0338=',
    ]) {
      const short = PIECES.flatMap((one) => ['', '\u0338', separator, 'a'].map((two) => one + two));
      const seen = new Map<string, string>();
      for (const one of short)
        for (const two of short) {
          const key = keyOr(() => lockKey(`{0}${separator}{1}`, one, two))?.normalize('NFC');
          if (key === undefined) continue;
          const same = JSON.stringify([one.normalize('NFC'), two.normalize('NFC')]);
          if ((seen.get(key) ?? same) !== same)
            throw new Error(`${same} and ${seen.get(key)} are both ${key}`);
          seen.set(key, same);
        }
    }
  });

  it('are one where they are one text in two normal forms, or a number and its digits', () => {
    expect(lockKey('a:{0}', 'Zoe\u0308')).toBe(lockKey('a:{0}', 'Zo\u00eb'));
    expect(lockKey('a:{0}', 7)).toBe(lockKey('a:{0}', '7'));
  });
});

describe('@WithLock(template)', () => {
  @Injectable()
  class Orders {
    @WithLock('user:{0}')
    async user(_id: string): Promise<string | undefined> {
      return currentLock()?.key;
    }
    @WithLock('order:{0.ordrId}')
    async pay(_order: { orderId?: string; ordrId?: unknown }): Promise<void> {}
    @WithLock('order:{0}:{1}')
    async ship(_order: unknown, _to: unknown): Promise<void> {}
    @WithLock((order: { id?: string }) => lockKey('order:{0.id}', order))
    async cancel(_order: { id?: string }): Promise<void> {}
  }
  let orders: Orders;
  let warnings: string[];
  beforeEach(async () => {
    warnings = [];
    jest
      .spyOn(Logger.prototype, 'warn')
      .mockImplementation((message: unknown) => void warnings.push(String(message)));
    const module = await Test.createTestingModule({
      imports: [SyncGuardModule.forRoot()],
      providers: [Orders],
    }).compile();
    orders = module.get(Orders);
  });
  afterEach(() => jest.restoreAllMocks());

  it('locks the key as one would write it, in NFC: the same as lockKey() and lock()', async () => {
    expect(await orders.user('ann@x.org')).toBe('user:ann@x.org');
    expect(await orders.user('Zoe\u0308')).toBe(lockKey('user:{0}', 'Zo\u00eb'));
  });

  const ofParts = (): string[] => warnings.filter((line) => line.startsWith('LOCK_KEY_PART_MISSING'));

  it('warns once at each place of a part that is missing, and refuses each call', async () => {
    for (let i = 0; i < 3; i++)
      await expect(orders.pay({ orderId: 'secret-7' })).rejects.toEqual(expectInvalid());
    await expect(orders.pay({ ordrId: { id: 'secret-7' } })).rejects.toEqual(expectInvalid());
    expect(ofParts()).toEqual([expect.stringMatching(/Orders\.pay.*\{0\.ordrId\}.*undefined/)]);
    await expect(orders.ship('', 'x')).rejects.toEqual(expectInvalid());
    await expect(orders.ship('secret-7', null)).rejects.toEqual(expectInvalid());
    await expect(orders.ship('', 'x')).rejects.toEqual(expectInvalid());
    await expect(orders.cancel({})).rejects.toEqual(expectInvalid());
    await expect(orders.cancel({})).rejects.toEqual(expectInvalid());
    const [, ...others] = ofParts();
    expect(others).toEqual([
      expect.stringMatching(/Orders\.ship.*\{0\}.*an empty string/),
      expect.stringMatching(/Orders\.ship.*\{1\}.*null/),
      expect.stringMatching(/Orders\.cancel.*\{0\.id\}.*undefined/),
    ]);
    expect(warnings.join()).not.toContain('secret-7');
  });

  it('warns at each method that shares a decorator', async () => {
    const Locked = WithLock('shared:{0}');
    @Injectable()
    class Shared {
      @Locked
      async one(_id?: string): Promise<void> {}
      @Locked
      async two(_id?: string): Promise<void> {}
    }
    const module = await Test.createTestingModule({
      imports: [SyncGuardModule.forRoot()],
      providers: [Shared],
    }).compile();
    for (const call of ['one', 'two', 'one'] as const)
      await expect(module.get(Shared)[call]()).rejects.toEqual(expectInvalid());
    expect(ofParts()).toEqual([expect.stringContaining('Shared.one'), expect.stringContaining('Shared.two')]);
  });
});

describe('a template that names an argument which the method does not have', () => {
  const Wrapped: MethodDecorator = (_target, _key, descriptor: PropertyDescriptor) => {
    const original = descriptor.value as (...args: unknown[]) => Promise<void>;
    descriptor.value = function (this: unknown, ...args: unknown[]) {
      return original.apply(this, args);
    };
  };
  const WrappedByArguments: MethodDecorator = (_target, _key, descriptor: PropertyDescriptor) => {
    const original = descriptor.value as (...args: unknown[]) => Promise<void>;
    descriptor.value = function (this: unknown) {
      // eslint-disable-next-line prefer-rest-params
      return original.apply(this, arguments as never);
    };
  };

  it('fails when the class is defined', () => {
    const message = /@WithLock\(\) on Orders\.pay: .*\{1\}/;
    expect(() => {
      class Orders {
        @WithLock('order:{1}')
        async pay(_id: string): Promise<void> {}
      }
      void Orders;
    }).toThrow(message);
    expect(() => {
      class Orders {
        @WithLock('order:{0}:{1.id}')
        async pay(_id = 'x'): Promise<void> {}
      }
      void Orders;
    }).toThrow(/@WithLock\(\) on Orders\.pay: .*\{1\.id\}/);
    expect(() => {
      class Orders {
        @WithLock('order:{0}')
        async pay(): Promise<void> {}
      }
      void Orders;
    }).toThrow(/@WithLock\(\) on Orders\.pay: .*\{0\}/);
  });

  it('boots where nothing proves it: a rest parameter, a wrapper, no types', () => {
    expect(() => {
      class Orders {
        @WithLock('a:{3}')
        async rest(..._ids: string[]): Promise<void> {}
        @WithLock('a:{3}')
        async restBehindADefault(_to = 'x', ..._ids: string[]): Promise<void> {}
        @WithLock('a:{1}')
        async enough(_id: string, @Lock() _lock?: LockContext): Promise<void> {}
        @WithLock('a:{3}')
        @Wrapped
        async wrapped(..._ids: string[]): Promise<void> {}
        @WithLock('a:{3}')
        @WrappedByArguments
        async wrappedByArguments(..._ids: string[]): Promise<void> {}
      }
      void Orders;
      WithLock('a:{3}')(class {}.prototype, 'untyped', { value: async (_id: string) => {} });
    }).not.toThrow();
  });
});
