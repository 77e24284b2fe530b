import * as fc from 'fast-check';
import { Logger } from '@nestjs/common';
import { hashKey } from '../../lib/core/keys.js';
import { hours, minutes, seconds } from '../../lib/core/time.js';
import type { AbuseLimiterService } from '../../lib/limit/abuse-limiter.service.js';
import type { BlockedKey, BlockedOptions } from '../../lib/limit/limit.types.js';
import type { LimitPolicy } from '../../lib/limit/policy.types.js';
import { eventually } from '../support/eventually.js';
import { API, BULK, type LimitHarness, limiterOn, LOGIN } from './limit.contract.js';

Logger.overrideLogger(['error', 'warn']);

/** All pages of a list. */
export async function allBlocked(
  limiter: AbuseLimiterService,
  options: BlockedOptions = {},
): Promise<BlockedKey[]> {
  const items: BlockedKey[] = [];
  let cursor: string | undefined;
  do {
    const page = await limiter.blocked({ ...options, ...(cursor === undefined ? {} : { cursor }) });
    items.push(...page.items);
    ({ cursor } = page);
    expect(cursor ?? '').toMatch(/^[\w.~-]*$/); // A URL carries it as it is.
  } while (cursor !== undefined);
  return items;
}

export const inOrder = (items: readonly BlockedKey[]): string[] =>
  items.map(({ policy, tag, scope }) => `${policy} ${tag} ${scope}`).sort();

const HARD = { ...BULK, name: 'hard', blockMs: minutes(2) } satisfies LimitPolicy;
const GUESSES = { ...API, name: 'guesses', count: 'failure', blockMs: minutes(3) } satisfies LimitPolicy;
const ANN = hashKey('ann');
const BOB = hashKey('bob');

/** What operators see of blocks and do to them, whatever the limits stand on. */
export function describeBlocked(name: string, createHarness: () => Promise<LimitHarness>): void {
  describe(`an operator of limits on ${name}`, () => {
    let harness: LimitHarness;
    let limiter: AbuseLimiterService;

    beforeEach(async () => {
      harness = await createHarness();
      limiter = limiterOn(harness.backend);
    });

    /** Makes calls until one sets a block, and waits until it is known whose it is. */
    async function fill(policy: LimitPolicy, key = 'ann'): Promise<void> {
      while ((await limiter.check(key, policy)).allowed);
      const whose = { policy: policy.shadow ? `${policy.name} shadow` : policy.name, tag: hashKey(key) };
      await eventually(async () =>
        expect(await allBlocked(limiter)).toContainEqual(expect.objectContaining(whose)),
      );
    }
    const all = (options?: BlockedOptions) => allBlocked(limiter, options);

    describe('blocked', () => {
      it('shows policy, tag, scope, reason and end of each block', async () => {
        await fill(LOGIN);
        const [block, ...others] = await all();
        expect(others).toStrictEqual([]);
        expect(block).toStrictEqual({
          ...{ policy: 'login', tag: ANN, scope: 'temp', reason: 'temp' },
          endsAtMs: expect.any(Number) as number,
        });
        harness.advance(seconds(20));
        const { retryAfterMs } = (await limiter.peek('ann', LOGIN)) as { retryAfterMs: number };
        expect(retryAfterMs).toBe(seconds(40));
        expect((await all())[0]?.endsAtMs).toBe(block?.endsAtMs);
      });

      it('shows blocks of a log, of a fixed window, of the long tier, of failures, and those by hand', async () => {
        await fill(LOGIN);
        await fill(HARD);
        await fill(GUESSES);
        await limiter.block('bob', LOGIN, hours(1), 'asked 2 x @ all cards');
        await limiter.block('bob', BULK, hours(1));
        const long = { ...LOGIN, name: 'long', temp: { ...LOGIN.temp, threshold: 20 } };
        await fill(long);
        const items = await all();
        expect(inOrder(items)).toStrictEqual(
          [
            ...[`login ${ANN} temp`, `hard ${ANN} temp`, `guesses ${ANN} temp`, `long ${ANN} long`],
            ...[`login ${BOB} manual`, `bulk ${BOB} manual`],
          ].sort(),
        );
        expect(items.find(({ policy, tag }) => policy === 'login' && tag === BOB)).toMatchObject({
          reason: 'asked 2 x @ all cards',
        });
        expect(items.find(({ policy }) => policy === 'bulk')).toMatchObject({ reason: 'manual' });
      });

      it('shows neither a limit that is only full, nor what has ended', async () => {
        for (const policy of [API, BULK]) for (let i = 0; i < 5; i++) await limiter.check('ann', policy);
        await fill(LOGIN);
        await fill(HARD);
        await limiter.block('bob', LOGIN, seconds(10));
        await limiter.reset('ann', LOGIN);
        harness.advance(seconds(10));
        expect(inOrder(await all())).toStrictEqual([`hard ${ANN} temp`]);
        harness.advance(minutes(2));
        expect(await all()).toStrictEqual([]);
      });

      it('shows whom a policy that is tried would block, by its name in events', async () => {
        const tried = { ...HARD, name: 'search', shadow: true };
        for (let i = 0; i < 5; i++) await limiter.check('ann', tried);
        await eventually(async () =>
          expect(inOrder(await all())).toStrictEqual([`search shadow ${ANN} temp`]),
        );
        expect(inOrder(await all({ policy: 'search' }))).toHaveLength(1);
      });

      it('shows those of one name, with each limit of a list, and no name that begins alike', async () => {
        for (const each of ['login', 'login#2', 'login2', 'login x', 'login;w=5000'])
          await limiter.block('ann', { ...HARD, name: each }, hours(1));
        expect(inOrder(await all({ policy: 'login' }))).toStrictEqual(
          ['login', 'login#2', 'login;w=5000'].map((each) => `${each} ${ANN} manual`).sort(),
        );
        expect(await all({ policy: 'logi' })).toStrictEqual([]);
        expect(await all({ policy: '*' })).toStrictEqual([]);
      });

      it('goes page by page, and shows each block once at least', async () => {
        const keys = Array.from({ length: 60 }, (_, i) => `k${i}`);
        for (const key of keys) await limiter.block(key, LOGIN, hours(1));
        const first = await limiter.blocked({ limit: 10 });
        expect(first.items.length).toBeLessThan(60);
        expect(first.cursor).toBeDefined();
        const tags = new Set((await all({ limit: 10 })).map(({ tag }) => tag));
        expect([...tags].sort()).toStrictEqual(keys.map(hashKey).sort());
      });

      const text = fc.string({ unit: fc.constantFrom(...'ab*?[]^\\-{}:/"\'@#%; '), maxLength: 8 });
      it('says of any policy and key whose block it is', async () => {
        await fc.assert(
          fc.asyncProperty(
            text,
            fc.string({ unit: 'grapheme', minLength: 1, maxLength: 8 }),
            async (rest, key) => {
              const policy = { ...HARD, name: `p${rest}` };
              const given = key.isWellFormed() ? key : 'k';
              await limiter.block(given, policy, hours(1), rest);
              const found = await all();
              expect(await limiter.unblock({ tag: hashKey(given) })).toStrictEqual({ unblocked: 1 });
              expect(found).toMatchObject([
                { policy: policy.name, tag: hashKey(given), reason: rest || 'manual' },
              ]);
            },
          ),
          { numRuns: 30 },
        );
      });

      it('refuses what is no page', async () => {
        for (const options of [
          ...[{ limit: 0 }, { limit: 1_001 }, { cursor: '' }, { cursor: 7 }, { policy: '' }, { policy: {} }],
          ...[{ prefix: 'a' }, null],
        ])
          await expect(limiter.blocked(options as BlockedOptions)).rejects.toMatchObject({
            code: 'InvalidArgument',
          });
      });
    });

    describe('unblock by tag', () => {
      it.each<[string, LimitPolicy]>([
        ['a log', LOGIN],
        ['a fixed window', HARD],
        ['failures', GUESSES],
      ])('ends a block as the call by key does, so that one more call sets none: %s', async (_, policy) => {
        await fill(policy);
        expect(await limiter.unblock({ tag: ANN })).toStrictEqual({ unblocked: 1 });
        expect(await all()).toStrictEqual([]);
        expect(await limiter.check('ann', policy)).toMatchObject({ allowed: true, shortCount: 1 });
        expect(await limiter.unblock({ tag: ANN })).toStrictEqual({ unblocked: 0 });
      });

      it('ends the blocks of every policy, or of one, and nobody else’s', async () => {
        for (const policy of [LOGIN, HARD, BULK]) {
          await limiter.block('ann', policy, hours(1));
          await limiter.block('bob', policy, hours(1));
        }
        expect(await limiter.unblock({ tag: ANN, policy: 'login' })).toStrictEqual({ unblocked: 1 });
        expect(await limiter.peek('ann', HARD)).toMatchObject({ allowed: false });
        expect(await limiter.unblock({ tag: ANN })).toStrictEqual({ unblocked: 2 });
        expect(inOrder(await all())).toStrictEqual(
          ['login', 'hard', 'bulk'].map((policy) => `${policy} ${BOB} manual`).sort(),
        );
      });

      it('leaves counts where there is no block', async () => {
        await limiter.check('ann', LOGIN);
        expect(await limiter.unblock({ tag: ANN })).toStrictEqual({ unblocked: 0 });
        expect(await limiter.check('ann', LOGIN)).toMatchObject({ shortCount: 2 });
      });

      it('is one change, where two operators make it', async () => {
        await fill(LOGIN);
        const other = limiterOn(harness.backend);
        const both = await Promise.all([limiter, other].map((each) => each.unblock({ tag: ANN })));
        expect(both.map(({ unblocked }) => unblocked).sort()).toStrictEqual([0, 1]);
      });

      it('refuses what is no tag', async () => {
        for (const which of [
          ...[{ tag: '' }, { tag: 'ann' }, { tag: 7 }, { tag: '*'.repeat(24) }, { tag: `${ANN}\n` }],
          ...[
            { tag: ANN, policy: 7 },
            { tag: ANN, key: 'ann' },
          ],
        ])
          await expect(limiter.unblock(which as { tag: string })).rejects.toMatchObject({
            code: 'InvalidArgument',
          });
        const withoutPolicy = (call: unknown) =>
          (call as (key: string) => Promise<unknown>).call(limiter, 'ann');
        const { message } = (await withoutPolicy(limiter.reset).catch((fault: unknown) => fault)) as Error;
        await expect(withoutPolicy(limiter.unblock)).rejects.toThrow(message);
        await expect(limiter.unblock({ tag: ANN }, { by: '' })).rejects.toMatchObject({
          code: 'InvalidArgument',
        });
      });
    });
  });
}
