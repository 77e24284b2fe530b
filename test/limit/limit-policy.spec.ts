import { resolveLimitDefaults, resolveLimits } from '../../lib/limit/limit.options.js';
import { costOf, withLimit, withWindow } from '../../lib/limit/limit.validate.js';
import { resolvePolicy, validateCost } from '../../lib/limit/limit.policy.js';
import { SyncGuardConfigError } from '../../lib/core/errors.js';

const tier = { windowMs: 60_000, threshold: 5, blockMs: 60_000 };
const plain = { name: 'api', limit: 10, windowMs: 1_000 };

const messageOf = (run: () => unknown): string => {
  try {
    run();
  } catch (error) {
    if (error instanceof SyncGuardConfigError) return error.message;
    throw error;
  }
  return 'no error';
};
const refusalOf = (policy: unknown): string =>
  messageOf(() => resolvePolicy(policy as never, { name: 'login' }));

describe('resolvePolicy', () => {
  it('makes a threshold of a limit: `limit: 5` denies the 6th', () => {
    expect(resolvePolicy(plain).rules).toMatchObject({
      tiers: [{ threshold: 11, blockMs: 0 }],
    });
    const { threshold: _, ...rest } = tier;
    expect(resolvePolicy({ name: 'x', temp: { ...rest, limit: 5 } }).rules.tiers[0].threshold).toBe(6);
  });

  it('fills in what a policy says nothing of', () => {
    expect(resolvePolicy(plain)).toMatchObject({
      cost: 1,
      count: 'attempt',
      onError: 'memory',
      code: 'RateLimited',
      keyBy: 'ip',
    });
    expect(resolvePolicy({ name: 'x', temp: tier })).toMatchObject({ code: 'TooManyAttempts' });
    expect(resolvePolicy(plain, { onError: 'closed', keyBy: 'user' })).toMatchObject({
      onError: 'closed',
      keyBy: 'user',
    });
  });

  it('takes a limit that comes with the request, later', () => {
    const policy = resolvePolicy({ ...plain, limit: () => 7 }, { isStatic: true });
    expect(policy).toMatchObject({ isStatic: false });
    expect(withLimit(policy, 7).rules.tiers[0].threshold).toBe(8);
    const warnings: string[] = [];
    const thresholdOf = (limit: unknown, of = policy): number =>
      withLimit(of, limit, (message) => warnings.push(message)).rules.tiers[0].threshold;
    expect([0, 0.5, 2.9, 'unlimited', Infinity].map((limit) => thresholdOf(limit))).toEqual([
      0,
      0,
      3,
      Infinity,
      Infinity,
    ]);
    expect(withLimit(policy, 20_000)).toMatchObject({
      ...{ algorithm: 'fixed-window', rules: { tiers: [{ threshold: 20_001 }] } },
    });
    const blocking = resolvePolicy({ ...plain, limit: () => 7, blockMs: 1_000 });
    expect(thresholdOf(20_000, blocking)).toBe(10_000);
    expect(warnings).toEqual([expect.stringMatching(/^RATE_LIMIT_CAPPED: .* api returned more than 9999/)]);
    for (const nonsense of [NaN, -1, -Infinity, '7', null, undefined, {}, [7], true])
      expect(() => withLimit(policy, nonsense)).toThrow(
        /^The limiter could not decide\. The function `limit` of the policy api must return/,
      );
  });

  it('takes a window that comes with the request, later', () => {
    const policy = resolvePolicy({ ...plain, windowMs: () => 5_000 }, { isStatic: true });
    expect(policy).toMatchObject({ isStatic: false });
    expect(withWindow(policy, 5_000.7).rules).toMatchObject({
      tiers: [{ windowMs: 5_000 }],
      penaltiesTtlMs: 5_000,
    });
    for (const nonsense of [0, -1, NaN, Infinity, '5000', undefined, 367 * 86_400_000])
      expect(() => withWindow(policy, nonsense)).toThrow(
        /^The limiter could not decide\. The function `windowMs` of the policy api must return/,
      );
  });

  it('takes a cost that comes with the request, later', () => {
    const policy = resolvePolicy({ ...plain, limit: 10, cost: () => 2 });
    expect([0, 1, 2.1, 10].map((cost) => costOf(policy, cost))).toEqual([0, 1, 3, 10]);
    expect(costOf(withLimit(policy, 'unlimited'), 5_000)).toBe(0);
    expect(() => costOf(policy, 11)).toThrow(/api\.cost must be an integer from 1 to 10/);
    for (const nonsense of [NaN, -1, '1', null, undefined, {}])
      expect(() => costOf(policy, nonsense)).toThrow(
        /^The limiter could not decide\. The function `cost` of the policy api must return/,
      );
  });

  it('counts in a sliding log unless told otherwise', () => {
    expect(resolvePolicy(plain)).toMatchObject({ algorithm: 'sliding-log' });
    expect(resolvePolicy({ ...plain, algorithm: 'fixed-window' })).toMatchObject({
      algorithm: 'fixed-window',
      code: 'RateLimited',
      count: 'attempt',
    });
  });

  it('lets a fixed window have limits and costs that a log could not hold', () => {
    const most = 2 ** 31 - 1;
    const policy = resolvePolicy({ ...plain, algorithm: 'fixed-window', limit: most, cost: most });
    expect(policy).toMatchObject({ cost: most, rules: { tiers: [{ threshold: most + 1 }] } });
    const dynamic = resolvePolicy({ ...plain, algorithm: 'fixed-window', limit: () => most, cost: 50_000 });
    expect(withLimit(dynamic, most).rules.tiers[0].threshold).toBe(most + 1);
    expect(() => validateCost(withLimit(dynamic, 100), 101)).toThrow(/api\.cost must be .* from 1 to 100,/);
    expect(withLimit(dynamic, most + 1).rules.tiers[0].threshold).toBe(most + 1);
  });

  const fixed = { limit: 10, windowMs: 1_000, algorithm: 'fixed-window' };
  it.each([
    ['temp', { algorithm: 'fixed-window', temp: tier }],
    ['long', { ...fixed, long: tier }],
    ['escalation', { ...fixed, escalation: { factor: 2, maxBlockMs: 1, strikeTtlMs: 1_000 } }],
    ["count: 'failure'", { ...fixed, count: 'failure' }],
    ["count: 'success'", { ...fixed, count: 'success' }],
  ])('refuses `%s` beside a fixed window', (option, policy) => {
    expect(refusalOf(policy)).toMatch(`login.${option} cannot be used with \`algorithm: 'fixed-window'\`.`);
  });

  const YEAR_MS = 31_622_400_000;
  const integer = (option: string, most: number, got: string): string =>
    `login.${option} must be an integer from 1 to ${most}, got ${got}.`;
  it.each([
    [{ ...fixed, limit: 2 ** 31 }, integer('limit', 2 ** 31 - 1, '2147483648 (number)')],
    [{ ...fixed, limit: 0 }, integer('limit', 2 ** 31 - 1, '0 (number)')],
    [{ ...fixed, cost: 11 }, integer('cost', 10, '11 (number)')],
    [{ ...fixed, windowMs: 0 }, integer('windowMs', YEAR_MS, '0 (number)')],
    [{ limit: 1, windowMs: 1, cost: 1_001 }, integer('cost', 1, '1001 (number)')],
    [{ limit: () => 1, windowMs: 1, cost: 1_001 }, integer('cost', 1_000, '1001 (number)')],
    [{ ...fixed, algorithm: 'gcra' }, /algorithm must be "sliding-log" or "fixed-window", got "gcra" \(s/],
    [{ limit: 0, windowMs: 1 }, integer('limit', 9_999, '0 (number)')],
    [{ limit: 1, windowMs: 0 }, integer('windowMs', YEAR_MS, '0 (number)')],
    [{ limit: 1, windowMs: 1.5 }, integer('windowMs', YEAR_MS, '1.5 (number)')],
    [{ limit: 1, windowMs: 1, blockMs: 0 }, integer('blockMs', YEAR_MS, '0 (number)')],
    [{ limit: 10_001, windowMs: 1 }, integer('limit', 9_999, '10001 (number)')],
    [{ temp: { ...tier, threshold: 0 } }, integer('temp.threshold', 10_000, '0 (number)')],
    [{ temp: { ...tier, windowMs: '60' } }, integer('temp.windowMs', YEAR_MS, '"60" (string)')],
    [{ temp: { ...tier, blockMs: undefined } }, integer('temp.blockMs', YEAR_MS, 'undefined')],
    [
      { temp: tier, long: { ...tier, windowMs: 1 } },
      'login.long.windowMs must be at least login.temp.windowMs (60000), got 1 (number).',
    ],
    [{ limit: 1, windowMs: 1, cost: 2 }, integer('cost', 1, '2 (number)')],
    [{ limit: 1, windowMs: 1, count: 'all' }, /count must be "attempt" or "failure" or "success", got "all"/],
    [
      { limit: 1, windowMs: 1, onError: 'shut' },
      /onError must be "closed" or "memory" or "open", got "shut"/,
    ],
    [{ limit: 1, windowMs: 1, keyBy: 7 }, /login\.keyBy must be 'ip', 'user'.*got 7 \(number\)/],
    [{ limit: 1, windowMs: 1, keyBy: [] }, /login\.keyBy must be/],
    [{ limit: 1, windowMs: 1, keyBy: 'email' }, /login\.keyBy must be/],
    [{ limit: 1, windowMs: 1, keyBy: 'body' }, /login\.keyBy must be/],
    [{ limit: 1, windowMs: 1, name: 'a\nb' }, /name must be 1 to 200 printable ASCII/],
    [{ limit: 1, windowMs: 1, max: 3 }, /login\.max is not an option\. The options are: limit, /],
    [{ temp: { ...tier, limit: 5 } }, /login\.temp must have either `threshold` or `limit`/],
    [{ temp: { windowMs: 1, blockMs: 1 } }, /login\.temp must have either `threshold` or `limit`/],
    [{ limit: 1, windowMs: 1, temp: tier }, /either `limit` and `windowMs`, or `temp`/],
    [{}, /either `limit` and `windowMs`, or `temp`/],
    [{ limit: 1, windowMs: 1, long: tier }, /login\.long needs login\.temp/],
    [{ temp: tier, windowMs: 1 }, /must be inside login\.temp/],
    [{ limit: 1, windowMs: 1, escalation: {} }, /login\.escalation needs a policy that blocks/],
    [{ temp: tier, escalation: { factor: 0 } }, /factor must be a number from 1 to 100/],
    [
      { temp: tier, escalation: { factor: 2, strikeTtlMs: 60_000 } },
      /maxBlockMs must be an integer from 60000/,
    ],
    [
      { temp: tier, escalation: { factor: 2, maxBlockMs: 60_000, strikeTtlMs: 1 } },
      /strikeTtlMs must be an integer from 60000/,
    ],
    [[], /must be an object|either `limit`/],
  ])('refuses %j', (policy, message) => {
    expect(refusalOf(policy)).toEqual(typeof message === 'string' ? message : expect.stringMatching(message));
  });
});

describe('resolveLimits', () => {
  const defaults = resolveLimitDefaults();

  it('names policies by their key, and those of a list by their place', () => {
    const limits = resolveLimits(
      { mine: plain, list: [{ temp: tier }, { limit: 5, windowMs: 1 }, plain] },
      defaults,
    );
    expect(limits.get('mine')?.map(({ name }) => name)).toEqual(['api']);
    expect(limits.get('list')?.map(({ name }) => name)).toEqual(['list', 'list#2', 'api']);
  });

  it('knows the presets, and lets a policy of the same name win', () => {
    const limits = resolveLimits({ api: { limit: 7, windowMs: 1 } }, defaults);
    expect(limits.get('api')?.[0]?.rules.tiers[0].threshold).toBe(8);
    expect(limits.get('login')).toMatchObject([
      { count: 'failure' },
      { count: 'failure' },
      { count: 'failure' },
    ]);
    expect([...limits.keys()].sort()).toEqual(['api', 'login', 'otp', 'signup']);
  });

  it('refuses a list that is empty or too long', () => {
    expect(messageOf(() => resolveLimits({ login: [] }, defaults))).toMatch(
      /login must have 1 to 8 policies, got 0/,
    );
    expect(messageOf(() => resolveLimits({ login: Array(9).fill(plain) }, defaults))).toMatch(/got 9/);
  });
});

describe('resolveLimitDefaults', () => {
  it('has defaults', () => {
    expect(resolveLimitDefaults()).toEqual({
      onError: 'memory',
      commandTimeoutMs: 250,
      denyCacheMs: 1_000,
      maxFlightMs: 600_000,
      headers: [],
      keyBy: 'ip',
      ipv6Subnet: 64,
      skipIf: undefined,
      allow: [],
      strictBoot: true,
    });
  });

  it.each([
    [{ user: 'id' }, /limit\.user must be a function/],
    [{ address: 'cf-connecting-ip' }, /limit\.address must be a header such as/],
    [{ address: 'body.ip' }, /limit\.address must be a header such as/],
    [{ address: 'headers.X-Forwarded-For' }, /limit\.address must not be .*trust proxy/],
    [{ address: 'headers.forwarded' }, /limit\.address must not be .*trust proxy/],
    [{ keyBy: ['headers.x-forwarded-for', 'route'] }, /limit\.keyBy must not be .*trust proxy/],
    [{ commandTimeoutMs: 0 }, /limit\.commandTimeoutMs must be an integer from 1 to 60000/],
    [{ denyCacheMs: -1 }, /limit\.denyCacheMs must be an integer from 0 to 60000/],
    [{ headers: 'draft-6' }, /limit\.headers must be 'draft-10', 'legacy'/],
    [{ ipv6Subnet: 8 }, /limit\.ipv6Subnet must be an integer from 32 to 128/],
    [{ allow: ['health'] }, /limit\.allow must be a list of paths/],
    [{ skipIf: true }, /limit\.skipIf must be a function/],
    [{ timeout: 1 }, /limit\.timeout is not an option/],
  ])('refuses %j', (options, message) => {
    expect(messageOf(() => resolveLimitDefaults(options))).toMatch(message);
  });
});
