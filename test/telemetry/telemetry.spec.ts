import 'reflect-metadata';
import { AsyncLocalStorage } from 'node:async_hooks';
import { createHmac } from 'node:crypto';
import { setImmediate as nextTurn, setTimeout as sleep } from 'node:timers/promises';
import { inspect } from 'node:util';
import { Logger } from '@nestjs/common';
import { Test, type TestingModule } from '@nestjs/testing';
import fc from 'fast-check';
import type { Redis } from 'ioredis';
import {
  AbuseLimiterService,
  BudgetService,
  CounterService,
  createMemoryBackend,
  createRedisBackend,
  hashKey,
  type LimitPolicy,
  type LockBackend,
  LockService,
  SecretService,
  SyncGuardConfigError,
  type SyncGuardEvent,
  SyncGuardModule,
  type SyncGuardOptions,
  type TelemetryOptions,
  withTelemetry,
} from 'nestjs-syncguard';
import { memoryBackends } from '../../lib/assembly/memory-backends.js';
import { observedBackends } from '../../lib/assembly/observed-backends.js';
import { BackendHandle } from '../../lib/lock/lock.handle.js';
import { resolveOptions } from '../../lib/module/syncguard.options.js';
import { createTelemetry } from '../../lib/telemetry/telemetry.js';
import { resolveTelemetryOptions } from '../../lib/telemetry/telemetry.options.js';
import type { Observation } from '../../lib/telemetry/telemetry.types.js';
import { describeLockBackend, granted } from '../lock/lock.contract.js';
import { eventually } from '../support/eventually.js';
import { freshRedis, workerRedis } from '../support/redis.js';
import { startTcpProxy, type TcpProxy } from '../support/tcp-proxy.js';
import { stopwatch } from '../support/stopwatch.js';

const TTL_MS = 30_000;

/** A word that no event may contain. */
const PRIVATE = 'ann@example.org';

/** The texts of the events: feature, type, result and reason. */
const told = (events: readonly SyncGuardEvent[]): string[] =>
  events.map(({ feature, type, result, reason, code }) =>
    [feature, type, result, reason, code].filter((word) => word !== undefined).join(' '),
  );

/** All values of an event, enumerable or not. */
const contents = (events: readonly SyncGuardEvent[]): string =>
  events.map((event) => inspect(event, { showHidden: true, depth: null })).join('\n');

const FIELDS = ['feature', 'type', 'result', 'reason', 'code', 'durationMs', 'keyHash', 'lockIdHash'];
const WAITING = ['place', 'waitedMs', 'heldMs', 'keyHashes'];

function expectHashedOnly(events: readonly SyncGuardEvent[], ...secrets: string[]): void {
  expect(events.length).toBeGreaterThan(0);
  for (const event of events) {
    const more = {
      lock: WAITING,
      limit: ['policy', 'degraded', 'fromDenyCache'],
      budget: ['spent', 'scopeTypes'],
      secret: [],
      once: [],
    };
    const allowed = [...FIELDS, ...more[event.feature]];
    expect(allowed).toEqual(expect.arrayContaining(Reflect.ownKeys(event)));
    expect(event.durationMs).toBeGreaterThanOrEqual(0);
  }
  for (const secret of [PRIVATE, ...secrets]) expect(contents(events)).not.toContain(secret);
}

const apps: TestingModule[] = [];

/** An app whose listener collects events. */
async function appWith(
  options: SyncGuardOptions,
  telemetry: Omit<TelemetryOptions, 'onEvent'> = {},
): Promise<{ app: TestingModule; events: SyncGuardEvent[] }> {
  const events: SyncGuardEvent[] = [];
  const onEvent = (event: SyncGuardEvent): void => void events.push(event);
  const root = SyncGuardModule.forRoot({ ...options, telemetry: { onEvent, ...telemetry } });
  const app = await Test.createTestingModule({ imports: [root] }).compile();
  apps.push(app);
  return { app, events };
}

afterEach(async () => {
  await Promise.all(apps.splice(0).map((app) => app.close()));
});

beforeAll(() => void Logger.overrideLogger(false));

const stores: [string, () => Promise<SyncGuardOptions>][] = [
  ['memory', async () => ({})],
  ['Redis', async () => ({ redis: (await freshRedis()).client() })],
];

describe.each(stores)('telemetry on %s tells once', (store, open) => {
  describe('each operation of locks', () => {
    let events: SyncGuardEvent[];
    let backend: LockBackend;
    const take = async (key = PRIVATE) => granted(await backend.acquire({ key, ttlMs: TTL_MS }));

    beforeEach(async () => {
      events = [];
      const { redis } = await open();
      const bare = redis ? createRedisBackend(redis as never) : createMemoryBackend();
      backend = withTelemetry<LockBackend['capabilities']>(bare, {
        onEvent: (event) => void events.push(event),
      });
    });

    it('of a backend', async () => {
      const { lockId } = await take();
      await backend.acquire({ key: PRIVATE, ttlMs: TTL_MS });
      await backend.isLocked({ key: PRIVATE });
      await backend.lookup({ key: PRIVATE });
      await backend.lookup({ lockId });
      await backend.getByKeyRaw(PRIVATE);
      await backend.getByIdRaw(lockId);
      await backend.extend({ lockId, ttlMs: TTL_MS });
      await backend.release({ lockId });
      await backend.release({ lockId });
      await backend.extend({ lockId, ttlMs: TTL_MS });
      await backend.isLocked({ key: PRIVATE });
      await backend.lookup({ lockId });
      expect(told(events)).toStrictEqual([
        'lock acquire ok',
        'lock acquire fail locked',
        'lock isLocked ok',
        'lock lookup ok',
        'lock lookup ok',
        'lock lookup ok',
        'lock lookup ok',
        'lock extend ok',
        'lock release ok',
        'lock release fail not_found',
        'lock extend fail not_found',
        'lock isLocked fail not_found',
        'lock lookup fail not_found',
      ]);
      expectHashedOnly(events, lockId);
    });

    it('of a handle, with both hashes', async () => {
      const lock = await take();
      const before = lock.expiresAtMs;
      expect((await lock.extend(2 * TTL_MS)).ok).toBe(true);
      expect(lock.expiresAtMs).toBeGreaterThan(before);
      await lock.release();
      await lock.release();
      {
        await using held = await take();
        void held;
      }
      expect(told(events)).toStrictEqual([
        'lock acquire ok',
        'lock extend ok',
        'lock release ok',
        'lock acquire ok',
        'lock release ok',
      ]);
      const hashes = { keyHash: hashKey(PRIVATE), lockIdHash: hashKey(lock.lockId) };
      for (const event of events.slice(0, 3)) expect(event).toMatchObject(hashes);
      expectHashedOnly(events, lock.lockId);
    });

    it('of a handle whose lock another owner has, which is not found', async () => {
      const lock = await take();
      await backend.release({ lockId: lock.lockId });
      const other = await take();
      expect(await lock.extend(TTL_MS)).toStrictEqual({ ok: false });
      // Redis is known to be unreachable, so nothing is asked and nothing is reported.
      expect(await lock.release()).toStrictEqual({ ok: false });
      expect(told(events.slice(3))).toStrictEqual(['lock extend fail not_found']);
      expect(await other.release()).toStrictEqual({ ok: true });
    });

    it('that throws, with its code, and the error as it was', async () => {
      const lock = await take();
      const signal = AbortSignal.abort();
      const calls: [() => Promise<unknown>, string, string][] = [
        [() => backend.acquire({ key: '', ttlMs: 1 }), 'acquire', 'InvalidArgument'],
        [() => backend.acquire({ key: PRIVATE, ttlMs: 0 }), 'acquire', 'InvalidArgument'],
        [() => backend.acquire(undefined as never), 'acquire', 'InvalidArgument'],
        [
          () => backend.acquire({ key: { toString: PRIVATE } as never, ttlMs: 1 }),
          'acquire',
          'InvalidArgument',
        ],
        [() => backend.acquire({ key: 'x'.repeat(10_000), ttlMs: 1 }), 'acquire', 'InvalidArgument'],
        [() => backend.acquire({ key: 'free', ttlMs: 1, signal }), 'acquire', 'Aborted'],
        [() => backend.release({ lockId: PRIVATE }), 'release', 'InvalidArgument'],
        [() => backend.extend(undefined as never), 'extend', 'InvalidArgument'],
        [() => backend.isLocked(undefined as never), 'isLocked', 'InvalidArgument'],
        [() => backend.lookup(undefined as never), 'lookup', 'InvalidArgument'],
        [() => backend.getByIdRaw('short'), 'lookup', 'InvalidArgument'],
        [() => lock.release(signal), 'release', 'Aborted'],
        [() => lock.extend(0), 'extend', 'InvalidArgument'],
      ];
      events.length = 0;
      for (const [call, type, code] of calls) {
        await expect(call()).rejects.toMatchObject({ name: 'LockError', code });
        expect(told(events.splice(0))).toStrictEqual([`lock ${type} fail ${code}`]);
      }
    });
  });

  it('each operation of limits', async () => {
    const { app, events } = await appWith(await open());
    const limiter = app.get(AbuseLimiterService);
    const login: LimitPolicy = { name: 'login', temp: { windowMs: 60_000, threshold: 2, blockMs: 60_000 } };
    const api: LimitPolicy = { name: 'api', limit: 1, windowMs: 60_000 };
    await limiter.check(PRIVATE, login);
    await limiter.check(PRIVATE, login);
    await limiter.peek(PRIVATE, login);
    await limiter.unblock(PRIVATE, login);
    await limiter.forgive(PRIVATE, login, 1);
    await limiter.block(PRIVATE, login, 60_000, `seen as ${PRIVATE}`);
    await limiter.peek(PRIVATE, login);
    await limiter.reset(PRIVATE, login);
    expect(told(events)).toStrictEqual([
      'limit check ok',
      'limit check fail temp',
      'limit peek fail temp',
      'limit unblock ok',
      'limit forgive ok',
      'limit block ok',
      'limit peek fail manual',
      'limit reset ok',
    ]);
    for (const event of events) expect(event).toMatchObject({ policy: 'login', keyHash: hashKey(PRIVATE) });

    events.length = 0;
    await limiter.check(PRIVATE, [login, api]);
    await limiter.check(PRIVATE, [{ name: 'other', limit: 9, windowMs: 60_000 }, api]);
    expect(events).toMatchObject([
      { type: 'check', result: 'ok', policy: 'login' },
      { type: 'check', result: 'fail', reason: 'temp', policy: 'api' },
    ]);

    events.length = 0;
    const failures = limiter.policies({ ...login, name: 'failures', count: 'failure' });
    const checks = failures.map((policy) => ({ policy, identity: `failures\0${PRIVATE}`, cost: 1 }));
    for (const outcome of ['success', 'failure', 'failure'] as const)
      await limiter.decisions.decide(checks).then(async ({ counted, by }) => {
        if (!counted) throw new Error('the call was not counted');
        if (outcome === 'success') await limiter.decisions.withdraw(by, counted, true);
        else await limiter.decisions.confirm(checks, counted, true);
      });
    expect(told(events)).toStrictEqual([
      'limit check ok',
      'limit withdraw ok',
      'limit check ok',
      'limit confirm ok',
      'limit check ok',
      'limit confirm fail temp',
    ]);
    events.length = 0;
    await expect(limiter.check(PRIVATE, api, { signal: AbortSignal.abort() })).rejects.toThrow();
    expect(told(events)).toStrictEqual(['limit check fail Aborted']);
    expectHashedOnly(events);
  });

  it('each denial of who goes on while blocked, though most of them ask nobody', async () => {
    const { app, events } = await appWith(await open());
    const limiter = app.get(AbuseLimiterService);
    const login: LimitPolicy = { name: 'login', limit: 1, windowMs: 60_000, blockMs: 60_000 };
    const api: LimitPolicy = { name: 'api', limit: 9, windowMs: 60_000 };
    await limiter.check(PRIVATE, login);
    await limiter.check(PRIVATE, login);
    events.length = 0;
    await limiter.check(PRIVATE, login);
    await limiter.check(PRIVATE, [api, { ...login }]);
    await expect(limiter.limiter(PRIVATE, login)).rejects.toThrow();
    const fromCache = store === 'memory' ? {} : { fromDenyCache: true };
    const denial = { feature: 'limit', type: 'check', result: 'fail', policy: 'login', ...fromCache };
    const expected = { ...denial, reason: 'temp', keyHash: hashKey(PRIVATE) };
    for (const { durationMs, ...event } of events) {
      expect(event).toStrictEqual(expected);
      if (store !== 'memory') expect(durationMs).toBe(0);
    }
    expect(events).toHaveLength(3);

    await limiter.block(PRIVATE, login, 60_000, `seen as ${PRIVATE}`);
    await limiter.check(PRIVATE, login);
    await limiter.check(PRIVATE, login);
    expect(events.slice(-2)).toMatchObject([
      { type: 'check', result: 'fail', reason: 'manual' },
      { ...denial, reason: 'manual' },
    ]);
    expect(events.at(-2)).not.toHaveProperty('fromDenyCache');
    await limiter.reset(PRIVATE, login);
    await limiter.check(PRIVATE, login);
    expect(told(events.slice(-1))).toStrictEqual(['limit check ok']);
    expectHashedOnly(events);
  });

  it('each operation of counters', async () => {
    const { app, events } = await appWith(await open());
    const counters = app.get(CounterService);
    await counters.increment(PRIVATE, { max: 1, windowMs: 60_000, id: `call of ${PRIVATE}` });
    await counters.increment(PRIVATE, { max: 1, windowMs: 60_000 });
    await counters.peek(PRIVATE);
    await counters.reset(PRIVATE);
    const call = counters.peek(PRIVATE, { signal: AbortSignal.abort() });
    await expect(call).rejects.toMatchObject({ code: 'Aborted' });
    expect(told(events)).toStrictEqual([
      'limit counter.increment ok',
      'limit counter.increment fail exceeded',
      'limit counter.peek ok',
      'limit counter.reset ok',
      'limit counter.peek fail Aborted',
    ]);
    for (const { keyHash } of events) expect(keyHash).toBe(hashKey(PRIVATE));
    expectHashedOnly(events);
  });

  it('each operation of budgets', async () => {
    const limits = [{ scope: 'user', period: 'lifetime' as const, limit: 100 }];
    const { app, events } = await appWith({ ...(await open()), budget: { limits, reaper: false } });
    const budgets = app.get(BudgetService);
    const root = `root of ${PRIVATE}`;
    const scope = `user:${PRIVATE}`;
    const scopes = [scope];
    const ref = (name: string) => ({ root, id: `${name} of ${PRIVATE}` });
    await budgets.reserve({ ...ref('a'), scopes, amount: 60, meta: { email: PRIVATE } });
    await budgets.reserve({ ...ref('b'), scopes, amount: 60 });
    await budgets.extend(ref('a'), 60_000);
    await budgets.finalize(ref('a'), 50);
    await budgets.abort(ref('a'));
    await budgets.refund(ref('a'), 60, 'r');
    await budgets.charge({ ...ref('c'), scopes, amount: 60 });
    await budgets.credit({ ...ref('d'), scope, period: 'lifetime', amount: 5 });
    await budgets.setLimit({ root, scope, period: 'lifetime', limit: 5 });
    await budgets.balance({ root, scope });
    await budgets.get(ref('a'));
    await budgets.get(ref('nothing'));
    await budgets.abort(ref('nothing'));
    await budgets.list({ root });
    await budgets.verify(root);
    await budgets.reap({ root });
    await expect(budgets.get(ref('a'), { signal: AbortSignal.abort() })).rejects.toThrow();
    expect(told(events)).toStrictEqual([
      'budget reserve ok',
      'budget reserve fail exceeded',
      'budget extend ok',
      'budget finalize ok',
      'budget abort fail finalized',
      'budget refund fail exceeds_committed',
      'budget charge fail exceeded',
      'budget credit ok',
      'budget setLimit ok',
      'budget balance ok',
      'budget get ok',
      'budget get fail not_found',
      'budget abort fail not_found',
      'budget list ok',
      'budget verify ok',
      'budget reap ok',
      'budget get fail Aborted',
    ]);
    expect(events[0]?.keyHash).toBe(hashKey(ref('a').id));
    expect(events[9]?.keyHash).toBe(hashKey(scope));
    expect(events[15]?.keyHash).toBe(hashKey(root));
    expectHashedOnly(events);
  });

  it('each hold that expired, whoever reaps', async () => {
    const limits = [{ scope: 'user', period: 'lifetime' as const, limit: 100 }];
    const { app, events } = await appWith({
      ...(await open()),
      budget: { limits, reaper: { everyMs: 100 } },
    });
    const budgets = app.get(BudgetService);
    for (const id of ['a', 'b', 'c']) await budgets.reserve({ id, scopes: ['user'], amount: 1, ttlMs: 50 });
    const expired = () => events.filter(({ type }) => type === 'expired');
    await eventually(() => expect(expired()).toHaveLength(3));
    await budgets.reap(); // It would tell those again that were not told for good.
    expect(
      expired()
        .map(({ keyHash }) => keyHash)
        .sort(),
    ).toStrictEqual(['a', 'b', 'c'].map(hashKey).sort());
    expect(expired()[0]).toMatchObject({
      feature: 'budget',
      result: 'fail',
      reason: 'expired',
      durationMs: 0,
    });

    await budgets.reserve({ id: 'd', scopes: ['user'], amount: 1, ttlMs: 1 });
    await eventually(async () => expect(await budgets.get({ id: 'd' })).toMatchObject({ state: 'expired' }));
    await Promise.all([budgets.reap(), budgets.reap()]);
    await app.close(); // The round of the reaper that is on its way is over.
    expect(expired()).toHaveLength(4);
  });

  it('of many at once each, with what came of it and what it was about', async () => {
    const limits = [{ scope: 'user', period: 'lifetime' as const, limit: 30 }];
    const options = { budget: { limits, reaper: false as const }, shutdown: { drainMs: 0 } };
    const { app, events } = await appWith({ ...(await open()), ...options });
    const [locks, limiter] = [app.get(LockService), app.get(AbuseLimiterService)];
    const [budgets, counters] = [app.get(BudgetService), app.get(CounterService)];
    const policy: LimitPolicy = { name: 'api', limit: 2, windowMs: 60_000, blockMs: 60_000 };
    const charge = { scopes: ['user'], amount: 7 };
    const operations: Record<string, (id: string) => Promise<boolean>> = {
      'lock acquire': async (key) => (await locks.acquire({ key, ttlMs: TTL_MS })).ok,
      'lock isLocked': (key) => locks.isLocked({ key }),
      'limit check': async (key) => (await limiter.check(key, policy)).allowed,
      'limit peek': async (key) => (await limiter.peek(key, policy)).allowed,
      'limit unblock': (key) => limiter.unblock(key, policy).then(() => true),
      'limit counter.increment': async (key) =>
        (await counters.increment(key, { max: 2, windowMs: 60_000 })).ok,
      'budget reserve': async (id) => (await budgets.reserve({ ...charge, id })).ok,
      'budget charge': async (id) => (await budgets.charge({ ...charge, id })).ok,
      'budget finalize': async (id) => (await budgets.finalize({ id }, 7)).ok,
      'budget abort': async (id) => (await budgets.abort({ id })).ok,
      'budget get': async (id) => (await budgets.get({ id })) !== null,
    };
    const call = fc.tuple(fc.constantFrom(...Object.keys(operations)), fc.constantFrom('é', 'b', PRIVATE));
    const calls = fc.array(call, { minLength: 1, maxLength: 30 });
    const atOnce = async (list: [string, string][]): Promise<void> => {
      events.length = 0;
      const words = list.map(async ([name, id]) => {
        const ok = await operations[name]?.(id);
        return `${name} ${ok ? 'ok' : 'fail'} ${hashKey(id)}`;
      });
      const expected = (await Promise.all(words)).sort();
      const all = events.map(
        ({ feature, type, result, keyHash }) => `${feature} ${type} ${result} ${keyHash}`,
      );
      expect(all.sort()).toStrictEqual(expected);
      expectHashedOnly(events);
    };
    await fc.assert(fc.asyncProperty(calls, atOnce), { numRuns: 25 });
  });

  it('each operation of secrets, of the id nothing but a hash of its tag', async () => {
    const { app, events } = await appWith({ ...(await open()), secret: { uniform: true } });
    const secrets = app.get(SecretService);
    const payload = `password of ${PRIVATE}`;
    const { id, receipt } = await secrets.create({ payload, views: 2, id: PRIVATE, meta: { to: PRIVATE } });
    await expect(secrets.create({ payload, views: 2, id: PRIVATE })).rejects.toThrow();
    await secrets.peek(id);
    await secrets.view(id, { viewId: `first of ${PRIVATE}`, leaseMs: 60_000 });
    await secrets.release(id, `first of ${PRIVATE}`);
    await secrets.view(id, { viewId: `second of ${PRIVATE}`, leaseMs: 60_000 });
    await secrets.confirm(id, `second of ${PRIVATE}`);
    await secrets.confirm(id, 'nobody');
    await secrets.status(receipt);
    const last = await secrets.view(id, { viewId: 'last' });
    expect(last).toMatchObject({ ok: true, burned: true });
    await secrets.view(id, { viewId: 'last' });
    await secrets.view(id);
    await secrets.peek('nowhere');
    await secrets.burn(id);
    await secrets.burn('nowhere');
    await expect(secrets.peek(id, { signal: AbortSignal.abort() })).rejects.toThrow();
    expect(told(events)).toStrictEqual([
      'secret create ok',
      'secret create fail conflict',
      'secret peek ok',
      'secret view ok',
      'secret release ok',
      'secret view ok',
      'secret confirm ok',
      'secret confirm fail not_found',
      'secret status ok',
      'secret view ok',
      'secret view fail burned',
      'secret view fail burned',
      'secret peek fail not_found',
      'secret burn ok',
      'secret burn fail not_found',
      'secret peek fail Aborted',
    ]);
    expect(new Set(events.slice(0, 12).map(({ keyHash }) => keyHash)).size).toBe(1);
    const [, tag = '', proof = ''] = receipt.split('.');
    expectHashedOnly(events, receipt, tag, proof, 'second of', 'password of');
  });

  it('a wait for a lock that was in vain, and a lock that was lost', async () => {
    const { app, events } = await appWith(await open());
    const locks = app.get(LockService);
    const held = granted(await locks.acquire({ key: PRIVATE, ttlMs: TTL_MS }));
    const waiting = locks.lock(() => 1, { key: PRIVATE, timeoutMs: 30 });
    await expect(waiting).rejects.toMatchObject({ code: 'AcquisitionTimeout' });
    await locks.lock(() => 1, { key: PRIVATE, onContention: 'skip' });
    const timeouts = events.filter(({ type }) => type === 'lock');
    expect(timeouts).toMatchObject([
      { result: 'fail', reason: 'timeout', code: 'AcquisitionTimeout', keyHash: hashKey(PRIVATE) },
    ]);
    expect(timeouts[0]?.durationMs).toBeGreaterThanOrEqual(29);
    await held.release();

    events.length = 0;
    const lost = locks.lock(
      async () => {
        const { lockId } = (await locks.getByKeyRaw(PRIVATE)) as { lockId: string };
        await locks.release({ lockId });
      },
      { key: PRIVATE },
    );
    await expect(lost).rejects.toMatchObject({ code: 'LockLost' });
    expect(told(events)).toStrictEqual([
      'lock acquire ok',
      'lock lock ok',
      'lock lookup ok',
      'lock release ok',
      'lock release fail not_found',
      'lock lock fail lost LockLost',
    ]);
    await locks.lock(() => 1, { key: PRIVATE });
    expect(told(events.slice(6))).toStrictEqual(['lock acquire ok', 'lock lock ok', 'lock release ok']);
    expectHashedOnly(events);
  });

  it('a lock that was lost when that is found, while its body runs, and not again when that ends', async () => {
    const trace = new AsyncLocalStorage<string>();
    const traces: unknown[] = [];
    const { app, events } = await appWith(
      { ...(await open()), lock: { ttlMs: 3_000 } },
      {
        // A listener that reads the async context in which it is called.
        includeRaw: ({ reason }) => reason === 'lost' && traces.push(trace.getStore()) === 0,
      },
    );
    const locks = app.get(LockService);
    const losses = (): SyncGuardEvent[] => events.filter(({ reason }) => reason === 'lost');
    const run = trace.run('the request', () =>
      locks.lock(
        async ({ signal }) => {
          const { lockId } = (await locks.getByKeyRaw(PRIVATE)) as { lockId: string };
          await locks.release({ lockId });
          expect(losses()).toStrictEqual([]);
          await new Promise((resolve) => signal.addEventListener('abort', resolve));
          expect(losses()).toMatchObject([{ type: 'lock', code: 'LockLost', keyHash: hashKey(PRIVATE) }]);
        },
        { key: PRIVATE },
      ),
    );
    await expect(run).rejects.toMatchObject({ code: 'LockLost' });
    expect(losses()).toHaveLength(1);
    // The renewal of the watchdog notices it. The event is emitted in the context of the call.
    expect(traces).toStrictEqual(['the request']);
    expect(losses()[0]?.durationMs).toBeGreaterThan(20);
    expectHashedOnly(events);
  });

  it('a wait for a lock that was aborted, at whatever moment', async () => {
    const { app, events } = await appWith(await open());
    const locks = app.get(LockService);
    const ends = (): SyncGuardEvent[] => events.filter(({ type }) => type === 'lock').splice(0);
    const held = granted(await locks.acquire({ key: PRIVATE, ttlMs: TTL_MS }));

    const signal = AbortSignal.timeout(30);
    const waiting = locks.lock(() => 1, { key: PRIVATE, retryDelayMs: 60_000, signal });
    await expect(waiting).rejects.toMatchObject({ code: 'Aborted' });
    expect(told(ends())).toStrictEqual(['lock lock fail aborted Aborted']);
    expect(ends()[0]).toMatchObject({ keyHash: hashKey(PRIVATE) });
    expect(ends()[0]?.durationMs).toBeGreaterThanOrEqual(25);

    await expect(locks.lock(() => 1, { key: PRIVATE, signal: AbortSignal.abort() })).rejects.toMatchObject({
      code: 'Aborted',
    });
    expect(told(ends())).toHaveLength(2);

    const shutDown = locks.lock(() => 1, { key: PRIVATE, fair: false, retryDelayMs: 60_000 });
    const aborted = expect(shutDown).rejects.toMatchObject({ code: 'Aborted' });
    const asked = events.length;
    await eventually(() => expect(events.length).toBeGreaterThan(asked)); // It was refused, and waits.
    await app.close();
    await held.release();
    await aborted;
    expect(told(ends())).toStrictEqual(Array(3).fill('lock lock fail aborted Aborted'));
    expectHashedOnly(events);
  });

  it('how long a lock was waited for, and at which place of the queue', async () => {
    const { app, events } = await appWith(await open());
    const locks = app.get(LockService);
    const held = granted(await locks.acquire({ key: PRIVATE, ttlMs: TTL_MS }));
    const places = (): unknown[] => events.flatMap((event) => ('place' in event ? [event.place] : []));
    const first = locks.lock(() => 1, { key: PRIVATE });
    await eventually(() => expect(new Set(places())).toStrictEqual(new Set([1])));
    const second = locks.lock(() => 1, { key: PRIVATE, timeoutMs: 40 });
    await expect(second).rejects.toMatchObject({ code: 'AcquisitionTimeout' });
    expect(events.at(-1)).toMatchObject({ type: 'lock', reason: 'timeout', place: 2 });
    await held.release();
    await first;
    expect(events.findLast(({ type, result }) => type === 'acquire' && result === 'ok')).toMatchObject({
      place: 1,
      waitedMs: expect.any(Number) as number,
    });
    expectHashedOnly(events);
    await app.close();
  });

  it('how long each lock was held, when it is released', async () => {
    const { app, events } = await appWith(await open());
    const locks = app.get(LockService);
    await locks.lock(() => sleep(25), { key: PRIVATE }); // The time itself is told.
    const handle = granted(await locks.acquire({ key: PRIVATE, ttlMs: TTL_MS }));
    await sleep(25);
    await handle.extend(TTL_MS);
    await handle.release();
    const { lockId } = granted(await locks.acquire({ key: PRIVATE, ttlMs: TTL_MS }));
    await sleep(25);
    await locks.release({ lockId });
    const held = events.map((event) => ('heldMs' in event ? [event.type, Number(event.heldMs) >= 24] : []));
    expect(held.filter(({ length }) => length > 0)).toEqual(Array(3).fill(['release', true]));
    await app.close();
  });

  it('locks of several keys, each by its hash', async () => {
    const { app, events } = await appWith(await open(), { includeRaw: true });
    const locks = app.get(LockService);
    await locks.lock(() => 1, { keys: ['b', 'a'] });
    const keyHashes = ['a', 'b'].map(hashKey);
    expect(events).toMatchObject([
      { type: 'acquire', result: 'ok', keyHashes, keys: ['a', 'b'] },
      { type: 'lock', result: 'ok', keyHashes, keys: ['a', 'b'] },
      { type: 'release', result: 'ok', keyHashes, keys: ['a', 'b'] },
    ]);
    await app.close();
  });

  it('a lock that was asked for by the code that holds it, and no other error of a body', async () => {
    const { app, events } = await appWith(await open());
    const locks = app.get(LockService);
    const nested = locks.lock(() => locks.lock(() => 1, { key: PRIVATE }), { key: PRIVATE });
    await expect(nested).rejects.toMatchObject({ code: 'AlreadyHeld' });
    const failed = locks.lock(() => Promise.reject(new DOMException('x', 'AbortError')), { key: 'other' });
    await expect(failed).rejects.toThrow();
    await locks.lock(() => locks.lock(() => 1, { key: PRIVATE, reentrant: true }), { key: PRIVATE });
    expect(told(events)).toStrictEqual([
      'lock acquire ok',
      'lock lock ok',
      'lock lock fail already_held AlreadyHeld',
      'lock release ok',
      'lock acquire ok',
      'lock lock ok',
      'lock release ok',
      'lock acquire ok',
      'lock lock ok',
      'lock release ok',
    ]);
    expect(events[2]).toMatchObject({ keyHash: hashKey(PRIVATE), durationMs: 0 });
    expectHashedOnly(events);
  });

  it('nothing, and wraps nothing, where nobody listens', async () => {
    const backends = memoryBackends(resolveOptions());
    expect(observedBackends(backends, undefined)).toBe(backends);
    const app = await Test.createTestingModule({
      imports: [SyncGuardModule.forRoot(await open())],
    }).compile();
    apps.push(app);
    expect(await app.get(LockService).lock(() => store, { key: 'a' })).toBe(store);
  });
});

describe('while Redis is away', () => {
  let proxy: TcpProxy;
  let redis: Redis;
  beforeEach(async () => {
    proxy = await startTcpProxy((await freshRedis()).port);
    redis = workerRedis().client({ port: proxy.port, retryStrategy: () => 20 });
  });
  afterEach(async () => {
    redis.disconnect();
    await proxy.stop();
  });

  it('a handle that is disposed of tells each try, until there is nothing left to release', async () => {
    const events: SyncGuardEvent[] = [];
    const backend = withTelemetry(createRedisBackend(redis, { commandTimeoutMs: 1_000 }), {
      onEvent: (event) => void events.push(event),
    });
    {
      await using lock = granted(await backend.acquire({ key: 'order:1', ttlMs: TTL_MS }));
      void lock;
      await proxy.refuse();
    }
    expect(told(events)).toStrictEqual([
      'lock acquire ok',
      expect.stringMatching(/^lock release fail (ServiceUnavailable|NetworkTimeout)$/),
    ]);
    await proxy.restore();
    // The client may have sent the first attempt again by itself. The second attempt then finds nothing.
    await eventually(() => expect(told(events).at(-1)).toMatch(/^lock release (ok|fail not_found)$/));
    expect(await backend.isLocked({ key: 'order:1' })).toBe(false);
  });

  it('limits tell what did not answer, and what was counted instead', async () => {
    const { app, events } = await appWith({ redis });
    const limiter = app.get(AbuseLimiterService);
    await proxy.refuse();
    const policy: LimitPolicy = { name: 'login', limit: 1, windowMs: 60_000, onError: 'memory' };
    for (const allowed of [true, false])
      expect(await limiter.check(PRIVATE, policy)).toMatchObject({ allowed, degraded: true });
    expect(await limiter.peek(PRIVATE, policy)).toMatchObject({ allowed: false, degraded: true });
    expect(events.filter(({ code }) => code === undefined)).toMatchObject([
      { type: 'check', result: 'ok', degraded: true },
      { type: 'check', result: 'fail', reason: 'temp', degraded: true },
      { type: 'peek', result: 'fail', reason: 'temp', degraded: true },
    ]);
    expect(events[0]).toMatchObject({ type: 'check', result: 'fail', code: expect.any(String) as unknown });
    expect(events[0]).not.toHaveProperty('degraded');
    expectHashedOnly(events);
  });
});

describe('withTelemetry', () => {
  const onEvent = (): void => {};

  it('keeps what it wraps: capabilities, members that are frozen or change, handles with their deadline', async () => {
    const bare = createMemoryBackend();
    expect(withTelemetry(bare, { onEvent }).capabilities).toBe(bare.capabilities);
    const frozen = Object.freeze({ ...plain(bare), flush: jest.fn(async () => {}) });
    const observed = withTelemetry(frozen, { onEvent });
    await observed.flush?.();
    expect(frozen.flush).toHaveBeenCalledTimes(1);
    const lock = granted(await observed.acquire({ key: 'cafe\u0301', ttlMs: TTL_MS }));
    expect(lock).toBeInstanceOf(BackendHandle);
    const release = jest.spyOn(bare, 'release');
    await lock.release();
    expect(release.mock.calls[0]?.[0].held).toMatchObject({
      keys: ['caf\u00e9'],
      deadline: {
        monotonicMs: expect.closeTo(performance.now() + TTL_MS, -3) as unknown,
        wallMs: expect.closeTo(Date.now() + TTL_MS, -3) as unknown,
      },
    });
  });

  it('reports what a handle does that is none of ours', async () => {
    const bare = createMemoryBackend();
    const events: SyncGuardEvent[] = [];
    const backend: LockBackend = {
      ...plain(bare),
      acquire: async (options) => {
        const { ok, lockId, fence, fences, expiresAtMs } = granted(await bare.acquire(options));
        const gone = (): never => {
          throw new Error('the handle of the backend was used');
        };
        return {
          ok,
          lockId,
          fence,
          fences,
          expiresAtMs,
          release: gone,
          extend: gone,
          [Symbol.asyncDispose]: gone,
        };
      },
    };
    const observed = withTelemetry(backend, { onEvent: (event) => void events.push(event) });
    const lock = granted(await observed.acquire({ key: 'a', ttlMs: TTL_MS }));
    expect(await lock.extend(TTL_MS)).toMatchObject({ ok: true });
    expect(await lock.release()).toStrictEqual({ ok: true });
    expect(told(events)).toStrictEqual(['lock acquire ok', 'lock extend ok', 'lock release ok']);
  });

  /** A backend of another package: an object that forwards. */
  const plain = (backend: LockBackend): LockBackend => ({
    capabilities: backend.capabilities,
    acquire: (options) => backend.acquire(options),
    release: (options) => backend.release(options),
    extend: (options) => backend.extend(options),
    isLocked: (options) => backend.isLocked(options),
    lookup: (options) => backend.lookup(options),
    getByKeyRaw: (key) => backend.getByKeyRaw(key),
    getByIdRaw: (lockId) => backend.getByIdRaw(lockId),
  });

  it('tells Internal of an error that is none of ours, also one thrown at once', async () => {
    const events: SyncGuardEvent[] = [];
    const error = new Error(PRIVATE);
    const isLocked = (): never => {
      throw error;
    };
    const backend = withTelemetry(
      { ...plain(createMemoryBackend()), isLocked },
      { onEvent: (event) => void events.push(event) },
    );
    await expect(backend.isLocked({ key: 'a' })).rejects.toBe(error);
    expect(told(events)).toStrictEqual(['lock isLocked fail Internal']);
    expectHashedOnly(events);
  });

  it.each<[string, unknown, RegExp]>([
    ['no options', undefined, /telemetry\.onEvent must be a function, got undefined/],
    ['no listener', {}, /telemetry\.onEvent must be a function/],
    ['a listener that is none', { onEvent: 'x' }, /telemetry\.onEvent must be a function/],
    [
      'an includeRaw that is none',
      { onEvent, includeRaw: 1 },
      /telemetry\.includeRaw must be true, false or a f/,
    ],
    [
      'an empty secret',
      { onEvent, hashSecret: '' },
      /telemetry\.hashSecret must be a string with at least one character\.$/,
    ],
    [
      'a secret that is no string',
      { onEvent, hashSecret: 4711 },
      /^(?!.*4711).*telemetry\.hashSecret must be/,
    ],
    ['a misspelt option', { onEvent, raw: true }, /telemetry\.raw is not an option/],
  ])('refuses %s, and so does the module', (_, options, message) => {
    const wrap = (): unknown => withTelemetry(createMemoryBackend(), options as TelemetryOptions);
    expect(wrap).toThrow(SyncGuardConfigError);
    expect(wrap).toThrow(message);
    if (options !== undefined)
      expect(() => SyncGuardModule.forRoot({ telemetry: options as TelemetryOptions })).toThrow(message);
  });
});

// The whole contract holds with a listener in between, whatever the listener does.
describeLockBackend('memory, observed', async () => {
  let offsetMs = 0;
  const bare = createMemoryBackend({ clock: { now: () => Date.now() + offsetMs } });
  return {
    backend: withTelemetry<LockBackend['capabilities']>(bare, { onEvent: () => {}, includeRaw: true }),
    advance: (ms) => (offsetMs += ms),
  };
});

describeLockBackend('Redis, observed', async () => {
  const redis = await freshRedis();
  return {
    backend: withTelemetry<LockBackend['capabilities']>(createRedisBackend(redis.client()), {
      onEvent: () => {},
    }),
    advance: (ms) => redis.clock.advance(ms),
  };
});

describe('includeRaw', () => {
  const KEY = 'order:1';

  async function eventsOf(includeRaw: TelemetryOptions['includeRaw']): Promise<SyncGuardEvent[]> {
    const events: SyncGuardEvent[] = [];
    const backend = withTelemetry(createMemoryBackend(), {
      onEvent: (event) => void events.push(event),
      includeRaw,
    });
    const lock = granted(await backend.acquire({ key: KEY, ttlMs: TTL_MS }));
    await lock.release();
    expect(events).toHaveLength(2);
    return events;
  }

  it('true gives key and lockId beside their hashes', async () => {
    for (const event of await eventsOf(true)) {
      expect(event).toMatchObject({ key: KEY, keyHash: hashKey(KEY) });
      const { lockId, lockIdHash } = event as { lockId: string; lockIdHash: string };
      expect(hashKey(lockId)).toBe(lockIdHash);
    }
  });

  it.each<[string, TelemetryOptions['includeRaw']]>([
    ['nothing', undefined],
    ['false', false],
    ['a function that says false', () => false],
    [
      'a function that throws',
      () => {
        throw new Error('x');
      },
    ],
    ['a function that rejects', () => Promise.reject(new Error('x')) as never],
    ['a promise of true, which is not true', () => Promise.resolve(true) as never],
  ])('%s gives neither', async (_, includeRaw) => {
    const emitWarning = jest.spyOn(process, 'emitWarning').mockImplementation(() => {});
    for (const event of await eventsOf(includeRaw)) {
      expect(event).not.toHaveProperty('key');
      expect(event).not.toHaveProperty('lockId');
    }
    await nextTurn();
    emitWarning.mockRestore();
  });

  it('a function decides for each event, and sees the hashed one', async () => {
    const seen: SyncGuardEvent[] = [];
    const events = await eventsOf((event) => {
      seen.push(event);
      return event.type === 'release';
    });
    expectHashedOnly(seen, KEY);
    expect(events.map(({ key }) => key)).toStrictEqual([undefined, KEY]);
  });

  it('of a secret gives its tag, never its id', async () => {
    const { app, events } = await appWith({}, { includeRaw: true });
    const secrets = app.get(SecretService);
    const { id, receipt } = await secrets.create({ payload: 'sealed', views: 1 });
    await secrets.view(id);
    for (const { key } of events) expect(receipt).toContain(key);
    expect(contents(events)).not.toMatch(id);
    expect(contents(events)).not.toMatch('sealed');
  });

  it('of a secret with a label carries it with whatever is done, on every backend reply', async () => {
    const { app, events } = await appWith({});
    const secrets = app.get(SecretService);
    const label = 'order 7, ann@example.com';
    const { id, receipt } = await secrets.create({ payload: 'sealed', views: 1, label, maxFailures: 1 });
    await secrets.peek(id);
    await expect(secrets.view(id)).rejects.toMatchObject({ code: 'InvalidArgument' });
    await secrets.view(id, { viewId: 'v', leaseMs: 60_000 });
    await secrets.view(id, { leaseMs: 60_000 });
    await secrets.release(id, 'v');
    await secrets.status(receipt);
    await secrets.burn(receipt);
    await secrets.view(id);
    expect(events.map(({ type, reason }) => [type, reason])).toStrictEqual([
      ['create', undefined],
      ['peek', undefined],
      ['view', 'lease_needed'],
      ['view', undefined],
      ['view', 'leased'],
      ['release', undefined],
      ['status', undefined],
      ['burn', undefined],
      ['view', 'burned'],
    ]);
    for (const event of events) expect(event).toMatchObject({ feature: 'secret', label });
    await secrets.view((await secrets.create({ payload: 'p', views: 1 })).id);
    expect(events.slice(-2).every((event) => !('label' in event))).toBe(true);
  });

  it('in an app gives the keys of every feature', async () => {
    const limits = [{ scope: 'user', period: 'lifetime' as const, limit: 1 }];
    const { app, events } = await appWith({ budget: { limits } }, { includeRaw: true });
    await app.get(AbuseLimiterService).check('ann', { name: 'login', limit: 1, windowMs: 1_000 });
    await app.get(CounterService).peek('exports');
    await app.get(BudgetService).reserve({ id: 'call', scopes: ['user'], amount: 1 });
    expect(events.map(({ key }) => key)).toStrictEqual(['ann', 'exports', 'call']);
  });
});

describe('hashSecret', () => {
  const hashesWith = (hashSecret?: string): { keyHash?: string; lockIdHash?: string } => {
    let event: SyncGuardEvent | undefined;
    const options = resolveTelemetryOptions({ onEvent: (e: SyncGuardEvent) => (event = e), hashSecret });
    createTelemetry(options, fail)({ ...OBSERVATION, key: 'cafe\u0301', lockId: 'id' });
    return event as { keyHash?: string; lockIdHash?: string };
  };
  const hmac = (secret: string, value: string): string =>
    createHmac('sha256', secret).update(value).digest('hex');

  it('turns hashes into HMAC-SHA-256 of the key in NFC', () => {
    expect(hashesWith()).toMatchObject({ keyHash: '002e7a21248b3503a22cdb87', lockIdHash: hashKey('id') });
    for (const secret of ['one', 'two'])
      expect(hashesWith(secret)).toMatchObject({
        keyHash: hmac(secret, 'caf\u00e9'),
        lockIdHash: hmac(secret, 'id'),
      });
  });
});

const OBSERVATION: Observation = { feature: 'lock', type: 'acquire', result: 'ok', durationMs: 1 };

function fail(message: string): never {
  throw new Error(`it warned: ${message}`);
}

describe('a listener', () => {
  const throws = (error: unknown) => (): never => {
    throw error;
  };
  const listeners: [string, () => unknown][] = [
    ['throws', throws(new Error('broken'))],
    ['throws nothing', throws(undefined)],
    ['throws what cannot be shown', throws(Object.create(null))],
    ['rejects', () => Promise.reject(new Error('broken'))],
    ['rejects later', () => nextTurn().then(throws(new Error('broken')))],
    ['gives a thenable that throws', () => ({ then: throws(new Error('broken')) })],
    [
      'gives a thenable whose then cannot be read',
      () => Object.defineProperty({}, 'then', { get: throws(1) }),
    ],
    ['never settles', () => new Promise(() => {})],
  ];

  // An unhandled rejection fails the spec. See test/support/unhandled.ts.
  it.each(listeners)('that %s harms nothing, and no later event', async (name, listener) => {
    const warnings: string[] = [];
    let calls = 0;
    const onEvent = (): unknown => {
      calls++;
      return listener();
    };
    const emit = createTelemetry(resolveTelemetryOptions({ onEvent }), (message) => warnings.push(message));
    for (let i = 0; i < 3; i++) emit(OBSERVATION);
    expect(calls).toBe(3);
    await eventually(() => expect(warnings).toHaveLength(name === 'never settles' ? 0 : 1));
  });

  it('that fails for long is warned of once a minute', () => {
    const warnings: string[] = [];
    const onEvent = throws(new Error('broken'));
    const emit = createTelemetry(resolveTelemetryOptions({ onEvent }), (message) => warnings.push(message));
    const now = jest.spyOn(performance, 'now').mockReturnValue(1_000);
    try {
      emit(OBSERVATION);
      now.mockReturnValue(60_999);
      emit(OBSERVATION);
      expect(warnings).toStrictEqual([
        'TELEMETRY_LISTENER_FAILED: The listener `telemetry.onEvent` or `includeRaw` failed. Nothing else is affected. Error: broken',
      ]);
      now.mockReturnValue(61_000);
      emit(OBSERVATION);
      expect(warnings).toHaveLength(2);
    } finally {
      now.mockRestore();
    }
  });

  it('is not waited for', async () => {
    const backend = withTelemetry(createMemoryBackend(), {
      onEvent: () => new Promise(() => {}),
    });
    const elapsedMs = stopwatch();
    await granted(await backend.acquire({ key: 'a', ttlMs: TTL_MS })).release();
    expect(elapsedMs()).toBeLessThan(1_000);
  });

  it('that throws changes no result and no error, in an app, and the Logger says so', async () => {
    const warn = jest.spyOn(Logger.prototype, 'warn').mockImplementation(() => {});
    const telemetry = { onEvent: throws(new Error('broken')), includeRaw: throws(new Error('broken')) };
    const root = SyncGuardModule.forRoot({ telemetry });
    const app = await Test.createTestingModule({ imports: [root] }).compile();
    apps.push(app);
    const locks = app.get(LockService);
    expect(await locks.lock(() => 'done', { key: 'a' })).toBe('done');
    await expect(locks.isLocked({ key: '' })).rejects.toMatchObject({ code: 'InvalidArgument' });
    expect(warn.mock.calls.map(([message]) => String(message))).toStrictEqual([
      expect.stringMatching(/The listener `telemetry.onEvent` or `includeRaw` failed.*broken/),
    ]);
    warn.mockRestore();
  });

  it('keeps its `this`', async () => {
    class Metrics {
      readonly types: string[] = [];
    }
    const metrics = new Metrics();
    const options = {
      onEvent(this: unknown, event: SyncGuardEvent): void {
        if (this === options) metrics.types.push(event.type);
      },
    };
    await withTelemetry(createMemoryBackend(), options).isLocked({ key: 'a' });
    expect(metrics.types).toStrictEqual(['isLocked']);
  });
});
