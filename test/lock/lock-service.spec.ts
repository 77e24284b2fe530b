import 'reflect-metadata';
import { setImmediate as nextTurn } from 'node:timers/promises';
import { inspect } from 'node:util';
import {
  currentLock,
  createMemoryBackend,
  createRedisBackend,
  type LockBackend,
  type LockContext,
  LockError,
} from 'nestjs-syncguard';
import { Test } from '@nestjs/testing';
import { SyncGuardModule } from 'nestjs-syncguard';
import { resolveOptions, type SyncGuardOptions } from '../../lib/module/syncguard.options.js';
import { LockService } from '../../lib/lock/lock.service.js';
import { eventually } from '../support/eventually.js';
import { gate } from '../support/gate.js';
import { freshRedis, workerRedis } from '../support/redis.js';
import { movedTime } from '../support/moved-time.js';
import { stopwatch } from '../support/stopwatch.js';
import { failure } from './lock.contract.js';

const serviceOn = (backend: LockBackend, options: SyncGuardOptions = {}): LockService =>
  new LockService(backend, resolveOptions(options));

/** The backend with some methods of the test's own in front of it. */
const inFrontOf = (backend: LockBackend, methods: Partial<LockBackend>): LockBackend =>
  new Proxy(backend, {
    get: (target, name: keyof LockBackend) => {
      const value: unknown = methods[name] ?? target[name];
      return typeof value === 'function' ? (value.bind(target) as unknown) : value;
    },
  });

/** The backend, and how many of its attempts were answered. */
function countingAttempts(backend: LockBackend): { backend: LockBackend; attempts(): number } {
  let attempts = 0;
  const counting = inFrontOf(backend, {
    acquire: (options: Parameters<LockBackend['acquire']>[0]) =>
      backend.acquire(options).finally(() => attempts++),
  });
  return { backend: counting, attempts: () => attempts };
}

/** The backend, and how often a handle of its has been extended, or has been told so. */
function countingExtensions(
  backend: LockBackend,
  onExtend?: () => void,
): { backend: LockBackend; extensions(): number; extended(): number } {
  let [extensions, extended] = [0, 0];
  const counting = inFrontOf(backend, {
    acquire: async (options: Parameters<LockBackend['acquire']>[0]) => {
      const lock = await backend.acquire(options);
      if (!lock.ok) return lock;
      const extend = lock.extend.bind(lock);
      return Object.assign(lock, {
        extend: (ttlMs: number) => (extensions++, onExtend?.(), extend(ttlMs).finally(() => extended++)),
      });
    },
  });
  return { backend: counting, extensions: () => extensions, extended: () => extended };
}

function sharedSignal(): { signal: AbortSignal; abort(): void } {
  const controller = new AbortController();
  return { signal: controller.signal, abort: () => controller.abort() };
}

/** Keeps the event loop busy: what a heavy computation does to every timer. */
function block(ms: number): void {
  const end = performance.now() + ms;
  while (performance.now() < end);
}

describe.each<[string, () => Promise<LockBackend>]>([
  ['memory', async () => createMemoryBackend()],
  ['Redis', async () => createRedisBackend((await freshRedis()).client())],
])('LockService.lock() on %s', (backendName, setUp) => {
  let backend: LockBackend;
  let locks: LockService;
  beforeEach(async () => {
    backend = await setUp();
    locks = serviceOn(backend);
  });

  it('runs the body under the lock, gives its result, and releases', async () => {
    const result = await locks.lock(
      async (lock) => {
        expect(await backend.isLocked({ key: 'order:1' })).toBe(true);
        const { lockId, fence } = (await backend.getByKeyRaw('order:1')) ?? {};
        expect(lock).toMatchObject({ key: 'order:1', lockId, fence });
        expect(fence).toMatch(/^\d{15}$/);
        return 42;
      },
      { key: 'order:1' },
    );
    expect(result).toBe(42);
    expect(await backend.isLocked({ key: 'order:1' })).toBe(false);
  });

  it("passes the body's own error on as it is, and releases", async () => {
    const error = new Error('no money');
    await expect(locks.lock(() => Promise.reject(error), { key: 'order:1' })).rejects.toBe(error);
    const throwing = (): never => {
      throw error;
    };
    await expect(locks.lock(throwing, { key: 'order:1' })).rejects.toBe(error);
    expect(await backend.isLocked({ key: 'order:1' })).toBe(false);
  });

  describe('waiting', () => {
    it('ends with AcquisitionTimeout after timeoutMs, which says when to try again', async () => {
      await backend.acquire({ key: 'order:1', ttlMs: 30_000 });
      const started = performance.now();
      const error = await failure(locks.lock(() => 1, { key: 'order:1', timeoutMs: 150, retryDelayMs: 20 }));
      expect(error.code).toBe('AcquisitionTimeout');
      expect(error.context).toMatchObject({ timeoutMs: 150, retryAfter: 30 });
      expect(error.message).not.toContain('order:1');
      expect(performance.now() - started).toBeGreaterThanOrEqual(149);
    });

    it('with timeoutMs: Infinity goes on as long as it takes', async () => {
      const held = await backend.acquire({ key: 'order:1', ttlMs: 30_000 });
      const { backend: counting, attempts } = countingAttempts(backend);
      const options = { key: 'order:1', timeoutMs: Infinity, retryDelayMs: 5, fair: false };
      const waiting = serviceOn(counting).lock(() => 'in', options);
      await eventually(() => expect(attempts()).toBeGreaterThan(5));
      if (held.ok) await held.release();
      expect(await waiting).toBe('in');
      const forever = serviceOn(backend, { lock: { timeoutMs: Infinity } });
      expect(await forever.lock(() => 'in', { key: 'order:1' })).toBe('in');
    });

    it('hundreds of calls that share a signal listen to it once, and all end with it', async () => {
      const held = await backend.acquire({ key: 'order:1', ttlMs: 30_000 });
      const listen = jest.spyOn(EventTarget.prototype, 'addEventListener');
      const { signal, abort } = sharedSignal();
      const { backend: counting, attempts } = countingAttempts(backend);
      const service = serviceOn(counting);
      const calls = Array.from({ length: 300 }, () =>
        failure(service.lock(() => 1, { key: 'order:1', timeoutMs: 30_000, signal })),
      );
      await eventually(() => expect(attempts()).toBeGreaterThanOrEqual(300)); // All of them wait.
      const listeners = listen.mock.calls.filter(([event]) => event === 'abort').length;
      listen.mockRestore();
      abort();
      expect((await Promise.all(calls)).filter(({ code }) => code !== 'Aborted')).toStrictEqual([]);
      // Those that are told may be none for a moment, after which the first one listens again.
      expect(listeners).toBeLessThan(30);
      if (held.ok) await held.release();
    });

    it('does not sleep past the end of the other lock', async () => {
      await backend.acquire({ key: 'order:1', ttlMs: 50 });
      const elapsedMs = stopwatch();
      await locks.lock(() => 1, { key: 'order:1', retryDelayMs: 5_000, timeoutMs: 10_000 });
      expect(elapsedMs()).toBeLessThan(2_000);
    });

    it('with fair: false tries again in growing pauses, and with fair: true is told of its turn', async () => {
      let attempts = 0;
      const counting = inFrontOf(backend, {
        acquire: (options: Parameters<LockBackend['acquire']>[0]) => (attempts++, backend.acquire(options)),
      });
      await backend.acquire({ key: 'order:1', ttlMs: 30_000 });
      const options = { key: 'order:1', retryDelayMs: 1, timeoutMs: 1_000 } as const;
      const startedMs = performance.now();
      await failure(serviceOn(counting).lock(() => 1, { ...options, fair: false }));
      expect(performance.now() - startedMs).toBeGreaterThanOrEqual(999);
      // Of pauses that double from 1 ms on, and are random by half, some eleven make a second.
      expect(attempts).toBeGreaterThan(5);
      expect(attempts).toBeLessThan(15);
      attempts = 0;
      await failure(serviceOn(counting).lock(() => 1, options));
      // It asks when it begins to wait, when its own clock says so, and at the end.
      expect(attempts).toBeLessThan(10);
    });

    it('a signal that aborts inside the body still lets it be released', async () => {
      const controller = new AbortController();
      const error = await failure(
        locks.lock(
          () => {
            controller.abort(new Error('enough'));
            controller.signal.throwIfAborted();
          },
          { key: 'order:1', signal: controller.signal },
        ),
      );
      expect(error.message).toBe('enough');
      expect(await backend.isLocked({ key: 'order:1' })).toBe(false);
    });
  });

  describe('onContention', () => {
    beforeEach(() => backend.acquire({ key: 'job', ttlMs: 30_000 }));

    it("'skip' gives undefined without waiting and without running", async () => {
      const elapsedMs = stopwatch();
      const body = jest.fn();
      expect(await locks.lock(body, { key: 'job', onContention: 'skip' })).toBeUndefined();
      expect(body).not.toHaveBeenCalled();
      expect(elapsedMs()).toBeLessThan(1_000);
    });

    it('a function gives what it returns', async () => {
      expect(await locks.lock(() => 1, { key: 'job', onContention: (key) => `${key} is busy` })).toBe(
        'job is busy',
      );
    });

    it("the function learns of the first key, of all keys, and how long the holder's TTL still runs", async () => {
      await backend.acquire({ key: 'b', ttlMs: 70_000 });
      const busy = jest.fn((...called: [string, readonly string[], { remainingMs: number }]) => called);
      const leftOf = async (keys: string[], fair: boolean): Promise<number> => {
        const called = await locks.lock(() => busy('', [], { remainingMs: 0 }), {
          keys,
          fair,
          onContention: busy,
        });
        expect(called.slice(0, 2)).toEqual([keys.sort()[0], keys]);
        return called[2].remainingMs;
      };
      for (const fair of [true, false]) {
        const [ofB, ofJob] = [await leftOf(['b', 'a'], fair), await leftOf(['job'], fair)];
        expect([ofB > 40_000, ofB <= 70_000, ofJob > 10_000, ofJob <= 30_000]).toEqual(Array(4).fill(true));
      }
    });
  });

  it.each([
    [{ minHoldMs: 60_000 }, true],
    [{ minHoldMs: 60_000, minHoldOnFailureMs: 0 }, false],
    [{ minHoldOnFailureMs: 60_000 }, true],
  ])('a body that throws holds the lock by %j: %s', async (options, isHeld) => {
    await failure(locks.lock(() => Promise.reject(new Error('no')), { key: 'job', ...options }));
    expect(await backend.isLocked({ key: 'job' })).toBe(isHeld);
    await locks.lock(() => 1, { ...options, key: 'done' });
    expect(await backend.isLocked({ key: 'done' })).toBe('minHoldMs' in options);
  });

  describe('keeping alive', () => {
    let time: ReturnType<typeof movedTime>;
    beforeEach(() => {
      time = movedTime();
    });
    afterEach(() => time.end());

    it('holds a lock for longer than its TTL', async () => {
      await locks.lock(
        async (lock) => {
          await time.pass(3_500);
          expect(await backend.isLocked({ key: 'order:1' })).toBe(true);
          expect(lock.signal.aborted).toBe(false);
          lock.assertHeld();
        },
        { key: 'order:1', ttlMs: 1_500 },
      );
    });

    it('does not, with autoExtend: false', async () => {
      const error = await failure(
        locks.lock(() => time.pass(200), { key: 'order:1', ttlMs: 50, autoExtend: false }),
      );
      expect(error.code).toBe('LockLost');
    });

    it('renews thousands in turns of the event loop, and all of them in time', async () => {
      let [turn, extensions] = [0, 0];
      const inTurn: number[] = [];
      const { backend: counting } = countingExtensions(backend, () => {
        extensions++;
        inTurn[turn] = (inTurn[turn] ?? 0) + 1;
      });
      const next = (): void => {
        turn++;
        ticking = setImmediate(next);
      };
      let ticking = setImmediate(next);
      const service = serviceOn(counting, { lock: { ttlMs: 60_000 } });
      let inside = 0;
      let end!: () => void;
      const ended = new Promise<void>((resolve) => (end = resolve));
      const body = async (lock: LockContext): Promise<void> => {
        inside++;
        await ended;
        lock.assertHeld();
      };
      const bodies = Array.from({ length: 5_000 }, (_, i) => service.lock(body, { key: `order:${i}` }));
      try {
        await eventually(() => expect(inside).toBe(5_000), { timeoutMs: 60_000 });
        await time.pass(20_000);
        await eventually(() => expect(extensions).toBe(5_000)); // A third of the TTL has passed.
        service.renewAll();
        await time.pass(20);
        await eventually(() => expect(extensions).toBe(10_000));
        expect(Math.max(...inTurn.filter(Boolean))).toBe(1_000);
      } finally {
        clearImmediate(ticking);
        end();
      }
      await Promise.all(bodies);
    });

    it('extends at most three times in nine tenths of its TTL', async () => {
      const { backend: counting, extensions } = countingExtensions(backend);
      await serviceOn(counting).lock(() => time.pass(1_800), { key: 'order:1', ttlMs: 2_000 });
      expect(extensions()).toBeGreaterThanOrEqual(2);
      expect(extensions()).toBeLessThanOrEqual(3);
    });

    it('stops at maxHoldMs, and says so', async () => {
      let aborted = false;
      const error = await failure(
        locks.lock(
          async ({ signal }) => {
            signal.addEventListener('abort', () => (aborted = true));
            await time.pass(4_000);
          },
          { key: 'order:1', ttlMs: 2_000, maxHoldMs: 3_000 },
        ),
      );
      expect(error.code).toBe('LockLost');
      expect(error.message).toContain('maxHoldMs');
      expect(aborted).toBe(true);
    });

    it('does not cut short what the body has asked for', async () => {
      await locks.lock(
        async (lock) => {
          await lock.extend(60_000);
          const asked = lock.expiresAtMs;
          await time.pass(400);
          expect(lock.expiresAtMs).toBe(asked);
        },
        { key: 'order:1', ttlMs: 300 },
      );
    });
  });

  describe('loss', () => {
    const steal = async (): Promise<void> => {
      const held = await backend.getByKeyRaw('order:1');
      await backend.release({ lockId: held?.lockId ?? '' });
    };

    it('is seen by the watchdog, aborts the signal, and rejects when the body has ended', async () => {
      let context: LockContext | undefined;
      const error = await failure(
        locks.lock(
          async (lock) => {
            context = lock;
            await steal();
            await new Promise((resolve) => lock.signal.addEventListener('abort', resolve));
            expect(() => lock.assertHeld()).toThrow(LockError);
            expect(() => lock.signal.throwIfAborted()).toThrow(LockError);
          },
          { key: 'order:1', ttlMs: 200 },
        ),
      );
      expect(error.code).toBe('LockLost');
      expect(context?.signal.reason).toBe(error);
    });

    it("does not hide the body's own error", async () => {
      const error = new Error('mine');
      await expect(
        locks.lock(
          async () => {
            await steal();
            throw error;
          },
          { key: 'order:1' },
        ),
      ).rejects.toBe(error);
    });

    it('is found at the release, when another has deleted the lock', async () => {
      expect((await failure(locks.lock(steal, { key: 'order:1' }))).code).toBe('LockLost');
    });

    it('is seen by the first statement after a blocked event loop', async () => {
      const seen: unknown[] = [];
      await failure(
        locks.lock(
          (lock) => {
            const { signal } = lock;
            seen.push(signal.aborted);
            block(1_100);
            seen.push(signal.aborted, (signal.reason as LockError).code);
            expect(() => signal.throwIfAborted()).toThrow(LockError);
            expect(() => lock.assertHeld()).toThrow(LockError);
          },
          { key: 'order:1', ttlMs: 1_000 },
        ),
      );
      expect(seen).toStrictEqual([false, true, 'LockLost']);
    });

    describe('on a machine that is suspended: the monotonic clock stands still', () => {
      afterEach(() => jest.restoreAllMocks());
      /** As if the machine had slept: only the wall clock goes on, and the server's. */
      const sleepFor = (ms: number): void => {
        const [steadyMs, wallMs] = [performance.now(), Date.now()];
        jest.spyOn(performance, 'now').mockReturnValue(steadyMs);
        jest.spyOn(Date, 'now').mockReturnValue(wallMs + ms);
        workerRedis().clock.advance(ms);
      };

      it('is seen by the first look after it, and told to who listens', async () => {
        let reason: unknown;
        const error = await failure(
          locks.lock(
            async (lock) => {
              const { signal } = lock;
              const told = new Promise<Event>((resolve) => signal.addEventListener('abort', resolve));
              sleepFor(31_000);
              await told; // Long before the next renewal is due.
              reason = signal.reason;
              expect(() => lock.assertHeld()).toThrow(LockError);
            },
            { key: 'order:1' },
          ),
        );
        expect(error.code).toBe('LockLost');
        expect(reason).toBe(error);
        const looked = await failure(
          locks.lock(
            async (lock) => {
              sleepFor(31_000);
              expect(lock.signal.aborted).toBe(true);
              expect(() => lock.assertHeld()).toThrow(LockError);
              expect(await lock.extend()).toStrictEqual({ ok: false });
            },
            { key: 'order:2' },
          ),
        );
        expect(looked.code).toBe('LockLost');
      });

      it('a wall clock that is set forward loses the lock, one that is set back does not', async () => {
        const wallMs = Date.now();
        const setTo = (ms: number): unknown => jest.spyOn(Date, 'now').mockReturnValue(wallMs + ms);
        await locks.lock(
          async (lock) => {
            setTo(-3_600_000);
            lock.assertHeld();
            expect(await lock.extend()).toMatchObject({ ok: true });
          },
          { key: 'order:1' },
        );
        setTo(0);
        const error = await failure(
          locks.lock(
            (lock) => {
              setTo(31_000);
              expect(lock.signal.aborted).toBe(true);
            },
            { key: 'order:1' },
          ),
        );
        expect(error.code).toBe('LockLost');
      });
    });

    it('an extension that is answered after the deadline comes too late', async () => {
      const error = await failure(
        locks.lock(
          async (lock) => {
            const extended = lock.extend(60_000);
            block(60);
            expect(await extended).toStrictEqual({ ok: false });
          },
          { key: 'order:1', ttlMs: 50, autoExtend: false },
        ),
      );
      expect(error.code).toBe('LockLost');
    });
  });

  describe('renewAll(), when a lost connection is back', () => {
    it.each([
      ['what the body has asked for', { ttlMs: 1_000 }, 60_000],
      ['the end of a lock that is not kept alive', { ttlMs: 20_000, autoExtend: false }, undefined],
    ])('leaves alone %s', async (__, options, askedMs) => {
      const { backend: counting, extended } = countingExtensions(backend);
      const service = serviceOn(counting);
      await service.lock(
        async (lock) => {
          if (askedMs) await lock.extend(askedMs);
          const [expiresAtMs, before] = [lock.expiresAtMs, extended()];
          await eventually(() => {
            service.renewAll(); // It may not know yet of a lock that was just granted.
            expect(extended()).toBeGreaterThan(before);
          });
          await nextTurn(); // The lock has heard of it.
          expect(Math.abs(lock.expiresAtMs - expiresAtMs)).toBeLessThan(10_000);
        },
        { key: 'order:1', ...options },
      );
    });
  });

  describe('nesting', () => {
    it('takes another key inside, and knows the innermost', async () => {
      await locks.lock(
        async (outer) => {
          await locks.lock(async (inner) => expect(currentLock()).toBe(inner), { key: 'order:2' });
          expect(currentLock()).toBe(outer);
        },
        { key: 'order:1' },
      );
      expect(currentLock()).toBeUndefined();
    });

    it('the same key on another backend is another lock', async () => {
      const other = serviceOn(createMemoryBackend());
      expect(await locks.lock(() => other.lock(() => 1, { key: 'order:1' }), { key: 'order:1' })).toBe(1);
    });

    it('reentrant: true ends with the lock that it runs under', async () => {
      const { opened, open } = gate();
      let inner!: Promise<unknown>;
      await locks.lock(
        () => {
          inner = locks.lock(() => opened, { key: 'order:1', reentrant: true });
        },
        { key: 'order:1' },
      );
      open();
      expect((await failure(inner)).code).toBe('LockLost');
    });

    it('reentrant: true does not enter under a lock that is lost', async () => {
      const body = jest.fn();
      const error = await failure(
        locks.lock(
          async ({ signal }) => {
            await new Promise((resolve) => signal.addEventListener('abort', resolve));
            await locks.lock(body, { key: 'order:1', reentrant: true });
          },
          { key: 'order:1', ttlMs: 50, autoExtend: false },
        ),
      );
      expect(error.code).toBe('LockLost');
      expect(body).not.toHaveBeenCalled();
    });

    it('a listener of a loss does not run under the lock of another', async () => {
      let seen: unknown = 'nothing';
      const other = failure(
        locks.lock(
          ({ signal }) =>
            new Promise<void>((resolve) =>
              signal.addEventListener('abort', () => {
                seen = currentLock()?.key;
                resolve();
              }),
            ),
          { key: 'order:1', ttlMs: 800, autoExtend: false },
        ),
      );
      await locks.lock(() => other, { key: 'order:2', ttlMs: 2_000 });
      expect(seen).not.toBe('order:2');
    });

    it('work left running after the release inherits nothing', async () => {
      const { opened, open } = gate();
      let later!: Promise<unknown>;
      await locks.lock(
        () => {
          later = opened.then(() => [currentLock(), locks.lock(() => 'free', { key: 'order:1' })] as const);
        },
        { key: 'order:1' },
      );
      open();
      const [lock, again] = (await later) as [unknown, Promise<string>];
      expect(lock).toBeUndefined();
      expect(await again).toBe('free');
    });

    it('a context used after the release says that it is released', async () => {
      const lock = await locks.lock((context) => context, { key: 'order:1' });
      expect(() => lock.assertHeld()).toThrow(/released/);
      expect(await lock.extend()).toStrictEqual({ ok: false });
    });
  });

  describe('shutdown', () => {
    const closed = (service: LockService): { done: Promise<void>; isDone(): boolean } => {
      let isDone = false;
      const done = service.onModuleDestroy().then(() => void (isDone = true));
      return { done, isDone: () => isDone };
    };
    /** It had a few turns and a round trip in which it could have ended. */
    const expectToWait = async ({ isDone }: ReturnType<typeof closed>): Promise<void> => {
      for (let i = 0; i < 5; i++) await nextTurn();
      await backend.isLocked({ key: 'other' });
      expect(isDone()).toBe(false);
    };

    it('lets a body end, then frees its key; refuses new locks meanwhile; aborts waiters', async () => {
      const { opened, open } = gate();
      const { backend: counting, attempts } = countingAttempts(backend);
      locks = serviceOn(counting);
      const body = locks.lock(() => opened, { key: 'order:1' });
      await eventually(async () => expect(await backend.isLocked({ key: 'order:1' })).toBe(true));
      const waiter = failure(locks.lock(() => 1, { key: 'order:1' }));
      await eventually(() => expect(attempts()).toBeGreaterThanOrEqual(2));
      const closing = closed(locks);
      expect((await waiter).code).toBe('Aborted');
      expect((await failure(locks.acquire({ key: 'order:2', ttlMs: 1_000 }))).code).toBe(
        'ServiceUnavailable',
      );
      expect((await failure(locks.lock(() => 1, { key: 'order:2' }))).code).toBe('ServiceUnavailable');
      await expectToWait(closing);
      open();
      await closing.done;
      expect(await backend.isLocked({ key: 'order:1' })).toBe(false);
      await body;
    });

    it('gives a grant back that comes after the shutdown has begun', async () => {
      const { opened: grant, open } = gate();
      const slow = inFrontOf(backend, {
        acquire: async (options: Parameters<LockBackend['acquire']>[0]) => {
          const result = await backend.acquire(options);
          await grant;
          return result;
        },
      });
      const service = serviceOn(slow);
      const body = jest.fn();
      const late = [
        failure(service.lock(body, { key: 'order:1' })),
        failure(service.acquire({ key: 'order:2', ttlMs: 30_000 })),
      ];
      const closing = service.onModuleDestroy();
      open();
      await closing;
      for (const error of await Promise.all(late)) expect(error.code).toBe('ServiceUnavailable');
      expect(body).not.toHaveBeenCalled();
      expect(await backend.isLocked({ key: 'order:1' })).toBe(false);
      expect(await backend.isLocked({ key: 'order:2' })).toBe(false);
    });

    it('refuses an acquire that is made in the turn of close()', async () => {
      const redis = backendName === 'Redis' ? { redis: workerRedis().url } : {};
      const imports = [SyncGuardModule.forRoot(redis)];
      const app = await (await Test.createTestingModule({ imports }).compile()).init();
      const acquired = failure(app.get(LockService).acquire({ key: 'order:1', ttlMs: 30_000 }));
      await Promise.all([app.close(), acquired]);
      expect((await acquired).code).toBe('ServiceUnavailable');
    });

    it('waits for a body whose grant came in the same turn', async () => {
      const { opened, open } = gate();
      const granted = new Promise<void>((resolve) => {
        const telling = inFrontOf(backend, {
          acquire: async (options) => {
            const result = await backend.acquire(options);
            queueMicrotask(resolve);
            return result;
          },
        });
        locks = serviceOn(telling);
      });
      const body = locks.lock(() => opened, { key: 'order:1' });
      await granted;
      const closing = closed(locks);
      await expectToWait(closing);
      open();
      await Promise.all([closing.done, body]);
    });

    it('waits for handles in use as for bodies', async () => {
      const lock = await locks.acquire({ key: 'handle', ttlMs: 30_000 });
      const closing = closed(locks);
      await expectToWait(closing);
      expect(lock.ok && (await lock.release())).toStrictEqual({ ok: true });
      await closing.done;
    });

    it('does not wait for a body whose lock is lost, and skips what may be skipped', async () => {
      await new Promise<void>((entered) => {
        const stuck = (): Promise<never> => (entered(), new Promise(() => {}));
        void locks.lock(stuck, { key: 'stuck', ttlMs: 50, maxHoldMs: 50 });
      });
      await eventually(async () => expect(await backend.isLocked({ key: 'stuck' })).toBe(false));
      const elapsedMs = stopwatch();
      await locks.onModuleDestroy();
      expect(elapsedMs()).toBeLessThan(1_000);
      expect(await locks.lock(() => 1, { key: 'job', onContention: 'skip' })).toBeUndefined();
    });

    it.each(['expire', 'release'] as const)(
      'after drainMs what is still held, handles included, is left to its TTL or released: %s',
      async (heldLocks) => {
        const hasty = serviceOn(backend, {
          shutdown: { drainMs: 50, ...(heldLocks === 'release' && { heldLocks }) },
        });
        const handle = await hasty.acquire({ key: 'handle', ttlMs: 30_000 });
        expect(handle.ok).toBe(true);
        let end!: () => void;
        const body = failure(
          hasty.lock(
            async ({ signal }) => {
              await new Promise((resolve) => signal.addEventListener('abort', resolve));
              await new Promise<void>((resolve) => (end = resolve));
            },
            { key: 'order:1' },
          ),
        );
        await eventually(async () => expect(await backend.isLocked({ key: 'order:1' })).toBe(true));
        await hasty.onModuleDestroy();
        const isHeld = heldLocks === 'expire';
        expect(await backend.isLocked({ key: 'order:1' })).toBe(isHeld);
        expect(await backend.isLocked({ key: 'handle' })).toBe(isHeld);
        // A body that heeds its signal gives the lock back as long as the connection is there.
        end();
        expect((await body).code).toBe('LockLost');
        await eventually(async () => expect(await backend.isLocked({ key: 'order:1' })).toBe(false));
      },
    );
  });

  it('shows neither lockId nor key in what the body gets', async () => {
    const { shown, lockId } = await locks.lock(
      (lock) => ({
        shown: inspect(lock, { showHidden: true, depth: 5 }) + JSON.stringify(lock),
        lockId: lock.lockId,
      }),
      { key: 'order:1' },
    );
    expect(shown).not.toContain(lockId);
    expect(shown).not.toContain('order:1');
  });

  describe('bad input', () => {
    it('a missing key, body or options object too', async () => {
      expect((await failure(locks.lock(() => 1, {} as never))).code).toBe('InvalidArgument');
      expect((await failure(locks.lock(() => 1, undefined as never))).code).toBe('InvalidArgument');
      expect((await failure(locks.lock('x' as never, { key: 'order:1' }))).code).toBe('InvalidArgument');
    });
  });
});

it('a thousand held locks are renewed in one write', async () => {
  const client = (await freshRedis()).client();
  const locks = serviceOn(createRedisBackend(client), { lock: { ttlMs: 9_000 } });
  let release!: () => void;
  const gate = new Promise<void>((resolve) => (release = resolve));
  const startedMs = performance.now();
  const bodies = Array.from({ length: 1_000 }, (_, i) => locks.lock(() => gate, { key: `order:${i}` }));
  await eventually(async () => expect(await workerRedis().client().dbsize()).toBe(3_000));
  const takenInMs = performance.now() - startedMs;

  const socket = client.stream as unknown as {
    _writev: (...args: unknown[]) => void;
    _write: (...args: unknown[]) => void;
  };
  const writes: number[] = [];
  for (const method of ['_write', '_writev'] as const) {
    const original = socket[method].bind(socket);
    socket[method] = (...args) => {
      writes.push(performance.now());
      original(...args);
    };
  }
  // Renewals of one turn are few commands. Each reads the clock.
  const renewed = async (): Promise<number> =>
    Number(/cmdstat_time:calls=(\d+)/.exec(await workerRedis().client().info('commandstats'))?.[1] ?? 0);
  const before = await renewed();
  await eventually(async () => expect(await renewed()).toBeGreaterThanOrEqual(before + 1_000));
  // One write a cell of the renewal grid (a tenth of the TTL) in which locks were taken, and the first of the next.
  expect(writes.length).toBeLessThanOrEqual(3 + Math.floor(takenInMs / 900));
  release();
  await Promise.all(bodies);
});
