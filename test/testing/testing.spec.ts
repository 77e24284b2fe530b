import 'reflect-metadata';
import { Controller, Injectable, Post, type Type } from '@nestjs/common';
import { Test } from '@nestjs/testing';
import { setImmediate as nextTurn } from 'node:timers/promises';
import {
  AbuseLimiterService,
  BudgetService,
  BudgetUnavailableError,
  CounterService,
  days,
  hours,
  Lock,
  type LockContext,
  LockError,
  LockService,
  minutes,
  type Period,
  RateLimit,
  ScriptLoader,
  seconds,
  SecretError,
  SecretService,
  type SyncGuardEvent,
  SyncGuardHealthIndicator,
  SyncGuardModule,
  WithBudget,
  WithLock,
} from 'nestjs-syncguard';
import {
  FakeClock,
  SyncGuardTesting,
  SyncGuardTestingModule,
  type SyncGuardTestingOptions,
} from 'nestjs-syncguard/testing';
import { MemoryBudgetBackend } from '../../lib/budget/memory/budget.memory-backend.js';
import { MemoryCounterBackend } from '../../lib/counter/memory/counter.memory-backend.js';
import { CounterError } from '../../lib/counter/counter.errors.js';
import { LimitError } from '../../lib/limit/limit.errors.js';
import { MemoryLimitBackend } from '../../lib/limit/memory/limit.memory-backend.js';
import { MemoryLockBackend } from '../../lib/lock/memory/lock.memory-backend.js';
import { MemorySecretBackend } from '../../lib/secret/memory/secret.memory-backend.js';
import { SyncGuardError } from '../../lib/core/errors.js';
import { Switches } from '../../lib/testing/switches.js';
import { eventually } from '../support/eventually.js';
import { stopwatch } from '../support/stopwatch.js';

const MONTH: Period = { every: 'month' };
const LIMITS = [{ scope: 'user', period: MONTH, limit: 100 }];

@Injectable()
class Shop {
  calls = 0;

  @WithLock('order:{0}', { timeoutMs: 0 })
  async pay(_order: string, @Lock() lock?: LockContext): Promise<string | undefined> {
    this.calls++;
    return lock?.fence;
  }

  @WithLock('nightly', { onContention: 'skip' })
  async nightly(): Promise<string | undefined> {
    return 'ran';
  }

  @WithBudget({ scopes: (user: string) => [`user:${user}`], estimate: () => 60 })
  async ask(user: string): Promise<string> {
    this.calls++;
    return `hello ${user}`;
  }
}

async function start(options: SyncGuardTestingOptions = {}, imports: Type[] = []) {
  const module = await Test.createTestingModule({
    imports: [SyncGuardTestingModule.forRoot({ budget: { limits: LIMITS }, ...options }), ...imports],
    providers: [Shop],
  }).compile();
  const testing = module.get(SyncGuardTesting);
  return {
    module,
    testing,
    clock: testing.clock,
    shop: module.get(Shop),
    locks: module.get(LockService),
    limiter: module.get(AbuseLimiterService),
    budgets: module.get(BudgetService),
    secrets: module.get(SecretService),
    counters: module.get(CounterService),
    [Symbol.asyncDispose]: () => module.close(),
  };
}

describe('FakeClock', () => {
  it('starts at the real time and stands still', async () => {
    const beforeMs = Date.now();
    const clock = new FakeClock();
    const startMs = clock.now();
    expect(startMs).toBeGreaterThanOrEqual(beforeMs);
    expect(startMs).toBeLessThanOrEqual(Date.now());
    await eventually(() => expect(Date.now()).toBeGreaterThan(startMs));
    expect(clock.now()).toBe(startMs);
  });

  it('starts at an instant, moves on, and jumps, backwards too', () => {
    const clock = new FakeClock(new Date('2026-01-31T23:59:00Z'));
    clock.advance(minutes(1));
    expect(new Date(clock.now()).toISOString()).toBe('2026-02-01T00:00:00.000Z');
    clock.set(1_000);
    expect(clock.now()).toBe(1_000);
    clock.set(new Date(500));
    clock.advance(0);
    expect(clock.now()).toBe(500);
  });

  it.each<[string, (clock: FakeClock) => unknown, RegExp]>([
    ['advance(-1)', (clock) => clock.advance(-1), /ms must be an integer from 0/],
    ['advance(0.5)', (clock) => clock.advance(0.5), /ms must be an integer/],
    ['advance() beyond the end of time', (clock) => clock.advance(8.64e15), /ms must be an integer/],
    ['set(NaN)', (clock) => clock.set(NaN), /to must be an integer/],
    ['set() to no date', (clock) => clock.set(new Date('tomorrow')), /to must be an integer/],
    ['a start that is text', () => new FakeClock('2026-01-01' as never), /start must be an integer/],
  ])('refuses %s', (_, misuse, message) => {
    const clock = new FakeClock(1_000);
    expect(() => misuse(clock)).toThrow(message);
    expect(clock.now()).toBe(1_000);
  });
});

describe('SyncGuardTestingModule', () => {
  it('gives all that SyncGuardModule gives, and the test its switches', async () => {
    await using app = await start();
    expect(app.locks.capabilities.backend).toBe('memory');
    expect(await app.shop.pay('7')).toMatch(/^\d{15}$/);
    expect(await app.shop.ask('ann')).toBe('hello ann');
    expect(app.module.get(ScriptLoader).scripts.length).toBeGreaterThan(0);
    expect(await app.module.get(SyncGuardHealthIndicator).isHealthy()).toEqual({
      syncguard: { status: 'up', backend: 'memory' },
    });
    expect(app.module.get(FakeClock)).toBe(app.clock);
  });

  it('takes the options of SyncGuardModule', async () => {
    await using app = await start({
      limits: { export: { limit: 1, windowMs: minutes(1) } },
      secret: { uniform: true },
      lock: { timeoutMs: 0, ttlMs: 5_000 },
    });
    expect(await app.limiter.check('ann', 'export')).toMatchObject({ allowed: true });
    expect(await app.limiter.check('ann', 'export')).toMatchObject({ allowed: false });
    expect(await app.secrets.peek('nothing')).toEqual({ ok: false, reason: 'not_found' });
    await app.locks.lock((lock) => expect(lock.expiresAtMs).toBe(app.clock.now() + 5_000), { key: 'a' });
  });

  it.each<[string, object, RegExp]>([
    ['redis', { redis: 'redis://127.0.0.1' }, /has no option `redis`/],
    ['a clock of another kind', { clock: { now: () => 0 } }, /clock must be a FakeClock/],
    ['a misspelt option', { lokc: {} }, /options.lokc is not an option/],
    ['a malformed one', { lock: { ttlMs: 0 } }, /lock.ttlMs must be/],
  ])('refuses %s', (_, options, message) => {
    expect(() => SyncGuardTestingModule.forRoot(options)).toThrow(message);
  });

  it('does not stand beside SyncGuardModule: the app would have two sets of locks', async () => {
    const module = await Test.createTestingModule({
      imports: [SyncGuardModule.forRoot(), SyncGuardTestingModule.forRoot({ keyPrefix: 'other' })],
    }).compile();
    await expect(module.init()).rejects.toThrow(/imported 2 times/);
  });

  it('closes at once, whatever the test has left behind', async () => {
    const app = await start();
    const lock = await app.locks.acquire({ key: 'a', ttlMs: minutes(1) });
    const elapsedMs = stopwatch();
    await app.module.close();
    expect(elapsedMs()).toBeLessThan(1_000);
    // Left to its TTL, as `shutdown.heldLocks` says.
    expect(lock.ok && (await lock.release())).toEqual({ ok: true });
  });

  it('tells the listener of `telemetry` what it would be told on Redis', async () => {
    const events: unknown[] = [];
    await using app = await start({ telemetry: { onEvent: (event) => void events.push(event) } });
    app.testing.contend('order:7');
    await app.locks.acquire({ key: 'order:7', ttlMs: 1_000 });
    app.testing.makeUnreachable();
    await app.limiter.check('ann', { name: 'api', limit: 1, windowMs: 1_000 });
    expect(events).toMatchObject([
      { feature: 'lock', type: 'acquire', result: 'fail', reason: 'locked' },
      { feature: 'limit', type: 'check', result: 'fail', code: 'ServiceUnavailable' },
      { feature: 'limit', type: 'check', result: 'ok', degraded: true },
    ]);
  });

  it('starts afresh each time that it is compiled', async () => {
    const imports = [SyncGuardTestingModule.forRoot()];
    const first = await Test.createTestingModule({ imports }).compile();
    first.get(SyncGuardTesting).clock.advance(days(365));
    first.get(SyncGuardTesting).contendAll();
    await first.close();

    const second = await Test.createTestingModule({ imports }).compile();
    expect(second.get(SyncGuardTesting).clock.now()).toBeLessThan(Date.now() + days(1));
    expect(await second.get(LockService).acquire({ key: 'a', ttlMs: 1_000 })).toMatchObject({ ok: true });
    await second.close();
  });
});

describe('contend(key)', () => {
  it('lets waiters in as soon as it ends', async () => {
    await using app = await start();
    app.testing.contend('a');
    const waiting = app.locks.lock(() => 'in', { key: 'a', retryDelayMs: 5 });
    await nextTurn();
    app.testing.restore();
    expect(await waiting).toBe('in');
  });

  it('leaves other keys alone, and means the key in every spelling of Unicode', async () => {
    await using app = await start();
    app.testing.contend('caf\u00e9');
    expect((await app.locks.acquire({ key: 'cafe\u0301', ttlMs: 1_000 })).ok).toBe(false);
    expect((await app.locks.acquire({ key: 'cafe', ttlMs: 1_000 })).ok).toBe(true);
    expect(() => app.testing.contend('')).toThrow(LockError);
  });

  it('takes nothing from who holds it already', async () => {
    await using app = await start();
    const lock = await app.locks.acquire({ key: 'a', ttlMs: 1_000 });
    app.testing.contend('a');
    expect(lock.ok && (await lock.extend(2_000)).ok).toBe(true);
    expect(lock.ok && (await lock.release()).ok).toBe(true);
  });

  it('still tells a wrong call from a locked one', async () => {
    await using app = await start();
    app.testing.contendAll();
    for (const call of [
      { key: '', ttlMs: 1_000 },
      { key: 'a', ttlMs: 0 },
    ])
      await expect(app.locks.acquire(call)).rejects.toMatchObject({ code: 'InvalidArgument' });
  });

  it('of all keys: contendAll()', async () => {
    await using app = await start();
    app.testing.contendAll();
    expect(await app.shop.nightly()).toBeUndefined();
    await expect(app.shop.pay('8')).rejects.toMatchObject({ code: 'AcquisitionTimeout' });
    expect(await app.locks.lock(() => 'in', { key: 'x', onContention: (key) => `busy ${key}` })).toBe(
      'busy x',
    );

    app.testing.restore();
    expect(await app.shop.nightly()).toBe('ran');
  });
});

describe('lose(key)', () => {
  it('tells a running body at once, by all that it may look at, and leaves others alone', async () => {
    const events: SyncGuardEvent[] = [];
    await using app = await start({ telemetry: { onEvent: (event) => void events.push(event) } });
    let listened: unknown;
    const run = app.locks.lock(
      async (lock) => {
        lock.signal.addEventListener('abort', () => void (listened = lock.signal.reason));
        await app.testing.lose('a');
        expect(listened).toMatchObject({ code: 'LockLost' });
        expect(lock.signal.aborted).toBe(true);
        expect(() => lock.assertHeld()).toThrow(/not held any more/);
        expect(await lock.extend()).toEqual({ ok: false });
        expect(events.at(-1)).toMatchObject({ type: 'lock', reason: 'lost' });
      },
      { key: 'a' },
    );
    const other = app.locks.lock(
      async (lock) => {
        await run.catch(() => {});
        lock.assertHeld();
        return 'held';
      },
      { key: 'b' },
    );
    await expect(run).rejects.toMatchObject({ code: 'LockLost' });
    expect(await other).toBe('held');
  });

  it('tells the one who holds the lock now, not one who had it before', async () => {
    await using app = await start();
    const first = app.locks.lock(
      async (lock) => {
        await app.testing.lose('a');
        const reason: unknown = lock.signal.reason;
        await app.locks.acquire({ key: 'a', ttlMs: 1_000 });
        await app.testing.lose('a');
        expect(lock.signal.reason).toBe(reason);
      },
      { key: 'a' },
    );
    await expect(first).rejects.toMatchObject({ code: 'LockLost' });
  });

  it('refuses a lock that nobody holds', async () => {
    await using app = await start();
    await expect(app.testing.lose('a')).rejects.toThrow(/nobody holds this key/);
  });

  it('of all locks: loseLocks()', async () => {
    await using app = await start();
    await app.testing.loseLocks();
    const lost = await Promise.all(['a', 'b'].map((key) => app.locks.acquire({ key, ttlMs: 1_000 })));
    await app.testing.loseLocks();
    const later = await app.locks.acquire({ key: 'c', ttlMs: 1_000 });
    for (const lock of lost) expect(lock.ok && (await lock.release())).toEqual({ ok: false });
    expect(later.ok && (await later.release())).toEqual({ ok: true });
    let aborted: boolean[] = [];
    const run = app.locks.lock(
      (a) =>
        app.locks.lock(
          async (b) => {
            await app.testing.loseLocks();
            aborted = [a.signal.aborted, b.signal.aborted];
          },
          { key: 'b' },
        ),
      { key: 'a' },
    );
    await expect(run).rejects.toMatchObject({ code: 'LockLost' });
    expect(aborted).toEqual([true, true]);
  });
});

describe('makeUnreachable()', () => {
  const config = { budget: { retentionMs: 1_000 } };
  const ports = [
    ['lock', MemoryLockBackend, LockError],
    ['limit', MemoryLimitBackend, LimitError],
    ['budget', MemoryBudgetBackend, BudgetUnavailableError],
    ['secret', MemorySecretBackend, SecretError],
    ['counter', MemoryCounterBackend, CounterError],
  ] as const;

  // A turn asks nothing of a server: the attempts that are given it do.
  const SYNCHRONOUS = new Set(['constructor', 'takeTurn']);

  it.each(ports)(
    'fails every operation of the %s backend, as its errors say it',
    async (name, type, error) => {
      const switches = new Switches(config, new FakeClock());
      switches.outage = new SyncGuardError({
        code: 'ServiceUnavailable',
        message: 'Redis cannot be reached.',
      });
      const port = switches.backends[name] as unknown as Record<string, () => Promise<unknown>>;
      const operations = Object.entries(Object.getOwnPropertyDescriptors(type.prototype)).flatMap(
        ([each, { value }]) => (typeof value === 'function' && !SYNCHRONOUS.has(each) ? [each] : []),
      );
      expect(operations.length).toBeGreaterThan(2);
      for (const operation of operations) {
        const fault: unknown = await port[operation]?.().catch((reason: unknown) => reason);
        expect(fault).toBeInstanceOf(error);
        expect(fault).toMatchObject({ code: 'ServiceUnavailable' });
      }
    },
  );

  it('fails each service, and the methods do not run; afterwards all is as it was', async () => {
    await using app = await start();
    const held = await app.locks.acquire({ key: 'a', ttlMs: minutes(1) });
    const { id } = await app.secrets.create({ payload: 'x', views: 1 });
    const hold = await app.budgets.reserve({ scopes: ['user:ann'], amount: 30 });
    await app.counters.increment('exports', { max: 3, windowMs: 1_000 });
    if (!held.ok || !hold.ok) throw new Error('not granted');

    app.testing.makeUnreachable();
    const calls = [
      () => held.extend(1_000),
      () => app.locks.lookup({ key: 'a' }),
      () => app.shop.pay('7'),
      () => app.limiter.peek('ann', { name: 'api', limit: 1, windowMs: 1_000, onError: 'closed' }),
      () => app.counters.increment('exports', { max: 3, windowMs: 1_000 }),
      () => app.budgets.balance({ scope: 'user:ann' }),
      () => app.budgets.finalize(hold, 20),
      () => app.shop.ask('ann'),
      () => app.secrets.view(id),
    ];
    for (const call of calls) await expect(call()).rejects.toMatchObject({ code: 'ServiceUnavailable' });
    expect(app.shop.calls).toBe(0);

    app.testing.restore();
    expect(await held.release()).toEqual({ ok: true });
    expect(await app.budgets.finalize(hold, 20)).toMatchObject({ ok: true });
    expect(await app.counters.peek('exports')).toMatchObject({ count: 1 });
    expect(await app.secrets.view(id)).toMatchObject({ ok: true, payload: 'x' });
  });

  it('lets a body that began before it end, and gives its lock back when it is over', async () => {
    await using app = await start();
    expect(
      await app.locks.lock(
        () => {
          app.testing.makeUnreachable();
          return 'done';
        },
        { key: 'a' },
      ),
    ).toBe('done');
    app.testing.restore();
    expect(await app.locks.isLocked({ key: 'a' })).toBe(true);
    await eventually(async () => expect(await app.locks.isLocked({ key: 'a' })).toBe(false));
  });

  it('takes health down', async () => {
    await using app = await start();
    const health = app.module.get(SyncGuardHealthIndicator);
    app.testing.makeUnreachable();
    expect(await health.isHealthy('locks')).toEqual({
      locks: {
        status: 'down',
        backend: 'memory',
        code: 'ServiceUnavailable',
        message: 'Redis cannot be reached.',
      },
    });
    app.testing.restore();
    expect(await health.isHealthy()).toMatchObject({ syncguard: { status: 'up' } });
  });
});

describe('overrideProvider(AbuseLimiterService)', () => {
  @Controller()
  class LoginController {
    @Post('login')
    @RateLimit([
      { limit: 5, windowMs: 1_000 },
      { name: 'all', limit: 9, windowMs: 1_000, keyBy: () => 'all', count: 'failure' },
    ])
    login(): string {
      return 'in';
    }
  }

  it('reaches @RateLimit, also where the stand-in has nothing but check()', async () => {
    const asked: unknown[][] = [];
    let wait = 0;
    const check = async (...args: unknown[]) => {
      asked.push(args);
      return wait > 0
        ? { allowed: false, scope: 'temp', reason: 'temp', retryAfterSecs: wait, shortCount: 6, longCount: 6 }
        : { allowed: true, shortCount: 1, longCount: 1, remaining: 4, resetMs: 1_000 };
    };
    const testingModule = await Test.createTestingModule({
      imports: [SyncGuardTestingModule.forRoot()],
      controllers: [LoginController],
    })
      .overrideProvider(AbuseLimiterService)
      .useValue({ check })
      .compile();
    const app = testingModule.createNestApplication();
    try {
      await app.listen(0, '127.0.0.1');
      const login = async () => fetch(`${await app.getUrl()}/login`, { method: 'POST' });
      expect((await login()).status).toBe(201);
      expect(asked).toEqual([
        ['[["ip","127.0.0.1"]]', 'POST /login', { cost: 1 }],
        ['[["key","all"]]', 'all', { cost: 1 }],
      ]);
      wait = 7;
      const denied = await login();
      expect([denied.status, denied.headers.get('retry-after')]).toEqual([429, '7']);
    } finally {
      await app.close();
    }
  });
});

describe('the clock of the module', () => {
  it('ends a lock at its TTL, not before', async () => {
    await using app = await start();
    const lock = await app.locks.acquire({ key: 'a', ttlMs: 1_000 });
    app.clock.advance(1_000);
    expect(await app.locks.isLocked({ key: 'a' })).toBe(true);
    app.clock.advance(1);
    expect(await app.locks.isLocked({ key: 'a' })).toBe(false);
    expect((await app.locks.acquire({ key: 'a', ttlMs: 1_000 })).ok).toBe(true);
    expect(lock.ok && (await lock.release())).toEqual({ ok: false });
  });

  it('ends the lock under a body, which is told when it ends', async () => {
    await using app = await start();
    const run = app.locks.lock(() => app.clock.advance(minutes(1)), { key: 'a' });
    await expect(run).rejects.toMatchObject({ code: 'LockLost' });
  });

  it('ends windows of counters', async () => {
    await using app = await start();
    const quota = { max: 1, windowMs: days(1) };
    await app.counters.increment('exports', quota);
    expect(await app.counters.increment('exports', quota)).toMatchObject({ ok: false, resetMs: days(1) });
    app.clock.advance(days(1));
    expect((await app.counters.increment('exports', quota)).ok).toBe(true);
  });

  it("ends a budget's month, and holds at their TTL", async () => {
    await using app = await start({ clock: new FakeClock(new Date('2026-02-28T23:59:00Z')) });
    const all = { scopes: ['user:ann'], amount: 100 };
    await app.budgets.charge({ ...all, id: 'february' });
    const march = Date.parse('2026-03-01T00:00:00Z');
    expect(await app.budgets.charge({ ...all, id: 'more' })).toMatchObject({ ok: false, retryAtMs: march });
    app.clock.advance(minutes(1));
    await app.budgets.reserve({ ...all, ttlMs: minutes(2), id: 'hold' });
    expect(await app.budgets.charge({ ...all, id: 'march' })).toMatchObject({ ok: false });
    app.clock.advance(minutes(2));
    expect(await app.budgets.charge({ ...all, id: 'march' })).toMatchObject({ ok: true });
  });

  it('ends secrets at their deadline, leases at theirs, and tombstones', async () => {
    await using app = await start({ secret: { tombstoneMs: hours(24) } });
    const { id } = await app.secrets.create({ payload: 'x', views: 1, ttlMs: hours(1) });
    await app.secrets.view(id, { leaseMs: seconds(30) });
    app.clock.advance(seconds(30));
    expect(await app.secrets.view(id)).toEqual({ ok: false, reason: 'burned' });
    const other = await app.secrets.create({ payload: 'x', ttlMs: hours(1) });
    app.clock.advance(hours(1));
    expect(await app.secrets.peek(other.id)).toMatchObject({ ok: false, reason: 'expired' });
    app.clock.advance(hours(24));
    expect(await app.secrets.peek(other.id)).toEqual({ ok: false, reason: 'not_found' });
  });
});

describe('bind(instance)', () => {
  it('shows nothing of them when the instance is logged or compared', async () => {
    await using app = await start();
    expect(Reflect.ownKeys({ ...app.testing.bind(new Shop()) })).toEqual(['calls']);
  });

  it('works for subclasses, and leaves classes without our decorators as they are', async () => {
    await using app = await start();
    class BigShop extends Shop {}
    expect(await app.testing.bind(new BigShop()).pay('7')).toMatch(/^\d{15}$/);
    const plain = app.testing.bind({ name: 'plain' });
    expect(Reflect.ownKeys(plain)).toEqual(['name']);
  });
});
