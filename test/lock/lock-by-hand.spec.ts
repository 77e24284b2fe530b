import 'reflect-metadata';
import { hostname } from 'node:os';
import { Logger } from '@nestjs/common';
import { Test, type TestingModule } from '@nestjs/testing';
import {
  createMemoryBackend,
  hashKey,
  type LockBackend,
  type LockContext,
  LockService,
  type SyncGuardEvent,
  SyncGuardModule,
  type SyncGuardOptions,
  WithLock,
} from 'nestjs-syncguard';
import { resolveOptions } from '../../lib/module/syncguard.options.js';
import { eventually } from '../support/eventually.js';
import { freshRedis, workerRedis } from '../support/redis.js';

class Reports {
  /** Ends with its lock, or when the test says so. */
  end = (): void => {};

  @WithLock('report', { ttlMs: 600_000 })
  make(lock?: LockContext): Promise<string> {
    void lock;
    return new Promise((resolve) => (this.end = () => resolve('made')));
  }
}

const WHY = { reason: 'it hangs', by: 'ann' };

describe('locks that an operator releases by hand', () => {
  const apps: TestingModule[] = [];
  const events: SyncGuardEvent[] = [];
  let warned: jest.SpyInstance;

  async function appOf(options: SyncGuardOptions): Promise<TestingModule> {
    const module = SyncGuardModule.forRoot({
      ...{ shutdown: { drainMs: 0 }, commandTimeoutMs: 10_000, lock: { ttlMs: 600_000 } },
      ...{ telemetry: { onEvent: (event) => void events.push(event), includeRaw: true } },
      ...options,
    });
    const app = await Test.createTestingModule({ imports: [module], providers: [Reports] }).compile();
    await app.init();
    apps.push(app);
    return app;
  }
  const onRedis = (operations: boolean): Promise<TestingModule> =>
    appOf({ redis: { host: workerRedis().host, port: workerRedis().port }, operations });

  beforeEach(async () => {
    events.length = 0;
    await freshRedis();
    warned = jest.spyOn(Logger.prototype, 'warn').mockImplementation();
  });
  afterEach(async () => {
    await Promise.all(apps.splice(0).map((app) => app.close()));
    jest.restoreAllMocks();
  });

  /** A body that ends when its lock is lost. */
  function held(
    locks: LockService,
    key: string,
    ttlMs = 15_000,
  ): { began: Promise<string>; ended: Promise<unknown> } {
    let begin!: (fence: string) => void;
    const began = new Promise<string>((resolve) => (begin = resolve));
    const ended = locks.lock(
      ({ signal, fence }) => {
        begin(fence);
        return new Promise((_, reject) =>
          signal.addEventListener('abort', () => reject(signal.reason as Error)),
        );
      },
      { key, ttlMs },
    );
    return { began, ended: ended.catch((error: unknown) => error) };
  }

  const lost = (reason: string) => ({ code: 'LockLost', context: { reason } });

  it('memory: the holder is told at once, and one event and one line say who and why', async () => {
    const locks = (await appOf({})).get(LockService);
    const { began, ended } = held(locks, 'order:1');
    const fence = await began;
    warned.mockClear();
    expect(await locks.forceRelease('order:1', { fence, ...WHY })).toStrictEqual({ released: true });
    expect(await ended).toMatchObject(lost('revoked'));
    expect(events.filter(({ type }) => type === 'forced')).toStrictEqual([
      {
        ...{ feature: 'lock', type: 'forced', result: 'ok', operation: 'release', ...WHY },
        ...{ key: 'order:1', keyHash: hashKey('order:1'), durationMs: 0 },
      },
    ]);
    expect(warned.mock.calls.flat()).toStrictEqual([
      `CHANGED_BY_HAND: release of lock ${hashKey('order:1')} by "ann" because "it hangs".`,
    ]);
  });

  it('says nothing of what was not released', async () => {
    const locks = (await appOf({})).get(LockService);
    warned.mockClear();
    const fence = '000000000000001';
    expect(await locks.forceRelease('order:1', { fence, ...WHY })).toStrictEqual({ released: false });
    expect(events.filter(({ type }) => type === 'forced')).toStrictEqual([]);
    expect(warned).not.toHaveBeenCalled();
  });

  it('Redis with `operations`: the holder in another process is told at once', async () => {
    const [holder, operator] = [await onRedis(true), await onRedis(true)].map((app) => app.get(LockService));
    const { began, ended } = held(holder as LockService, 'order:1');
    const fence = await began;
    await listening(operator as LockService, 'order:1');
    await (operator as LockService).forceRelease('order:1', { fence, ...WHY });
    expect(await ended).toMatchObject(lost('revoked'));
  });

  it('Redis without it: the holder is told at its next renewal', async () => {
    const [holder, operator] = [await onRedis(false), await onRedis(false)].map((app) =>
      app.get(LockService),
    );
    const { began, ended } = held(holder as LockService, 'order:1', 300);
    await (operator as LockService).forceRelease('order:1', { fence: await began, ...WHY });
    expect(await ended).toMatchObject(lost('taken'));
  });

  /** The holder's process may have begun to listen a moment ago. */
  const listening = (operator: LockService, key: string) =>
    eventually(async () => expect(await operator.holder(key)).toHaveLength(1));

  describe('holder', () => {
    it('names machine, process, method and since when, in whichever process it is', async () => {
      const [holder, operator] = [await onRedis(true), await onRedis(true)] as [TestingModule, TestingModule];
      const before = Date.now();
      const reports = holder.get(Reports);
      const made = reports.make();
      await listening(operator.get(LockService), 'report');
      for (const app of [holder, operator]) {
        const [found, ...others] = await app.get(LockService).holder('report');
        expect(others).toStrictEqual([]);
        expect(found).toMatchObject({ host: hostname(), pid: process.pid, method: 'Reports.make' });
        expect(found?.sinceMs).toBeGreaterThanOrEqual(before - 1);
        expect(found?.sinceMs).toBeLessThanOrEqual(Date.now());
      }
      reports.end();
      await made;
      expect(await operator.get(LockService).holder('report')).toStrictEqual([]);
    });

    it('knows handles, too', async () => {
      const locks = (await appOf({})).get(LockService);
      const lock = await locks.acquire({ key: 'order:1', ttlMs: 1_000 });
      expect(await locks.holder('order:1')).toMatchObject([{ pid: process.pid }]);
      if (lock.ok) await lock.release();
      expect(await locks.holder('order:1')).toStrictEqual([]);
    });

    it('ends when its signal aborts while it waits for answers', async () => {
      const locks = (await onRedis(true)).get(LockService);
      const abort = new AbortController();
      const asked = locks.holder('order:1', { signal: abort.signal });
      // By then the question is out. If it is not, on a busy machine, the call ends in the same way.
      setTimeout(() => abort.abort(new Error('enough')), 50);
      await expect(asked).rejects.toMatchObject({ code: 'Aborted', cause: { message: 'enough' } });
    });

    it('is refused on Redis without `operations`', async () => {
      const locks = (await onRedis(false)).get(LockService);
      await expect(locks.holder('order:1')).rejects.toMatchObject({ code: 'InvalidArgument' });
    });
  });

  it('a backend of a user without these calls says so', async () => {
    const backend = new Proxy(createMemoryBackend(), {
      get: (target, name: keyof LockBackend) =>
        ['list', 'waiters', 'forceRelease'].includes(name)
          ? undefined
          : (target[name] as unknown as () => void)?.bind?.(target),
    });
    const locks = new LockService(backend, resolveOptions());
    const refused = { code: 'InvalidArgument' };
    await expect(locks.list()).rejects.toMatchObject(refused);
    await expect(locks.waiters('a')).rejects.toMatchObject(refused);
    await expect(locks.forceRelease('a', { fence: '000000000000001', reason: 'x' })).rejects.toMatchObject(
      refused,
    );
  });
});
