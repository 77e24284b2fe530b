import * as fc from 'fast-check';
import type { Redis } from 'ioredis';
import {
  ATOMIC_DECREMENT_SCRIPT,
  ATOMIC_INCREMENT_WITH_LIMIT_SCRIPT,
  InvalidResultError,
  parseDecrementResult,
  parseIncrementResult,
} from '../../lib/secret/secret.compat.js';
import { freshRedis, workerRedis } from '../support/redis.js';

const key = 'secret:abc';
let redis: Redis;
beforeEach(async () => {
  redis = (await freshRedis()).client();
});

describe('ATOMIC_DECREMENT_SCRIPT', () => {
  const decrement = (): Promise<unknown> => redis.eval(ATOMIC_DECREMENT_SCRIPT, 1, key);
  const keep = (document: string | Buffer, ttlMs = 60_000): Promise<unknown> =>
    redis.set(key, document, 'PX', ttlMs);

  it('counts down, burns with the last view, and finds nothing after it', async () => {
    await keep('{"text":"hello","viewsRemaining":2}');
    expect(await decrement()).toBe('{"secret":{"text":"hello","viewsRemaining":1},"burned":false}');
    expect(await decrement()).toBe('{"secret":{"text":"hello","viewsRemaining":0},"burned":true}');
    expect(await redis.exists(key)).toBe(0);
    expect(await decrement()).toBeNull();
  });

  it('gives 100 readers of 7 views exactly 7', async () => {
    await keep('{"viewsRemaining":7}');
    const replies = await Promise.all(Array.from({ length: 100 }, decrement));
    const results = replies.map((reply) => parseDecrementResult<{ viewsRemaining: number }>(reply));
    const seen = results.flatMap((result) => (result ? [result] : []));
    expect(seen.map(({ secret }) => secret.viewsRemaining).sort()).toStrictEqual([0, 1, 2, 3, 4, 5, 6]);
    expect(seen.filter(({ burned }) => burned)).toHaveLength(1);
  });

  it('leaves the TTL to the ms as it was, and a key without one without', async () => {
    await keep('{"viewsRemaining":9}', 12_345);
    const deadline = await redis.pexpiretime(key);
    workerRedis().clock.advance(5_000);
    await decrement();
    expect(await redis.pexpiretime(key)).toBe(deadline);
    await redis.persist(key);
    await decrement();
    expect(await redis.pttl(key)).toBe(-1);
  });

  // The text before and after the digits. Only the digits change.
  it.each([
    ['{"viewsRemaining":', ',"tags":[],"large":9007199254740993,"pi":3.14159265358979323846,"half":5e-1}'],
    ['\n{ "a" : { } ,\t"viewsRemaining" :\r\n ', '\n}\n'],
    [
      '{"nested":{"viewsRemaining":1,"x":[{"viewsRemaining":"3"}]},"viewsRemaining":',
      ',"z":{"viewsRemaining":0}}',
    ],
    ['{"viewsRemaining":"the first of two","viewsRemaining":', '}'],
    ['{"text":"\\"viewsRemaining\\":5, ","viewsRemaining":', '}'],
    ['{"text":"\\\\","viewsRemaining":', ',"more":"}{]["}'],
    ['{"\\"viewsRemaining":1,"myviewsRemaining":2,"viewsRemaining":', ',"viewsRemaining ":3}'],
    ['{"views\\u0052emaining":', '}'],
    ['{"\\\\u0076iewsRemaining":1,"viewsRemaining":', '}'],
    ['{"text":"\\ud83d alone","viewsRemaining":', ',"\u{1f512}":"\u2603 \x7f"}'],
    [`{"deep":${'['.repeat(3_000)}${']'.repeat(3_000)},"viewsRemaining":`, '}'],
    [`{"large":"${'x'.repeat(1_048_576)}","viewsRemaining":`, '}'],
  ])('changes the digits alone: %.60s', async (before, after) => {
    await keep(`${before}10${after}`);
    expect(await decrement()).toBe(`{"secret":${before}9${after},"burned":false}`);
    expect(await redis.get(key)).toBe(`${before}9${after}`);
  });

  it.each([
    ['3.0', '2'],
    ['30e-1', '2'],
    ['2E0', '1'],
    ['9007199254740991', '9007199254740990'],
  ])('takes %s for the integer that it is', async (views, left) => {
    await keep(`{"viewsRemaining":${views}}`);
    await decrement();
    expect(await redis.get(key)).toBe(`{"viewsRemaining":${left}}`);
  });

  const hidden = 'the secret itself';
  it.each([
    ...'0 -5 -0 1.5 "3" null true [] [3] {"viewsRemaining":3} 1e400 -1e400 1e16'.split(' '),
    ...'9007199254740992 9007199254740993 0.9999999999999999'.split(' '),
    ...`nan NaN inf -Infinity 0x10 03 +3 .5 3. 1e 3e+ --3 3abc '3'`.split(' '),
  ])('refuses viewsRemaining %s, tells nothing, and touches nothing', async (views) => {
    await expectRefused(`{"text":"${hidden}","viewsRemaining":${views}}`, 'invalid_viewsRemaining_type');
  });

  it.each([
    ...['null', '3', '"viewsRemaining"', '[]', '[{"viewsRemaining":3}]', '{}', 'true', '-1.5e3'],
    ...[
      '{"viewsremaining":3}',
      '{"viewsRemaining ":3}',
      '{"a":{"viewsRemaining":3}}',
      '{"a":"viewsRemaining"}',
    ],
    '{"viewsRemaining":3,"viewsRemaining":"the last one counts"}',
  ])('refuses the document %s: it has no views', async (document) => {
    await expectRefused(document, 'invalid_viewsRemaining_type');
  });

  it('agrees with JSON.parse on what is JSON, also of documents with one character changed', async () => {
    const cut = fc.record({
      at: fc.nat(),
      drop: fc.nat({ max: 2 }),
      put: fc.constantFrom('', ',', '"', '}', '[', '\\', '0', ' '),
    });
    const document = fc.record({ viewsRemaining: fc.constantFrom(5, 1), rest: fc.jsonValue() });
    let valid = 0;
    await fc.assert(
      fc.asyncProperty(document, fc.option(cut), async (value, change) => {
        let json = JSON.stringify(value);
        if (change) {
          const at = change.at % json.length;
          json = json.slice(0, at) + change.put + json.slice(at + change.drop);
        }
        if (!json.isWellFormed()) return;
        await keep(json);
        const reply = (await decrement()) as string;
        let parsed: { viewsRemaining?: unknown } | null | undefined;
        try {
          parsed = JSON.parse(json) as typeof parsed;
        } catch {
          // These documents are malformed. The malformed part may be viewsRemaining itself.
          expect(reply).toMatch(/^\{"error":"invalid_(json|viewsRemaining_type)"\}$/);
          return;
        }
        const views = parsed?.viewsRemaining;
        if (!Number.isSafeInteger(views) || (views as number) < 1) {
          expect(reply).toBe('{"error":"invalid_viewsRemaining_type"}');
          return;
        }
        valid++;
        const left = (views as number) - 1;
        expect(JSON.parse(reply)).toStrictEqual({
          secret: { ...parsed, viewsRemaining: left },
          burned: left === 0,
        });
      }),
      { numRuns: 1_000 },
    );
    expect(valid).toBeGreaterThan(300);
  });

  it('leaves bytes that are no UTF-8 as they are', async () => {
    const bytes = Buffer.concat([
      Buffer.from('{"text":"'),
      Buffer.from(Array.from({ length: 128 }, (_, i) => 128 + i)),
      Buffer.from('","viewsRemaining":2}'),
    ]);
    await keep(bytes);
    await decrement();
    expect(
      (await redis.getBuffer(key))!.equals(
        Buffer.from(bytes.toString('latin1').replace(':2}', ':1}'), 'latin1'),
      ),
    ).toBe(true);
  });

  async function expectRefused(document: string, error: string): Promise<void> {
    await keep(document);
    const [deadline, before] = [await redis.pexpiretime(key), await redis.dumpBuffer(key)];
    expect(await decrement()).toBe(`{"error":"${error}"}`);
    expect(await redis.dumpBuffer(key)).toStrictEqual(before);
    expect(await redis.pexpiretime(key)).toBe(deadline);
  }
});

describe('ATOMIC_INCREMENT_WITH_LIMIT_SCRIPT', () => {
  const increment = (...args: (string | number)[]): Promise<unknown> =>
    redis.eval(ATOMIC_INCREMENT_WITH_LIMIT_SCRIPT, 1, key, ...args);

  it('counts up to the maximum, then -1, until its time is over', async () => {
    for (const count of [1, 2, 3, -1, -1]) expect(await increment(3, 60)).toBe(count);
    expect(await redis.get(key)).toBe('3');
    workerRedis().clock.advance(60_001);
    expect(await increment(3, 60)).toBe(1);
  });

  it('fixes the deadline with the first increment', async () => {
    await increment(9, 60);
    const deadline = await redis.pexpiretime(key);
    workerRedis().clock.advance(10_000);
    await increment(9, 600);
    expect(await redis.pexpiretime(key)).toBe(deadline);
  });

  it.each([
    [2, 60, 2],
    [1, 60, -1],
  ])('gives a counter that lost its TTL a new one (maximum %i)', async (max, seconds, reply) => {
    await redis.set(key, '1');
    expect(await increment(max, seconds)).toBe(reply);
    expect(await redis.ttl(key)).toBe(seconds);
  });

  it.each([[[]], [[5]], [['', 60]], [[5, '']]])('refuses %j: missing_arguments', async (args) => {
    expect(await increment(...args)).toBe('{"error":"missing_arguments"}');
    expect(await redis.exists(key)).toBe(0);
  });

  it.each([
    ...[0.5, 0, -1, 'x', 'nan', 'inf', '1e3', '0x10', 1e11].map((seconds) => [5, seconds] as const),
    ...[0, -1, 1.5, 'x', 'nan', '9007199254740992', ' 5', '5\n'].map((max) => [max, 60] as const),
  ])('refuses (%j, %j): invalid_arguments', async (max, seconds) => {
    expect(await increment(max, seconds)).toBe('{"error":"invalid_arguments"}');
    expect(await redis.exists(key)).toBe(0);
  });

  it('fails on a value that is no counter, and leaves it', async () => {
    await redis.set(key, 'theirs');
    await expect(increment(5, 60)).rejects.toThrow('not an integer');
    expect(await redis.get(key)).toBe('theirs');
    expect(await redis.ttl(key)).toBe(-1);
  });
});

describe('the parsers', () => {
  const codeOf = (parse: () => unknown): string => {
    try {
      return `no error, but ${JSON.stringify(parse())}`;
    } catch (error) {
      return error instanceof InvalidResultError ? error.code : `not an InvalidResultError: ${String(error)}`;
    }
  };

  it('read null as null', () => {
    expect(parseDecrementResult(null)).toBeNull();
    expect(parseIncrementResult(null)).toBeNull();
  });

  it('read a string, and the object that some clients make of it', () => {
    const result = { secret: { text: 't', viewsRemaining: 1 }, burned: false };
    expect(parseDecrementResult(JSON.stringify(result))).toStrictEqual(result);
    expect(parseDecrementResult(result)).toBe(result);
    for (const count of [1, -1, '1', '-1']) expect(parseIncrementResult(count)).toBe(Number(count));
  });

  it.each(['invalid_json', 'invalid_viewsRemaining_type', 'missing_arguments', 'invalid_arguments'])(
    'throw the script’s error %s',
    (error) => {
      for (const parse of [parseDecrementResult, parseIncrementResult])
        for (const reply of [{ error }, JSON.stringify({ error })])
          expect(codeOf(() => parse(reply))).toBe(error);
    },
  );

  it.each<[string, unknown]>([
    ['undefined', undefined],
    ['true', true],
    ['an empty string', ''],
    ['text', 'hello'],
    ['"null"', 'null'],
    ['NaN', NaN],
    ['1.5', 1.5],
    ['-2', -2],
    ['a function', () => 1],
    ['a Buffer', Buffer.from('1')],
    ['an array', []],
    ['a count in a list', [1]],
    ['an object', {}],
    ['an unknown error', { error: 'toString' }],
    ['an error that is no text', { error: 7 }],
    ['burned of another type', { secret: {}, burned: 'yes' }],
    ['no secret', '{"burned":true}'],
  ])('throw on %s', (_, reply) => {
    expect(codeOf(() => parseDecrementResult(reply))).toBe('unexpected_reply');
    expect(codeOf(() => parseIncrementResult(reply))).toBe('unexpected_reply');
  });

  it('do not quote what they could not read', () => {
    expect(() => parseDecrementResult('{"secret": "hunter2"')).toThrow(
      expect.not.objectContaining({ message: expect.stringContaining('hunter2') as string }) as Error,
    );
  });
});
