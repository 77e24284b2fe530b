import type { Redis } from 'ioredis';
import type { Backends } from '../../lib/assembly/backends.js';
import {
  type AbuseLimiterService,
  type BudgetService,
  type CounterService,
  days,
  type FenceGuard,
  hours,
  type LimitPolicy,
  type LockService,
  minutes,
  seconds,
  type OnceService,
  type SecretService,
} from '../../lib/index.js';
import { resolvePolicy } from '../../lib/limit/limit.policy.js';
import { eventually } from '../support/eventually.js';

export interface App {
  readonly locks: LockService;
  readonly fences: FenceGuard;
  readonly limits: AbuseLimiterService;
  readonly counters: CounterService;
  readonly budgets: BudgetService;
  readonly secrets: SecretService;
  readonly once: OnceService;
  readonly backends: Backends;
  readonly admin: Redis;
  /** Moves the server's clock, which stands still. */
  advance(ms: number): void;
}

/** What leads to a record of each kind, by its title in records.txt. */
export type Kinds = Readonly<Record<string, (app: App) => unknown>>;

export const LOCKS: Kinds = {
  'held, with its index and its fence': ({ locks }) => locks.acquire({ key: 'order:42', ttlMs: seconds(30) }),
  'two keys of one grant': ({ locks }) =>
    locks.acquire({ keys: ['{user:7}:cart', '{user:7}:wallet'], ttlMs: seconds(30) }),
  released: async ({ locks }) => {
    const lock = await locks.acquire({ key: 'order:42', ttlMs: seconds(30) });
    if (lock.ok) await lock.release();
  },
  'released by its id alone': async ({ locks }) => {
    const lock = await locks.acquire({ key: 'order:42', ttlMs: seconds(30) });
    if (lock.ok) await locks.release({ lockId: lock.lockId });
  },
  'with a queue': async ({ locks, backends, admin }) => {
    await locks.acquire({ key: 'order:42', ttlMs: seconds(30) });
    await queue(backends, admin);
  },
  'handed over, and not yet taken': async ({ locks, backends, admin }) => {
    const lock = await locks.acquire({ key: 'order:42', ttlMs: seconds(30) });
    await queue(backends, admin);
    await queue(backends, admin);
    if (lock.ok) await lock.release();
  },
  'the last fence of a resource, and what was written with it': async ({ fences }) => {
    const lockId = 'lockId-00000000000000w';
    await fences.apply({ resource: 'order:42', fence: '017734808135890', lockId });
    await fences.apply({
      resource: '{order:7}',
      fence: '017734808135890',
      lockId,
      set: { key: '{order:7}:state', value: 'paid' },
    });
  },
};

/** A call stands in the queue, under the name of its process. */
async function queue({ lock }: Backends, admin: Redis): Promise<void> {
  const turn = lock.takeTurn?.({ pollMs: minutes(1) });
  const attempt = async () => lock.acquire({ key: 'order:42', ttlMs: seconds(30), turn });
  const before = await admin.keys('*queue*');
  const standing = before[0] ? await admin.zcard(before[0]) : 0;
  await eventually(async () => {
    await attempt();
    const [name] = await admin.keys('*queue*');
    const waiters = name ? await admin.zrange(name, '0', '-1') : [];
    expect(waiters.filter((waiter) => !waiter.endsWith('-'))).toHaveLength(standing + 1);
  });
}

const LOGIN: LimitPolicy = {
  name: 'login',
  temp: { windowMs: minutes(1), threshold: 3, blockMs: minutes(5) },
  long: { windowMs: hours(1), threshold: 20, blockMs: hours(1) },
  escalation: { factor: 2, maxBlockMs: days(1), strikeTtlMs: days(1) },
};
export const API: LimitPolicy = { name: 'api', limit: 100, windowMs: minutes(1) };
const BULK: LimitPolicy = { ...API, name: 'bulk', algorithm: 'fixed-window' };

/** Waits until it is noted whose a block is. The call that has set it does not wait for that. */
const written = (admin: Redis, pattern = '*:whose:*'): Promise<void> =>
  eventually(async () => expect(await admin.keys(pattern)).toHaveLength(1));

export const LIMITS: Kinds = {
  'the log of attempts, one of which costs 3': async ({ limits }) => {
    await limits.check('ann', API);
    await limits.check('ann', API, { cost: 3 });
  },
  'calls in flight that may become failures': async ({ backends }) => {
    const policy = resolvePolicy({ ...LOGIN, name: 'otp', count: 'failure' });
    const check = { policy, identity: 'otp\0ann', cost: 1 };
    await backends.limit.check([check], 'call0001');
    await backends.limit.check([check], 'call0002');
    await backends.limit.confirm(check, 'call0002');
  },
  'calls in flight that may become successes': async ({ backends }) => {
    const policy = resolvePolicy({ ...LOGIN, name: 'signup', count: 'success' });
    await backends.limit.check([{ policy, identity: 'signup\0ann', cost: 1 }], 'call0001');
  },
  'a fixed window': ({ limits }) => limits.check('ann', BULK, { cost: 7 }),
  'a fixed window that has forgiven': async ({ limits }) => {
    await limits.check('ann', BULK, { cost: 7 });
    await limits.forgive('ann', BULK, 2);
  },
  'a block with its strikes': async ({ limits, admin }) => {
    for (let i = 0; i < 3; i++) await limits.check('ann', LOGIN);
    await written(admin);
  },
  'a block that is noted under its account': async ({ limits, admin }) => {
    for (let i = 0; i < 3; i++)
      await limits.check('[["ip","203.0.113.7"],["body.email","ann@example.org"]]', LOGIN);
    await written(admin, '*:noted:*');
  },
  'a fixed window under a block': async ({ limits, admin }) => {
    for (let i = 0; i < 3; i++) await limits.check('ann', { ...BULK, limit: 2, blockMs: minutes(5) });
    await written(admin);
  },
  'attempts that were forgiven': async ({ limits }) => {
    for (let i = 0; i < 2; i++) await limits.check('ann', LOGIN);
    await limits.forgive('ann', LOGIN, 1);
  },
  'a block by hand': ({ limits }) => limits.block('ann', LOGIN, hours(2), 'asked 2 x for all cards'),
};

export const COUNTERS: Kinds = {
  'counted without an id': ({ counters }) =>
    counters.increment('exports:7', { max: 10, cost: 3, windowMs: hours(1) }),
  'counted with an id': ({ counters }) =>
    counters.increment('exports:7', { max: 10, id: 'job-1', windowMs: hours(1) }),
};

const JOB = { scopes: ['user:42', 'org'], amount: 1_000, id: 'job-1' };

export const BUDGETS: Kinds = {
  'a pending hold, and the register of roots': ({ budgets }) =>
    budgets.reserve({ ...JOB, root: 'acme', meta: { model: 'large' } }),
  'a hold with a random id': ({ budgets }) => budgets.reserve({ scopes: ['org'], amount: 5 }),
  'a finalized hold that reached a threshold': async ({ budgets }) => {
    await budgets.finalize(expectOk(await budgets.reserve(JOB)), 5_500);
  },
  'an aborted hold': async ({ budgets }) => {
    await budgets.abort(expectOk(await budgets.reserve(JOB)));
  },
  'a hold that expired': async ({ budgets, advance }) => {
    await budgets.reserve({ ...JOB, ttlMs: seconds(60) });
    advance(seconds(61));
    await budgets.balance({ scope: 'org' });
  },
  'an id that was reserved again': async ({ budgets }) => {
    await budgets.abort(expectOk(await budgets.reserve(JOB)));
    await budgets.reserve({ ...JOB, renew: true });
  },
  'a charge and its refund': async ({ budgets }) => {
    await budgets.charge(JOB);
    await budgets.refund({ id: JOB.id }, 300, 'refund-1');
  },
  'a credit': ({ budgets }) =>
    budgets.credit({ scope: 'prepaid', period: 'lifetime', amount: 5_000, id: 'payment-1' }),
  'limits that were set': async ({ budgets }) => {
    await budgets.setLimit({ scope: 'user:42', period: { every: 'day' }, limit: 500 });
    await budgets.setLimit({ scope: 'org', period: { every: 'month' }, limit: 'unlimited' });
  },
};

const SECRET = { payload: 'door code 4711', views: 2, ttlMs: days(1), id: 'secret-1' };

export const SECRETS: Kinds = {
  'text, new': ({ secrets }) =>
    secrets.create({ ...SECRET, meta: { name: 'door.txt' }, label: 'order 42', maxFailures: 3 }),
  'bytes, without a deadline': ({ secrets }) =>
    secrets.create({ payload: Buffer.from([0xff, 0, 1]), views: 1, id: 'secret-1' }),
  'viewed once': async ({ secrets }) => {
    await secrets.create(SECRET);
    await secrets.view('secret-1', { viewId: 'view-1' });
  },
  'without a limit of views, viewed once': async ({ secrets }) => {
    await secrets.create({ ...SECRET, views: undefined as never });
    await secrets.view('secret-1', { viewId: 'view-1' });
  },
  'on lease': async ({ secrets }) => {
    await secrets.create(SECRET);
    await secrets.view('secret-1', { viewId: 'view-1', leaseMs: seconds(30) });
  },
  'on lease, with failures that count': async ({ secrets }) => {
    await secrets.create({ ...SECRET, maxFailures: 3 });
    await secrets.view('secret-1', { viewId: 'view-1', leaseMs: seconds(30) });
    await secrets.release('secret-1', 'view-1');
    await secrets.view('secret-1', { viewId: 'view-2', leaseMs: seconds(30) });
  },
  'a view that was released': async ({ secrets }) => {
    await secrets.create(SECRET);
    await secrets.view('secret-1', { viewId: 'view-1', leaseMs: seconds(30) });
    await secrets.release('secret-1', 'view-1');
  },
  'the tombstone of one that was used up': async ({ secrets }) => {
    await secrets.create({ ...SECRET, views: 1 });
    await secrets.view('secret-1', { viewId: 'view-1' });
  },
  'the tombstone of one that was burned': async ({ secrets }) => {
    await secrets.burn((await secrets.create(SECRET)).receipt);
  },
  'the tombstone of one that was burned while it was on lease': async ({ secrets }) => {
    const { receipt } = await secrets.create(SECRET);
    await secrets.view('secret-1', { viewId: 'view-1', leaseMs: seconds(30) });
    await secrets.burn(receipt);
  },
  'the tombstone of one that has expired': async ({ secrets, advance }) => {
    await secrets.create(SECRET);
    advance(days(1));
  },
};

const claim = { key: 'order:42', nonce: 'nonce-1', print: '-', leaseMs: seconds(30), keepMs: days(1) };

export const ONCE: Kinds = {
  'running, with a call that waits': async ({ backends: { once } }) => {
    await once.claim({ ...claim, afterCrash: 'refuse', waiter: '-', waitMs: 0 }, {});
    await once.claim(
      { ...claim, nonce: 'nonce-2', afterCrash: 'run', waiter: 'waiter-1', waitMs: 5_000 },
      {},
    );
  },
  'done, with a value': ({ once }) =>
    once.run(() => ({ charge: 'c1', at: new Date(0) }), { key: 'order:42', payload: { amount: 5 } }),
  'done, with the error of a body': async ({ once }) => {
    const decline = () => Promise.reject(new RangeError('declined'));
    await once.run(decline, { key: 'order:42', keep: () => true }).catch(() => {});
  },
  'done, without a result': ({ once }) => once.run(() => new Map(), { key: 'order:42' }),
  failed: ({ once }) => once.run(() => Promise.reject(new Error('x')), { key: 'order:42' }).catch(() => {}),
};

function expectOk<Result extends { readonly ok: boolean }>(result: Result): Extract<Result, { ok: true }> {
  expect(result.ok).toBe(true);
  return result as Extract<Result, { ok: true }>;
}
