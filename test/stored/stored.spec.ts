import { Test, type TestingModule } from '@nestjs/testing';
import type { Redis } from 'ioredis';
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import {
  AbuseLimiterService,
  BudgetService,
  CounterService,
  FenceGuard,
  hours,
  lockKey,
  LockService,
  minutes,
  OnceService,
  seconds,
  SecretService,
  SyncGuardModule,
} from '../../lib/index.js';
import { type Parts, SYNCGUARD_PARTS } from '../../lib/module/syncguard.parts.js';
import { freshRedis } from '../support/redis.js';
import type { RedisEndpoint } from '../support/redis-server.js';
import { drawFrom, drawInOrder, renumbered } from './drawn.js';
import { API, type App, BUDGETS, COUNTERS, type Kinds, LIMITS, LOCKS, ONCE, SECRETS } from './kinds.js';
import { ODD_KEYS } from './odd-keys.js';
import { inShort, whatStands } from './what-stands.js';

/** Said by a test that is red. */
const DECISION = `What SyncGuard stores has changed: the name of a key, or a record.
Programs of the version before read and write the same keys, so this is a decision. If you have made it:
  1. npm run stored:update, and read the difference
  2. a line in CHANGELOG.md
  3. a line in docs/rolling-out.md, which says what may not run beside what
  4. docs/wire-format.md, if it describes what has changed`;

/** Where the server's clock stands: in the middle of a minute, an hour, a day and a month. */
const NOW_MS = Date.UTC(2026, 2, 14, 9, 26, 53, 589);

function compare(name: string, about: string, sections: readonly string[]): void {
  const text = [about, 'Written by `npm run stored:update`. A change is a decision: see docs/rolling-out.md.']
    .concat(
      sections.map((section) => `\n${section}`),
      '',
    )
    .join('\n');
  const file = join(__dirname, name);
  if (process.env.STORED === 'update') writeFileSync(file, text);
  const kept = readFileSync(file, 'utf8');
  try {
    expect(text).toBe(kept);
  } catch (error) {
    (error as Error).message = `${DECISION}\n\n${(error as Error).message}`;
    throw error;
  }
}

describe('what stands in Redis', () => {
  let redis: RedisEndpoint;
  let admin: Redis;
  const modules: TestingModule[] = [];

  beforeAll(drawInOrder);
  beforeEach(async () => {
    redis = await freshRedis();
    redis.clock.hold(NOW_MS);
    admin = redis.client();
  });
  afterEach(async () => {
    await closeAll();
    redis.clock.reset();
  });
  afterAll(() => jest.restoreAllMocks());

  const closeAll = async (): Promise<void> => {
    for (const module of modules.splice(0)) await module.close();
  };

  /** An app with all features on an empty server. */
  async function startApp(keyLayout: 'spec' | 'slotted'): Promise<App> {
    const module = await Test.createTestingModule({
      imports: [
        SyncGuardModule.forRoot({
          redis: redis.client(),
          keyLayout,
          shutdown: { drainMs: 0 },
          budget: {
            reaper: false,
            limits: [
              { scope: 'user', period: { every: 'day' }, limit: 10_000, thresholds: [50, 90] },
              { scope: 'org', period: { every: 'month' }, limit: 1_000_000 },
              { scope: 'prepaid', period: 'lifetime', limit: 0 },
            ],
          },
        }),
      ],
    }).compile();
    modules.push(module);
    await admin.flushall();
    drawFrom(0);
    return {
      locks: module.get(LockService),
      fences: module.get(FenceGuard),
      limits: module.get(AbuseLimiterService),
      counters: module.get(CounterService),
      budgets: module.get(BudgetService),
      secrets: module.get(SecretService),
      once: module.get(OnceService),
      backends: module.get<Parts>(SYNCGUARD_PARTS).backends,
      admin,
      advance: (ms) => redis.clock.advance(ms),
    };
  }

  /** What a server has after each of these was done on it alone. */
  async function recordsOf(title: string, layout: 'spec' | 'slotted', kinds: Kinds): Promise<string[]> {
    const sections: string[] = [];
    for (const [kind, make] of Object.entries(kinds)) {
      redis.clock.hold(NOW_MS);
      await make(await startApp(layout));
      sections.push(`## ${title}: ${kind}\n${renumbered(await whatStands(admin))}`);
      await closeAll();
    }
    return sections;
  }

  it('is records in the form of test/stored/records.txt', async () => {
    compare('records.txt', 'One record of each kind.', [
      ...(await recordsOf('locks, layout spec', 'spec', LOCKS)),
      ...(await recordsOf('locks, layout slotted', 'slotted', LOCKS)),
      ...(await recordsOf('limits', 'spec', LIMITS)),
      ...(await recordsOf('counters', 'spec', COUNTERS)),
      ...(await recordsOf('budgets', 'spec', BUDGETS)),
      ...(await recordsOf('secrets', 'spec', SECRETS)),
      ...(await recordsOf('once', 'spec', ONCE)),
    ]);
  });

  /** The names that each of these keys leads to. */
  async function namesOf(
    title: string,
    keys: readonly string[],
    use: (key: string) => Promise<unknown>,
    named = () => admin.keys('*'),
  ): Promise<string> {
    const lines = [`## ${title}`];
    for (const key of keys) {
      await use(key);
      lines.push(renumbered([key, ...(await named()).sort()].map(inShort).join('\n    ')));
      await admin.flushall();
    }
    return lines.join('\n');
  }

  it('is keys of the names in test/stored/names.txt', async () => {
    const [spec, slotted] = [await startApp('spec'), await startApp('slotted')];
    const fenced = { fence: '017734808135890', lockId: 'lockId-00000000000000w' };
    const { fences, limits, counters, budgets, secrets, once } = spec;
    const hashed = ODD_KEYS.slice(0, 12);
    const scoped = ODD_KEYS.filter((key) => Buffer.byteLength(`user:${key}`) <= 512);
    const fields = async (): Promise<string[]> => {
      const keys = ['b', 'h'].map((key) => `syncguard/budget:{default}:${key}`);
      const names = await Promise.all(keys.map((key) => admin.hkeys(key)));
      return names.flat().filter((name) => name !== '~');
    };
    const templates = ['user:{0}', '{0}-of/{1}'];
    compare('names.txt', 'The names that keys of users lead to.', [
      ['## keys of the templates `user:{0}` and `{0}-of/{1}`']
        .concat(
          ODD_KEYS.map((key) =>
            [key, ...templates.map((each) => lockKey(each, key, key))].map(inShort).join('\n    '),
          ),
        )
        .join('\n'),
      await namesOf('locks, layout spec', ODD_KEYS, (key) => acquireTwice(spec, key)),
      await namesOf('locks, layout slotted', ODD_KEYS, (key) => acquireTwice(slotted, key)),
      await namesOf('fences of resources', ODD_KEYS, (resource) => fences.apply({ resource, ...fenced })),
      await namesOf('limits', hashed, (key) => limits.check(key, API)),
      await namesOf('counters', hashed, (key) => counters.increment(key, { max: 9, windowMs: hours(1) })),
      await namesOf('secrets', hashed, (id) => secrets.create({ payload: 'p', views: 1, id })),
      await namesOf('calls that are answered once', hashed, (key) => once.run(() => 1, { key })),
      await namesOf('roots of budgets', ODD_KEYS, (root) =>
        budgets.reserve({ root, scopes: ['org'], amount: 1, id: 'job-1' }),
      ),
      await namesOf(
        'fields of budgets: the scope `user:<key>`, and an operation with the key as its id',
        scoped,
        (key) => budgets.reserve({ scopes: [`user:${key}`], amount: 1, id: key }),
        fields,
      ),
    ]);
  });

  /** One call gets the lock, and one waits for it. */
  async function acquireTwice({ backends: { lock } }: App, key: string): Promise<void> {
    await lock.acquire({ key, ttlMs: seconds(30) });
    await lock.acquire({ key, ttlMs: seconds(30), turn: lock.takeTurn?.({ pollMs: minutes(1) }) });
  }
});
