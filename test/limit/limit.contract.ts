import { Logger } from '@nestjs/common';
import * as fc from 'fast-check';
import type { LimitBackend, LimitCheck } from '../../lib/limit/limit.backend.js';
import { LimitError, TooManyAttemptsError } from '../../lib/limit/limit.errors.js';
import { resolveLimitDefaults, resolveLimits } from '../../lib/limit/limit.options.js';
import { MemoryLimitBackend } from '../../lib/limit/memory/limit.memory-backend.js';
import { withLimit } from '../../lib/limit/limit.validate.js';
import { resolvePolicy } from '../../lib/limit/limit.policy.js';
import type { DeniedDecision, LimiterDecision } from '../../lib/limit/limit.types.js';
import type { LimitPolicy, PolicyRef } from '../../lib/limit/policy.types.js';
import { RateLimit } from '../../lib/limit/route/rate-limit.decorator.js';
import { AbuseLimiterService } from '../../lib/limit/abuse-limiter.service.js';
import { createCallId } from '../../lib/limit/decisions.js';
import { presets } from '../../lib/limit/presets.js';
import { days, hours, minutes, seconds } from '../../lib/core/time.js';

// Each denial is a debug line.
Logger.overrideLogger(['error', 'warn']);

export interface LimitHarness {
  readonly backend: LimitBackend;
  /** Moves the backend's clock, which stands still otherwise. */
  advance(ms: number): void;
}

/** Five attempts in a minute block for a minute, twelve in ten minutes for ten. */
const LOGIN = {
  name: 'login',
  temp: { windowMs: minutes(1), threshold: 5, blockMs: minutes(1) },
  long: { windowMs: minutes(10), threshold: 12, blockMs: minutes(10) },
} satisfies LimitPolicy;

const API = { name: 'api', limit: 3, windowMs: seconds(10) } satisfies LimitPolicy;

const BULK = {
  name: 'bulk',
  algorithm: 'fixed-window',
  limit: 3,
  windowMs: seconds(10),
} satisfies LimitPolicy;

const DENIED = { allowed: false, scope: 'temp', reason: 'temp' } as const;

export function describeLimitBackend(name: string, createHarness: () => Promise<LimitHarness>): void {
  describe(`the abuse limiter on ${name}`, () => {
    let harness: LimitHarness;
    let limiter: AbuseLimiterService;

    beforeEach(async () => {
      harness = await createHarness();
      limiter = limiterOn(harness.backend);
    });

    const advance = (ms: number): void => harness.advance(ms);
    const attempts = async (
      count: number,
      policy: LimitPolicy = LOGIN,
      key = 'ann',
    ): Promise<LimiterDecision[]> => {
      const decisions: LimiterDecision[] = [];
      for (let i = 0; i < count; i++) decisions.push(await limiter.check(key, policy));
      return decisions;
    };
    const attempt = async (policy: LimitPolicy = LOGIN, key = 'ann'): Promise<LimiterDecision> =>
      (await attempts(1, policy, key))[0] as LimiterDecision;

    describe('tiers', () => {
      it('count attempts, and deny the one that reaches the threshold', async () => {
        expect(await attempts(5)).toEqual([
          { allowed: true, shortCount: 1, longCount: 1, remaining: 3, resetMs: minutes(1) },
          { allowed: true, shortCount: 2, longCount: 2, remaining: 2, resetMs: minutes(1) },
          { allowed: true, shortCount: 3, longCount: 3, remaining: 1, resetMs: minutes(1) },
          { allowed: true, shortCount: 4, longCount: 4, remaining: 0, resetMs: minutes(1) },
          { ...DENIED, retryAfterSecs: 60, retryAfterMs: minutes(1), shortCount: 5, longCount: 5 },
        ]);
      });

      it('last up to a year, windows and blocks', async () => {
        const year = days(366);
        const policy = { name: 'yearly', temp: { windowMs: year, limit: 1, blockMs: year } };
        await attempts(1, policy);
        advance(year - 1);
        expect(await attempt(policy)).toMatchObject({ allowed: false, scope: 'temp', shortCount: 2 });
        advance(year - seconds(1));
        expect(await attempt(policy)).toMatchObject({ allowed: false, retryAfterSecs: 1 });
        advance(seconds(1));
        expect(await attempt(policy)).toMatchObject({ allowed: true });
        await limiter.block('bob', policy, year);
        advance(days(300));
        expect(await attempt(policy, 'bob')).toMatchObject({ scope: 'manual', retryAfterSecs: 66 * 86_400 });
        for (const window of [
          { ...BULK, windowMs: year },
          { name: 'plain', limit: 3, windowMs: year },
        ]) {
          await attempts(3, window, 'cid');
          advance(days(300));
          expect(await attempt(window, 'cid')).toMatchObject({ allowed: false, retryAfterSecs: 66 * 86_400 });
        }
      });

      it.each([
        ['a log', API],
        ['a fixed window', BULK],
      ])('wait for one window after the clock stepped back by an hour: %s', async (_, policy) => {
        await attempts(3, policy);
        advance(-hours(1));
        expect(await attempt(policy)).toMatchObject({ allowed: false, retryAfterSecs: 10 });
        advance(seconds(10) - 1);
        expect(await attempt(policy)).toMatchObject({ allowed: false, retryAfterSecs: 1 });
        advance(1);
        expect(await attempts(4, policy)).toMatchObject([
          { allowed: true, shortCount: 1 },
          { allowed: true },
          { allowed: true },
          { allowed: false },
        ]);
      });

      it('let a flight lapse a minute after the clock stepped back by an hour', async () => {
        const policy = resolvePolicy({ ...LOGIN, count: 'failure' });
        const check: LimitCheck = { policy, identity: 'login\0ann', cost: 1 };
        for (let i = 0; i < 5; i++) await harness.backend.check([check], createCallId());
        advance(-hours(1));
        const ask = async (): Promise<unknown> => (await harness.backend.check([check], createCallId()))[0];
        expect(await ask()).toMatchObject({ reason: 'busy' });
        advance(minutes(1));
        expect(await ask()).toMatchObject({ status: 'allowed', shortCount: 0, longCount: 5 });
      });
    });

    it('escalation keeps guesses at an account under `otp` to 560 a day, whose hours alone would let 2,880 in', async () => {
      let guesses = 0;
      for (let elapsedMs = 0; elapsedMs < days(1); guesses++) {
        const decision = await limiter.check('ann', { ...(presets.otp[1] as LimitPolicy), name: 'otp#2' });
        if (decision.allowed) continue;
        elapsedMs += decision.retryAfterMs;
        advance(decision.retryAfterMs);
      }
      expect(guesses).toBe(560);
    });

    describe('a policy given to a call', () => {
      const plan = (limit: number | 'unlimited', more: object = {}): LimitPolicy => ({
        ...{ name: `plan ${limit}`, limit, windowMs: seconds(10) },
        ...more,
      });

      it.each([
        ['a plain limit', {}],
        ['a limit that blocks', { blockMs: minutes(1) }],
        ['a fixed window', { algorithm: 'fixed-window' }],
      ])('denies at a limit of 0, and writes nothing: %s', async (_, more) => {
        const denial = { allowed: false, reason: 'temp', retryAfterSecs: 10, shortCount: 0 };
        for (let i = 0; i < 2; i++)
          expect(await limiter.check('ann', plan(0, more), { cost: 2 })).toMatchObject(denial);
        expect(await limiter.peek('ann', plan(0, more))).toMatchObject(denial);
        expect(await limiter.peek('ann', { ...plan(3, more), name: 'plan 0' })).toMatchObject({
          shortCount: 0,
        });
        await expect(limiter.limiter('ann', plan(0, more))).rejects.toThrow(TooManyAttemptsError);
      });

      it.each(['unlimited', Infinity] as const)('lets in at %s, unless there is a block', async (limit) => {
        const policy = plan(limit);
        const free = { allowed: true, remaining: Infinity, shortCount: 0 };
        for (let i = 0; i < 5; i++)
          expect(await limiter.check('ann', policy, { cost: 20 })).toMatchObject(free);
        expect(await limiter.peek('ann', policy)).toMatchObject(free);
        await limiter.block('ann', policy, minutes(1));
        expect(await limiter.check('ann', policy)).toMatchObject({ allowed: false, scope: 'manual' });
        expect(await limiter.peek('ann', policy)).toMatchObject({ allowed: false, scope: 'manual' });
      });

      it('counts more than 9,999 in a fixed window', async () => {
        const policy = plan(20_000);
        for (let i = 1; i <= 20; i++)
          expect(await limiter.check('ann', policy, { cost: 1_000 })).toMatchObject({
            allowed: true,
            shortCount: 1_000 * i,
          });
        expect(await limiter.check('ann', policy)).toMatchObject({ allowed: false, retryAfterSecs: 10 });
        await limiter.reset('ann', policy);
        expect(await limiter.check('ann', policy)).toMatchObject({ allowed: true, remaining: 19_999 });
      });

      it('may stand in a list, beside others', async () => {
        const list = [plan(20_000), plan(2), plan('unlimited')];
        expect(await limiter.check('ann', list)).toMatchObject({ allowed: true, remaining: 1 });
        expect(await limiter.check('ann', [...list, plan(0)])).toMatchObject({ allowed: false });
        expect(await limiter.check('ann', list)).toMatchObject({ allowed: true, remaining: 0 });
      });

      it.each([
        ['a limit that blocks', { blockMs: 1_000 }],
        ['failures', { count: 'failure' }],
        ['successes', { count: 'success' }],
        ['a log by name', { algorithm: 'sliding-log' }],
      ])('refuses more than 9,999 as a decorator does, for %s', async (_, more) => {
        const refused = await limiter.check('ann', plan(20_000, more)).catch((error: Error) => error.message);
        expect(refused).toContain('limit must be an integer from 1 to 9999');
        expect(() => RateLimit(plan(20_000, more))).toThrow('limit must be an integer from 1 to 9999');
      });

      it('in a decorator and in `limits` stays an error at boot', () => {
        for (const limit of [0, 'unlimited', Infinity] as const) {
          expect(() => RateLimit(plan(limit))).toThrow('limit must be');
          expect(() => resolveLimits({ plan: plan(limit) }, resolveLimitDefaults())).toThrow('limit must be');
        }
      });
    });

    describe('a fixed window', () => {
      const check = { policy: resolvePolicy(BULK), identity: 'bulk\0ann', cost: 1 };
      const counted = async (): Promise<number> => (await limiter.peek('ann', BULK)).shortCount;

      it('starts with its first call, and says until its end what remains', async () => {
        expect(await attempt(BULK)).toEqual({
          allowed: true,
          shortCount: 1,
          longCount: 1,
          remaining: 2,
          resetMs: seconds(10),
        });
        advance(seconds(4));
        expect(await attempts(3, BULK)).toEqual([
          { allowed: true, shortCount: 2, longCount: 2, remaining: 1, resetMs: seconds(6) },
          { allowed: true, shortCount: 3, longCount: 3, remaining: 0, resetMs: seconds(6) },
          { ...DENIED, retryAfterSecs: 6, retryAfterMs: seconds(6), shortCount: 3, longCount: 3 },
        ]);
      });

      it('counts up to the limit of 2,000 calls at once, and never past it', async () => {
        const policy = { ...BULK, limit: 100, windowMs: minutes(10) } as const;
        const decisions = await Promise.all(
          Array.from({ length: 2_000 }, () => limiter.check('ann', policy)),
        );
        expect(decisions.filter(({ allowed }) => allowed)).toHaveLength(100);
        expect(await limiter.peek('ann', policy)).toMatchObject({ allowed: false, shortCount: 100 });
      });

      it('counts exactly up to the largest limit, and a cost all or nothing', async () => {
        const limit = 2 ** 31 - 1;
        const policy = { ...BULK, limit } as const;
        const costing = (cost: number): Promise<LimiterDecision> => limiter.check('ann', policy, { cost });
        expect(await costing(limit - 2)).toMatchObject({ allowed: true, remaining: 2 });
        expect(await costing(3)).toMatchObject({ allowed: false, shortCount: limit - 2 });
        expect(await costing(1)).toMatchObject({ allowed: true, remaining: 1 });
        expect(await costing(1)).toMatchObject({ allowed: true, shortCount: limit, remaining: 0 });
        expect(await costing(1)).toMatchObject({ allowed: false, shortCount: limit });
      });

      it('holds for whom the limit was lowered below what is counted', async () => {
        await attempts(3, BULK);
        const lowered = { ...check, policy: withLimit(check.policy, 1) };
        expect(await harness.backend.check([lowered], createCallId())).toMatchObject([
          { status: 'denied', retryAfterMs: seconds(10), shortCount: 3 },
        ]);
      });

      it('keeps its end when windowMs grows, and ends as a new one would when windowMs shrinks', async () => {
        await attempts(3, BULK);
        for (const [windowMs, retryAfterSecs] of [
          [minutes(1), 10],
          [seconds(1), 1],
          [minutes(1), 1],
        ] as const)
          expect(await attempt({ ...BULK, windowMs })).toMatchObject({ allowed: false, retryAfterSecs });
        advance(seconds(1));
        expect(await attempt(BULK)).toMatchObject({ allowed: true, shortCount: 1 });
      });

      it('is lifted with its block, but not from a block by hand', async () => {
        const policy = { ...BULK, blockMs: minutes(1), keyBy: 'body.email' } as const;
        const parts = { 'body.email': 'ann@example.org' };
        const key = limiter.keyOf(policy, parts);
        await attempts(4, policy, key);
        expect(await limiter.lift(policy, parts)).toEqual({ lifted: 1 });
        expect(await attempts(3, policy, key)).toMatchObject([{ shortCount: 1 }, {}, { allowed: true }]);
        expect(await limiter.lift(policy, parts)).toEqual({ lifted: 0 });
        await limiter.block(key, policy, minutes(1));
        expect(await limiter.lift(policy, parts)).toEqual({ lifted: 0 });
        expect(await attempt(policy, key)).toMatchObject({ scope: 'manual' });
      });

      it('is unknown once all of it was forgiven', async () => {
        await attempts(2, BULK);
        expect(await limiter.peek('ann', BULK)).toMatchObject({ known: true, shortCount: 2 });
        await limiter.forgive('ann', BULK, 2);
        expect(await limiter.peek('ann', BULK)).toMatchObject({ known: false, shortCount: 0 });
      });

      it('starts afresh where the limiter had another algorithm before', async () => {
        const log = { ...BULK, algorithm: 'sliding-log' } as const;
        await attempts(3, log);
        expect(await attempt(BULK)).toMatchObject({ allowed: true, shortCount: 1 });
        await limiter.reset('ann', BULK);
        expect(await counted()).toBe(0);
      });
    });

    describe('retryAfterMs', () => {
      it('is exact for any policy: a millisecond less is denied, that long is let in', async () => {
        let run = 0;
        const plain = {
          windowMs: fc.integer({ min: 10, max: 100_000 }),
          limit: fc.integer({ min: 1, max: 5 }),
        };
        const blockMs = fc.option(fc.integer({ min: 1, max: 100_000 }), { nil: undefined });
        const anyPolicy = fc.oneof(
          fc.record({ ...plain, blockMs }),
          fc.record({ ...plain, blockMs, algorithm: fc.constant('fixed-window' as const) }),
        );
        await fc.assert(
          fc.asyncProperty(anyPolicy, fc.double({ min: 0, max: 1, noNaN: true }), async (shape, pace) => {
            const policy = { ...shape, name: `exact${run++}` };
            const { retryAfterMs, retryAfterSecs } = await untilDenied(
              policy,
              Math.floor((pace * (policy.windowMs - 1)) / 5),
            );
            expect(retryAfterSecs).toBe(Math.ceil(retryAfterMs / 1000));
            advance(retryAfterMs - 1);
            expect(await limiter.peek('ann', policy)).toMatchObject({ allowed: false, retryAfterMs: 1 });
            advance(1);
            expect(await limiter.check('ann', policy)).toMatchObject({ allowed: true });
          }),
          { numRuns: 100 },
        );
      });

      async function untilDenied(policy: LimitPolicy, gapMs: number): Promise<DeniedDecision> {
        for (;;) {
          const decision = await attempt(policy);
          if (!decision.allowed) return decision;
          advance(gapMs);
        }
      }

      it('is the rest of a window of 200 ms, and not a second', async () => {
        const policy = { name: 'fast', limit: 1, windowMs: 200 };
        await attempt(policy);
        advance(50);
        expect(await attempt(policy)).toMatchObject({ retryAfterSecs: 1, retryAfterMs: 150 });
        const error = await limiter.limiter('ann', policy).catch((thrown: unknown) => thrown);
        expect(error).toMatchObject({ retryAfterMs: 150, context: { retryAfter: 1 } });
        const leftMs = ((error as TooManyAttemptsError).context.retryAtMs as number) - Date.now();
        expect(leftMs).toBeLessThanOrEqual(150);
      });

      it('of several limits is that of the longest wait, also within a second', async () => {
        const limits = [300, 200].map((windowMs, i) => ({ name: `fast${i}`, limit: 1, windowMs }));
        await limiter.check('ann', limits);
        expect(await limiter.check('ann', limits)).toMatchObject({ retryAfterSecs: 1, retryAfterMs: 300 });
        expect(await limiter.check('ann', limits.reverse())).toMatchObject({ retryAfterMs: 300 });
      });
    });

    describe('cost', () => {
      it('may come with the policy', async () => {
        const policy = { ...API, name: 'dear', cost: 2 };
        expect((await attempts(2, policy)).map(({ allowed }) => allowed)).toEqual([true, false]);
      });

      it.each([0, -1, 1.5, NaN, 1_001, '1'])('is refused when it is %p', async (cost) => {
        await expect(limiter.check('ann', LOGIN, { cost: cost as number })).rejects.toMatchObject({
          code: 'InvalidArgument',
        });
      });

      it.each([API, BULK])('is refused when it could never fit $name', async (policy) => {
        await expect(limiter.check('ann', policy, { cost: 4 })).rejects.toThrow(
          `${policy.name}.cost must be an integer from 1 to 3`,
        );
      });
    });

    describe('peek', () => {
      it('decides as about a call of the given cost, or of that of the policy', async () => {
        for (const policy of [API, BULK, { ...API, name: 'failed', count: 'failure' as const }]) {
          await limiter.check('ann', policy, { cost: 2 });
          advance(seconds(4));
          expect(await limiter.peek('ann', policy, { cost: 1 })).toMatchObject({
            allowed: true,
            remaining: 1,
          });
          const denied = { allowed: false, retryAfterMs: seconds(6), shortCount: 2 };
          expect(await limiter.peek('ann', policy, { cost: 2 })).toMatchObject(denied);
          expect(await limiter.peek('ann', { ...policy, cost: 2 })).toMatchObject(denied);
          expect(await limiter.peek('ann', policy)).toMatchObject({ allowed: true, shortCount: 2 });
          await expect(limiter.peek('ann', policy, { cost: 4 })).rejects.toThrow(/cost must be an integer/);
        }
      });

      it('says whether the key is known', async () => {
        const known = async (key: string, policy: PolicyRef): Promise<boolean> =>
          (await limiter.peek(key, policy)).known;
        const unlimited = { name: 'unlimited', limit: 'unlimited', windowMs: 1_000 } as const;
        for (const policy of [LOGIN, API, BULK, unlimited]) {
          expect(await known('ann', policy)).toBe(false);
          await limiter.check('ann', policy);
          expect(await known('ann', policy)).toBe(policy !== unlimited);
          expect(await known('bob', policy)).toBe(false);
          await limiter.reset('ann', policy);
          expect(await known('ann', policy)).toBe(false);
          await limiter.block('ann', policy, seconds(1));
          expect(await known('ann', policy)).toBe(true);
          await limiter.unblock('ann', policy);
          expect(await known('ann', policy)).toBe(false);
        }
        await attempts(3, LOGIN, 'bob');
        expect(await known('bob', [LOGIN, API])).toBe(true);
        advance(hours(25));
        expect(await known('bob', LOGIN)).toBe(false);
      });
    });

    describe('by parts in place of a key', () => {
      const ADDRESS = '203.0.113.7';
      const EMAIL = 'ann@example.org';
      const tiers = { temp: { windowMs: minutes(1), threshold: 2, blockMs: minutes(10) } };
      const BOTH = { ...tiers, name: 'guesses', keyBy: ['ip', 'body.email'] } satisfies LimitPolicy;
      const BY_IP = { ...tiers, name: 'guesses#2', keyBy: 'ip' } satisfies LimitPolicy;
      const BY_EMAIL = { ...tiers, name: 'guesses#3', keyBy: 'body.email' } satisfies LimitPolicy;
      const GUESSES = [BOTH, BY_IP, BY_EMAIL];
      const parts = { ip: ADDRESS, 'body.email': EMAIL };
      const byIp = JSON.stringify([['ip', ADDRESS]]);
      const byEmail = JSON.stringify([['body.email', EMAIL]]);
      const byBoth = JSON.stringify([
        ['ip', ADDRESS],
        ['body.email', EMAIL],
      ]);
      const block = async (key: string, policy: LimitPolicy): Promise<void> => {
        for (let i = 0; i < 2; i++) await limiter.check(key, policy);
      };
      const isDenied = async (key: string, policy: LimitPolicy): Promise<boolean> =>
        !(await limiter.peek(key, policy)).allowed;

      it('keyOf gives the key that a route makes', () => {
        expect(limiter.keyOf(BOTH, { ip: `::ffff:${ADDRESS}`, 'body.email': ' ANN@example.org\u200b' })).toBe(
          byBoth,
        );
        expect(limiter.keyOf(BOTH, { ip: ADDRESS, 'body.email': '' })).toBe(byIp);
        const by = (keyBy: LimitPolicy['keyBy'], given: object): string =>
          limiter.keyOf({ ...API, keyBy }, given as Record<string, unknown>);
        expect(by('ip', { ip: '2001:db8::1' })).toBe('[["ip","2001:db8:0:0::/64"]]');
        expect(by('user', { user: { id: 7 } })).toBe('[["user","7"]]');
        expect(by('user', { user: 'U\u200b7' })).toMatch(/^\[\["user","[\w-]{43}"\]\]$/);
        expect(by('headers.x-api-key', { 'headers.x-api-key': 'Key' })).toBe('[["headers.x-api-key","Key"]]');
        expect(by(() => 'a', { key: 'a' })).toBe('[["key","a"]]');
        expect(by('route', { ip: ADDRESS, route: 'GET /' })).toBe(`[["ip","${ADDRESS}"],["route","GET /"]]`);
        expect(by('body.email', { 'body.email': ['a', 'b'] })).toBe(by('body.email', { 'body.email': {} }));
      });

      it('refuses parts that are missing or unknown, and a key of several limits', () => {
        const keyOf = (policy: PolicyRef, given: object) => () =>
          limiter.keyOf(policy, given as Record<string, unknown>);
        expect(keyOf(BOTH, { ip: ADDRESS })).toThrow(/lack `body.email`/);
        expect(keyOf(BOTH, { ip: ADDRESS, 'body.email': undefined })).toThrow(/lack `body.email`/);
        expect(keyOf(BY_IP, { ip: ADDRESS, 'body.mail': EMAIL })).toThrow(/counts by `body.mail`/);
        expect(keyOf(GUESSES, parts)).toThrow(/has 3 limits/);
        expect(keyOf('nobody', parts)).toThrow(LimitError);
      });

      it('peek, unblock, forgive and reset reach each limit of a name', async () => {
        await block(byBoth, BOTH);
        await limiter.check(byIp, BY_IP);
        expect(await limiter.peek(parts, GUESSES)).toMatchObject({
          allowed: false,
          scope: 'temp',
          known: true,
        });
        expect(await limiter.forgive(parts, GUESSES)).toEqual({ blocked: true, attempts: 3 });
        expect(await limiter.unblock(parts, GUESSES)).toEqual({ blocked: true, attempts: 1 });
        await block(byEmail, BY_EMAIL);
        expect(await limiter.reset(parts, GUESSES)).toEqual({ blocked: true, attempts: 3 });
        expect(await limiter.peek(parts, GUESSES)).toMatchObject({ allowed: true, known: false });
        await expect(limiter.reset({ ip: ADDRESS }, GUESSES)).rejects.toMatchObject({
          code: 'InvalidArgument',
        });
      });

      describe('lift', () => {
        const from = (address: string, email = EMAIL): string =>
          JSON.stringify([
            ['ip', address],
            ['body.email', email],
          ]);

        it('lifts the blocks of an account from all addresses, with their counts, and no others', async () => {
          for (const n of [1, 2, 3]) await block(from(`203.0.113.${n}`), BOTH);
          await block(from(ADDRESS, 'bob@example.org'), BOTH);
          await limiter.check(from('203.0.113.9'), BOTH);
          await block(byIp, BY_IP);
          await block(byEmail, BY_EMAIL);
          expect(await limiter.lift(GUESSES, { 'body.email': ' Ann@example.org' })).toEqual({ lifted: 4 });
          for (const n of [1, 2, 3])
            expect(await limiter.peek(from(`203.0.113.${n}`), BOTH)).toMatchObject({
              allowed: true,
              known: false,
            });
          expect(await isDenied(byEmail, BY_EMAIL)).toBe(false);
          expect(await isDenied(from(ADDRESS, 'bob@example.org'), BOTH)).toBe(true);
          expect(await isDenied(byIp, BY_IP)).toBe(true);
          expect(await limiter.peek(from('203.0.113.9'), BOTH)).toMatchObject({ shortCount: 1 });
          expect(await limiter.lift(GUESSES, { 'body.email': EMAIL })).toEqual({ lifted: 0 });
        });

        it('lifts a block that was set again, and no block that is over', async () => {
          await block(from(ADDRESS), BOTH);
          await limiter.lift(GUESSES, { 'body.email': EMAIL });
          await block(from(ADDRESS), BOTH);
          expect(await limiter.lift(GUESSES, { 'body.email': EMAIL })).toEqual({ lifted: 1 });
          await block(from(ADDRESS), BOTH);
          advance(minutes(10));
          expect(await limiter.lift(GUESSES, { 'body.email': EMAIL })).toEqual({ lifted: 0 });
        });

        it('leaves a block by hand', async () => {
          await block(from(ADDRESS), BOTH);
          await limiter.block(from(ADDRESS), BOTH, minutes(20));
          await limiter.block(byEmail, BY_EMAIL, minutes(20));
          expect(await limiter.lift(GUESSES, { 'body.email': EMAIL })).toEqual({ lifted: 0 });
          expect(await isDenied(from(ADDRESS), BOTH)).toBe(true);
        });

        it('finds accounts that are no ASCII', async () => {
          const email = 'änn@example.org';
          const key = limiter.keyOf(BOTH, { ip: ADDRESS, 'body.email': email });
          await block(key, BOTH);
          expect(await limiter.lift(BOTH, { 'body.email': email })).toEqual({ lifted: 1 });
          expect(await isDenied(key, BOTH)).toBe(false);
        });

        it('refuses parts that name no account', async () => {
          const wrong = { code: 'InvalidArgument' };
          await expect(limiter.lift(BY_IP, { ip: ADDRESS })).rejects.toMatchObject(wrong);
          await expect(limiter.lift(GUESSES, parts)).rejects.toMatchObject(wrong);
          await expect(limiter.lift(GUESSES, {})).rejects.toMatchObject(wrong);
          await expect(limiter.lift(GUESSES, { 'body.email': '' })).rejects.toMatchObject(wrong);
        });
      });
    });

    describe('by hand', () => {
      it('reset, unblock and forgive say what they have found', async () => {
        const change = {
          reset: (key = 'ann', policy: PolicyRef = LOGIN) => limiter.reset(key, policy),
          unblock: (key = 'ann', policy: PolicyRef = LOGIN) => limiter.unblock(key, policy),
          forgive: (key = 'ann', policy: PolicyRef = LOGIN) => limiter.forgive(key, policy),
        };
        const nothing = { blocked: false, attempts: 0 };
        for (const operation of Object.values(change)) {
          expect(await operation()).toEqual(nothing);
          await attempts(2);
          expect(await operation()).toEqual({ blocked: false, attempts: 2 });
          await limiter.reset('ann', LOGIN);
          await attempts(6);
          expect(await operation()).toEqual({ blocked: true, attempts: 5 });
          await limiter.reset('ann', LOGIN);
          await attempts(2);
          await limiter.block('ann', LOGIN, seconds(1));
          expect(await operation()).toEqual({ blocked: true, attempts: 2 });
          advance(hours(2));
          expect(await operation()).toEqual(nothing);
          await limiter.check('ann', BULK, { cost: 2 });
          expect(await operation('ann', BULK)).toEqual({ blocked: false, attempts: 2 });
          await limiter.reset('ann', BULK);
        }
      });

      it('of several limits they say whether any was blocked, and how many attempts there were', async () => {
        await limiter.check('ann', [LOGIN, API]);
        await limiter.block('ann', API, seconds(1));
        expect(await limiter.unblock('ann', [LOGIN, API])).toEqual({ blocked: true, attempts: 2 });
        expect(await limiter.reset('ann', [LOGIN, API])).toEqual({ blocked: false, attempts: 2 });
        expect(await limiter.reset('ann', [LOGIN, API])).toEqual({ blocked: false, attempts: 0 });
      });

      it('refuses what makes no sense', async () => {
        const wrong = { code: 'InvalidArgument' };
        await expect(limiter.block('ann', LOGIN, 0)).rejects.toMatchObject(wrong);
        await expect(limiter.block('ann', LOGIN, days(366) + 1)).rejects.toMatchObject(wrong);
        await expect(limiter.block('ann', LOGIN, 1, 'x'.repeat(201))).rejects.toMatchObject(wrong);
        await expect(limiter.forgive('ann', LOGIN, 0)).rejects.toMatchObject(wrong);
        await expect(limiter.check('', LOGIN)).rejects.toMatchObject(wrong);
        await expect(limiter.check('x'.repeat(513), LOGIN)).rejects.toMatchObject(wrong);
        await expect(limiter.check('ann', 'logn')).rejects.toThrow(
          /^There is no policy "logn"\. Correct the name, or add the policy to the `limits` option\. There are: login, /,
        );
        await expect(limiter.check('ann', { limit: 1, windowMs: 1 })).rejects.toThrow(/name/);
      });
    });

    describe('keys', () => {
      it('are apart by limiter and by key, and one after NFC', async () => {
        const other = { ...LOGIN, name: 'other' };
        await attempts(2, LOGIN, 'é');
        expect(await attempt(LOGIN, 'e\u0301')).toMatchObject({ shortCount: 3 });
        expect(await attempt(other, 'é')).toMatchObject({ shortCount: 1 });
        expect(await attempt(LOGIN, 'e')).toMatchObject({ shortCount: 1 });
      });

      it('cannot be made to meet by a clever choice', async () => {
        await attempt({ ...API, name: 'a' }, 'b\0c');
        expect(await attempt({ ...API, name: 'a b' }, 'c')).toMatchObject({ shortCount: 1 });
        expect(await attempt({ ...API, name: 'a' }, 'b:c')).toMatchObject({ shortCount: 1 });
        expect(await attempt({ ...API, name: 'a' }, '{b}c')).toMatchObject({ shortCount: 1 });
      });
    });

    describe('limiter(), the thin wrapper', () => {
      it('is silent while allowed, and throws with the time to wait', async () => {
        for (let i = 0; i < 4; i++) await expect(limiter.limiter('ann', LOGIN)).resolves.toBeUndefined();
        const error = await limiter.limiter('ann', LOGIN).catch((reason: unknown) => reason);
        expect(error).toBeInstanceOf(TooManyAttemptsError);
        expect(error).toMatchObject({
          code: 'TooManyAttempts',
          message: 'Too many attempts. Try again in 60 seconds.',
          retryAfterSecs: 60,
          context: { retryAfter: 60 },
        });
      });

      it('is RateLimited for a limit without a block, and as the policy says', async () => {
        for (const policy of [API, BULK]) {
          await attempts(3, policy);
          await expect(limiter.limiter('ann', policy)).rejects.toMatchObject({
            ...{ code: 'RateLimited', retryAfterSecs: 10 },
          });
        }
        const named = { ...API, code: 'TooManyAttempts' } as const;
        await expect(limiter.limiter('ann', named)).rejects.toMatchObject({ code: 'TooManyAttempts' });
      });
    });

    describe('a policy that counts failures', () => {
      const policy = resolvePolicy({ ...LOGIN, count: 'failure' });
      const check: LimitCheck = { policy, identity: 'login\0ann', cost: 1 };
      const enter = async (
        callId = createCallId(),
      ): Promise<{ callId: string; status: string; reason?: string }> => {
        const [decision] = await harness.backend.check([check], callId);
        return {
          callId,
          status: decision?.status ?? '',
          ...(decision?.status === 'denied' ? { reason: decision.reason } : {}),
        };
      };
      it('counts a call whose process died, from where its flight began, and without a block', async () => {
        for (let i = 0; i < 5; i++) await enter();
        expect(await enter()).toMatchObject({ reason: 'busy' });
        advance(minutes(1) - 1);
        expect(await enter()).toMatchObject({ reason: 'busy' });
        advance(1);
        // They are as old as the short window by now, and fill the long one with 5 of 12.
        expect((await harness.backend.check([check], createCallId()))[0]).toMatchObject({
          status: 'allowed',
          shortCount: 0,
          longCount: 5,
        });
      });

      it.each([1, 2])(
        'counts a call of cost %i whose renewals have ended from its beginning',
        async (cost) => {
          const slow: LimitCheck = {
            policy: resolvePolicy({
              name: 'slow',
              count: 'failure',
              temp: { windowMs: minutes(10), threshold: 6, blockMs: hours(1) },
            }),
            identity: 'slow\0ann',
            cost,
          };
          const counted = async (): Promise<unknown> => {
            const callId = createCallId();
            const [decision] = await harness.backend.check([slow], callId);
            await harness.backend.withdraw(slow, callId, false);
            return decision;
          };
          const [renewed, withdrawn, confirmed] = [createCallId(), createCallId(), createCallId()];
          for (const callId of [renewed, withdrawn, confirmed]) {
            await harness.backend.check([slow], callId);
            advance(seconds(1));
          }
          for (let i = 0; i < 8; i++) {
            advance(seconds(30));
            for (const callId of [renewed, withdrawn, confirmed]) await harness.backend.renew(slow, callId);
          }
          await harness.backend.withdraw(slow, withdrawn, false);
          await harness.backend.confirm(slow, confirmed, { blocks: false }); // Counts from now, at 4 min 3 s.
          expect(await counted()).toMatchObject({ status: 'allowed', shortCount: cost });
          advance(seconds(60));
          expect(await counted()).toMatchObject({ status: 'allowed', shortCount: 2 * cost });
          advance(minutes(5) - seconds(3) - 1); // The window of the one that lapsed ends 10 minutes after its beginning.
          expect(await counted()).toMatchObject({ status: 'allowed', shortCount: 2 * cost });
          advance(2);
          expect(await counted()).toMatchObject({ status: 'allowed', shortCount: cost });
          advance(minutes(4) + seconds(3));
          expect(await counted()).toMatchObject({ status: 'allowed', shortCount: 0 });
        },
      );
    });
  });
}

/** A limiter that asks its backend each time. */
export function limiterOn(
  backend: LimitBackend,
  options: Parameters<typeof resolveLimitDefaults>[0] = {},
): AbuseLimiterService {
  const limit = resolveLimitDefaults({ denyCacheMs: 0, commandTimeoutMs: 10_000, ...(options as object) });
  return new AbuseLimiterService(backend, new MemoryLimitBackend(), {
    limit,
    limits: resolveLimits({ login: LOGIN }, limit),
  });
}

export { API, BULK, LimitError, LOGIN };
