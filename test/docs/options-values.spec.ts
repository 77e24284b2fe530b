import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { Test, type TestingModule } from '@nestjs/testing';
import {
  AbuseLimiterService,
  BudgetService,
  CounterService,
  LockService,
  SecretService,
  SyncGuardModule,
} from 'nestjs-syncguard';
import { DEFAULT_LOCK_OPTIONS, resolveLockCall, usualCall } from '../../lib/lock/lock.options.js';
import { resolvePolicy } from '../../lib/limit/limit.policy.js';
import { resolveOptions } from '../../lib/module/syncguard.options.js';
import { ROOT } from './sources.js';

const page = readFileSync(join(ROOT, 'docs/options.md'), 'utf8');

interface Row {
  readonly option: string;
  readonly byDefault: string;
  readonly what: string;
}

/** Where a type begins: at the heading that names it alone, or at the line above its table. */
const parts = page.split(/^(?=###? |`\w+`(?: has also .*)?[.:]$)/m);

/** The rows of the table of a type. */
function rowsOf(type: string): Row[] {
  const isOf = (text: string): boolean =>
    new RegExp(`^(?:###.*: )?\`${type}\`(?: has also .*)?[.:]?$`, 'm').test(text.split('\n', 1)[0] ?? '');
  return parts.filter(isOf).flatMap((text) =>
    [...text.matchAll(/^\| `([^`|]*)` \| ([^|]*) \| (.*) \|$/gm)].map(
      ([, option = '', byDefault = '', what = '']) => ({
        option,
        byDefault: byDefault.trim(),
        what,
      }),
    ),
  );
}

const numberIn = (text: string): number => {
  const power = /^2\^(\d+) - 1$/.exec(text);
  if (power) return 2 ** Number(power[1]) - 1;
  const days = /^(\d+) days$/.exec(text);
  if (days) return Number(days[1]) * 86_400_000;
  if (text === '10 years') return 3_650 * 86_400_000;
  const [, bytes, unit] = /^(\d+) ([KM])iB$/.exec(text) ?? [];
  if (unit) return Number(bytes) * (unit === 'K' ? 1_024 : 1_048_576);
  return Number(text.replaceAll(',', ''));
};

const NUMBER = String.raw`2\^\d+ - 1|\d+ days|10 years|\d+ [KM]iB|\d[\d,]*`;

/** What a cell of the column "default" says. */
function defaultIn(cell: string): unknown {
  if (/^$|^(none|no limit|it does not block)\b/.test(cell)) return undefined;
  if (/^(a day|24 hours)$/.test(cell)) return 86_400_000;
  if (cell === '30 seconds') return 30_000;
  const [, code] = /^`([^`]+)`/.exec(cell) ?? [];
  if (code !== undefined)
    return code === '[]' ? [] : code.startsWith("'") ? code.slice(1, -1) : code === 'true';
  return new RegExp(`^(${NUMBER})$`).test(cell) ? numberIn(cell) : cell;
}

/** The least and the largest number that a row allows. A duration without a bound is from 1 to 2^31 - 1. */
function boundsIn({ option, what }: Row): { min: number; max: number } | undefined {
  if (/ASCII|UTF-8|percentages/i.test(what)) return undefined; // Lengths of a text, and bounds of items.
  const range = new RegExp(String.raw`(?:^|[^\d,])(${NUMBER})(?: ms)? to (${NUMBER})`).exec(what);
  if (range) return { min: numberIn(range[1] as string), max: numberIn(range[2] as string) };
  const max = new RegExp(String.raw`\bTo (${NUMBER})`).exec(what)?.[1];
  const min = new RegExp(String.raw`\b(?:From|, from|integer from|[Aa]t least) (${NUMBER})`).exec(what)?.[1];
  if (max === undefined && min === undefined && !option.endsWith('Ms')) return undefined;
  return { min: numberIn(min ?? '1'), max: numberIn(max ?? '2^31 - 1') };
}

/** `{ a: { b: value } }` for `a.b`. */
const nested = (path: string, value: unknown): Record<string, unknown> =>
  path.split('.').reduceRight<unknown>((inner, name) => ({ [name]: inner }), value) as Record<
    string,
    unknown
  >;

const at = (object: unknown, path: string): unknown =>
  path
    .split('.')
    .reduce<unknown>((value, name) => (value as Record<string, unknown> | undefined)?.[name], object);

interface Group {
  readonly type: string;
  /** The checked options, or an error. */
  resolve(options: Record<string, unknown>): unknown;
  /** Options whose default is said in words, or whose bound depends on others. */
  readonly inWords?: Readonly<Record<string, unknown>>;
}

const inModule = (group: string) => (options: Record<string, unknown>) =>
  at(resolveOptions(nested(group, options)), group);

// Without a block a call must fit into the limit, so a small limit would bound `cost`.
const POLICY = { limit: 9_999, windowMs: 60_000 };

const policy = (options: Record<string, unknown>): unknown =>
  resolvePolicy({ ...POLICY, name: 'p', ...options });

const GROUPS: readonly Group[] = [
  {
    type: 'SyncGuardOptions',
    resolve(options) {
      const resolved = resolveOptions(options);
      return { ...resolved, 'http.maxRetryAfterMs': resolved.maxRetryAfterMs };
    },
    inWords: {
      ...{ keyLayout: 'spec', limits: 'presets', shutdown: { drainMs: 10_000, heldLocks: 'expire' } },
      ...{ lock: '', limit: '', budget: '', secret: '', once: '' },
    },
  },
  {
    type: 'LockDefaults',
    resolve: inModule('lock'),
    inWords: { maxWaiting: { perKey: 1_000, perProcess: 10_000 } },
  },
  {
    type: 'LockCallOptions',
    resolve: (options) => resolveLockCall(options, usualCall(DEFAULT_LOCK_OPTIONS)),
    inWords: { minHoldOnFailureMs: 'as `minHoldMs`' },
  },
  {
    type: 'LimitDefaults',
    resolve: inModule('limit'),
    inWords: { headers: [], allow: [], user: 'the id of `request.user`', address: 'the server' },
  },
  {
    type: 'LimitPolicy',
    resolve: policy,
    inWords: { limit: '', windowMs: '', temp: '', long: '', blockMs: '' },
  },
  {
    type: 'LimitPolicyOptions',
    resolve: policy,
    inWords: {
      ...{ name: '', keyBy: '', escalation: '', onError: '', code: '', ask: '', isFailure: '' },
    },
  },
  {
    type: 'BudgetOptions',
    resolve: inModule('budget'),
    inWords: { limits: [], reaper: { everyMs: 30_000 }, 'reaper.everyMs': 30_000 },
  },
  { type: 'SecretOptions', resolve: inModule('secret') },
  {
    type: 'OnceModuleOptions',
    resolve: inModule('once'),
    inWords: { user: 'the id of `request.user`', encode: 'JSON, in clear', decode: 'JSON, in clear' },
  },
];

const read = (resolved: unknown, option: string): unknown =>
  (resolved as Record<string, unknown> | undefined)?.[option] ?? at(resolved, option);

describe.each(GROUPS)('$type in docs/options.md', ({ type, resolve, inWords = {} }) => {
  const rows = rowsOf(type);

  it('has rows', () => expect(rows.length).toBeGreaterThan(2));

  it.each(rows.filter(({ option }) => !(option in inWords)))(
    'has the default of $option: $byDefault',
    ({ option, byDefault }) => {
      expect(defaultIn(byDefault)).toEqual(read(resolve({}), option));
    },
  );

  it('has the defaults that it says in words', () => {
    const resolved = resolve({});
    for (const [option, value] of Object.entries(inWords)) {
      expect(rows.map((row) => row.option)).toContain(option);
      if (typeof value !== 'string') expect(read(resolved, option) ?? value).toEqual(value);
    }
  });

  it.each(
    rows.flatMap((row) => {
      const bounds = boundsIn(row);
      return bounds ? [{ ...row, ...bounds }] : [];
    }),
  )('has the bounds of $option: $min to $max', ({ option, min, max }) => {
    const give = (value: number): unknown => resolve(nested(option, value));
    expect(() => give(min)).not.toThrow();
    expect(() => give(max)).not.toThrow();
    expect(() => give(min - 1)).toThrow();
    expect(() => give(max + 1)).toThrow();
  });
});

describe('the calls in docs/options.md', () => {
  let module: TestingModule;
  beforeAll(async () => {
    const limits = [{ scope: 'user', period: 'lifetime' as const, limit: 'unlimited' as const }];
    module = await Test.createTestingModule({
      imports: [SyncGuardModule.forRoot({ budget: { limits, reaper: false }, shutdown: { drainMs: 0 } })],
    }).compile();
  });
  afterAll(() => module.close());

  let n = 0;
  const budgets = (): BudgetService => module.get(BudgetService);
  const reserve = { scopes: ['user'], amount: 1 };
  const CALLS: Readonly<Record<string, Readonly<Record<string, (value: number) => Promise<unknown>>>>> = {
    AcquireOptions: {
      ttlMs: (ttlMs) => module.get(LockService).acquire({ key: `key ${n++}`, ttlMs }),
    },
    IncrementOptions: {
      max: (max) => module.get(CounterService).increment(`key ${n++}`, { max, windowMs: 1 }),
      windowMs: (windowMs) => module.get(CounterService).increment(`key ${n++}`, { max: 1, windowMs }),
    },
    ReserveOptions: {
      ttlMs: (ttlMs) => budgets().reserve({ ...reserve, ttlMs }),
    },
    BudgetListOptions: {
      limit: (limit) => budgets().list({ limit }),
    },
    ReapOptions: {
      max: (max) => budgets().reap({ max }),
    },
    BudgetRef: {
      generation: (generation) => budgets().abort({ id: `id ${n++}`, generation }),
    },
    SecretByViews: {
      views: (views) => module.get(SecretService).create({ payload: 'x', views }),
    },
    SecretByTime: {
      ttlMs: (ttlMs) => module.get(SecretService).create({ payload: 'x', ttlMs }),
    },
    NewSecret: {
      maxFailures: (maxFailures) => module.get(SecretService).create({ payload: 'x', views: 1, maxFailures }),
    },
    ViewOptions: {
      leaseMs: (leaseMs) => module.get(SecretService).view(`id ${n++}`, { leaseMs }),
    },
  };

  const all = Object.entries(CALLS).flatMap(([type, calls]) =>
    Object.entries(calls).map(([option, call]) => ({ type, option, call })),
  );

  it.each(all)('have the bounds of $option in $type', async ({ type, option, call }) => {
    const row = rowsOf(type).find((each) => each.option === option);
    const { min, max } = (row && boundsIn(row)) ?? { min: NaN, max: NaN };
    // A lock of 1 ms may be over before its answer comes, but the option is accepted.
    const codeOf = (value: number): Promise<string | undefined> =>
      call(value).then(
        () => undefined,
        ({ code }: { code: string }) => code,
      );
    for (const value of [min, max]) expect(await codeOf(value)).not.toBe('InvalidArgument');
    for (const value of [min - 1, max + 1]) expect(await codeOf(value)).toBe('InvalidArgument');
  });

  it('have the defaults that the code has', async () => {
    const row = (type: string, option: string): unknown =>
      defaultIn(rowsOf(type).find((each) => each.option === option)?.byDefault ?? '');
    const before = Date.now();
    const hold = await budgets().reserve(reserve);
    const ttlMs = row('ReserveOptions', 'ttlMs') as number;
    expect(hold.ok && hold.expiresAtMs).toBeGreaterThanOrEqual(before + ttlMs);
    expect(hold.ok && hold.expiresAtMs).toBeLessThanOrEqual(Date.now() + ttlMs);
    const limiter = module.get(AbuseLimiterService);
    expect(await limiter.check('ann', { name: 'once', ...POLICY })).toMatchObject({
      shortCount: row('LimitPolicyOptions', 'cost'),
    });
  });
});
