import type { Redis } from 'ioredis';
import { setImmediate as nextTurn, setTimeout as sleep } from 'node:timers/promises';
import { createRedisBackend, type LockError, type LockBackend } from 'nestjs-syncguard';
import { openConnection } from '../../lib/redis/redis.connect.js';
import { LockService } from '../../lib/lock/lock.service.js';
import { ScriptRunner } from '../../lib/script/script-runner.js';
import { resolveOptions } from '../../lib/module/syncguard.options.js';
import { granted } from './lock.contract.js';
import { eventually } from '../support/eventually.js';
import { stopwatch } from '../support/stopwatch.js';
import { type RedisServer, startRedisServer } from '../support/redis-server.js';
import { startTcpProxy, type TcpProxy } from '../support/tcp-proxy.js';

const TTL_MS = 30_000;
const FENCE = 'syncguard:fence:syncguard:order:1';

const failure = async (
  promise: Promise<unknown>,
): Promise<{ code: string; ms: number; error: LockError }> => {
  const elapsedMs = stopwatch();
  try {
    await promise;
  } catch (error) {
    return { code: (error as LockError).code, ms: elapsedMs(), error: error as LockError };
  }
  throw new Error('it did not fail');
};

describe('locks when Redis fails', () => {
  let server: RedisServer;
  let proxy: TcpProxy;
  beforeAll(async () => {
    server = await startRedisServer();
  });
  afterAll(() => server.stop());
  beforeEach(async () => {
    proxy = await startTcpProxy(server.port);
    await server.client().flushall();
  });
  afterEach(async () => {
    server.closeClients();
    await proxy.stop();
  });

  /** A connection as the module opens it, through the proxy. */
  const own = async (): Promise<LockBackend> => {
    const backend = createRedisBackend(server.track(openConnection(proxy.url) as unknown as Redis));
    await granted(await backend.acquire({ key: 'warm', ttlMs: 1_000 })).release();
    return backend;
  };
  /** A client as users make it: commands that a lost connection left unanswered are sent again. */
  const theirs = async (): Promise<LockBackend> => {
    const backend = createRedisBackend(server.client({ port: proxy.port }));
    await granted(await backend.acquire({ key: 'warm', ttlMs: 1_000 })).release();
    return backend;
  };
  const nothingIsHeld = (): Promise<unknown> =>
    eventually(async () =>
      expect((await server.client().keys('*')).filter((key) => !key.includes('fence:'))).toStrictEqual([]),
    );

  describe('a server that stands still', () => {
    it('fails an acquire with NetworkTimeout in time, and undoes it when it ran after all', async () => {
      const backend = await own();
      server.pause();
      const startedMs = performance.now();
      const { code, ms } = await failure(backend.acquire({ key: 'order:1', ttlMs: TTL_MS }));
      const atLeastMs = performance.now() - startedMs;
      server.resume();
      expect(code).toBe('NetworkTimeout');
      expect(atLeastMs).toBeGreaterThan(990);
      expect(ms).toBeLessThan(1_900);
      await eventually(async () => expect(await server.client().exists(FENCE)).toBe(1));
      await nothingIsHeld();
    });

    it('fails reads, releases and extends in time as well', async () => {
      const backend = await own();
      const lock = granted(await backend.acquire({ key: 'order:1', ttlMs: TTL_MS }));
      server.pause();
      const outcomes = await Promise.all(
        [
          lock.release(),
          lock.extend(TTL_MS),
          backend.isLocked({ key: 'order:1' }),
          backend.lookup({ lockId: lock.lockId }),
        ].map(failure),
      );
      server.resume();
      for (const { code, ms } of outcomes) {
        expect(code).toBe('NetworkTimeout');
        expect(ms).toBeLessThan(1_900);
      }
    });

    it('a second release that is aborted does not wait for the first', async () => {
      const lock = granted(await (await own()).acquire({ key: 'order:1', ttlMs: TTL_MS }));
      server.pause();
      const first = failure(lock.release()).then(() => 'the first');
      const second = failure(lock.release(AbortSignal.abort())).then(({ code }) => code);
      expect(await Promise.race([first, second])).toBe('Aborted');
      await first;
      server.resume();
    });

    it('an aborted acquire settles at once, and is undone', async () => {
      const backend = await own();
      server.pause();
      const controller = new AbortController();
      const acquiring = failure(
        backend.acquire({ key: 'order:1', ttlMs: TTL_MS, signal: controller.signal }),
      );
      await nextTurn(); // It is sent by then.
      controller.abort();
      const { code, ms } = await acquiring;
      server.resume();
      expect(code).toBe('Aborted');
      expect(ms).toBeLessThan(900);
      await eventually(async () => expect(await server.client().exists(FENCE)).toBe(1));
      await nothingIsHeld();
    });
  });

  describe('a reply that is lost after the script ran', () => {
    it('on our own connection fails the acquire at once, and the lock is undone', async () => {
      const backend = await own();
      proxy.cutAfterRequest();
      const { code, ms } = await failure(backend.acquire({ key: 'order:1', ttlMs: TTL_MS }));
      expect(code).toBe('ServiceUnavailable');
      expect(ms).toBeLessThan(900);
      expect(await server.client().exists(FENCE)).toBe(1);
      await nothingIsHeld();
    });

    it("on a user's client is asked for again, and gives the same grant", async () => {
      const backend = await theirs();
      proxy.cutAfterRequest();
      const lock = granted(await backend.acquire({ key: 'order:1', ttlMs: TTL_MS }));
      expect(await server.client().get(FENCE)).toBe(String(Number(lock.fence)));
      expect(await lock.release()).toStrictEqual({ ok: true });
    });

    it("of a release on a user's client is a release", async () => {
      const backend = await theirs();
      const lock = granted(await backend.acquire({ key: 'order:1', ttlMs: TTL_MS }));
      proxy.cutAfterRequest();
      expect(await lock.release()).toStrictEqual({ ok: true });
      await nothingIsHeld();
    });

    it('of a release by the bare id is a release too, in both layouts', async () => {
      const { command: original } = ScriptRunner.prototype;
      function passOn(this: ScriptRunner, ...sent: Parameters<typeof original>): Promise<unknown> {
        return original.apply(this, sent);
      }
      function cut(this: ScriptRunner, ...sent: Parameters<typeof original>): Promise<unknown> {
        proxy.cutAfterRequest();
        return original.apply(this, sent);
      }
      for (const keyLayout of ['spec', 'slotted'] as const) {
        const backend = createRedisBackend(server.client({ port: proxy.port }), { keyLayout });
        const { lockId } = granted(await backend.acquire({ key: 'order:1', ttlMs: TTL_MS }));
        // The slotted layout reads the index first: it is the second reply that is lost.
        const send = jest.spyOn(ScriptRunner.prototype, 'command');
        send.mockImplementationOnce(keyLayout === 'slotted' ? passOn : cut);
        if (keyLayout === 'slotted') send.mockImplementationOnce(cut);
        expect(await backend.release({ lockId })).toStrictEqual({ ok: true });
        expect(await backend.release({ lockId })).toStrictEqual({ ok: false });
        expect(await backend.isLocked({ key: 'order:1' })).toBe(false);
        send.mockRestore();
      }
    });

    it('of a release leaves nothing to try again when its block ends', async () => {
      const backend = await own();
      const asked = jest.spyOn(backend, 'release');
      {
        await using lock = granted(await backend.acquire({ key: 'order:1', ttlMs: TTL_MS }));
        await lock.release();
        await proxy.refuse();
      }
      await sleep(600); // Longer than until a second try: that there is none takes its time.
      expect(asked).toHaveBeenCalledTimes(1);
      await proxy.restore();
    });

    it('of the release of a body leaves its result, and the lock goes soon', async () => {
      const locks = new LockService(await own(), resolveOptions());
      const result = await locks.lock(
        () => {
          proxy.cutAfterRequest();
          return 'paid';
        },
        { key: 'order:1' },
      );
      expect(result).toBe('paid');
      await nothingIsHeld();
    });
  });

  describe('a connection that is cut', () => {
    it('is a ServiceUnavailable that names the cause, within the deadline; then all works again', async () => {
      const backend = await own();
      await proxy.refuse();
      const { code, ms, error } = await failure(backend.acquire({ key: 'order:1', ttlMs: TTL_MS }));
      expect(code).toBe('ServiceUnavailable');
      expect(ms).toBeLessThan(1_900);
      expect(error.message).toMatch(/cannot be reached/);
      await proxy.restore();
      await eventually(async () =>
        expect((await backend.acquire({ key: 'order:1', ttlMs: TTL_MS })).ok).toBe(true),
      );
    });

    it('costs no lock whose renewal succeeds in time', async () => {
      const locks = new LockService(await own(), resolveOptions());
      await locks.lock(
        async (lock) => {
          await proxy.refuse();
          await sleep(1_600); // The renewal that a third of the TTL asks for fails.
          await proxy.restore();
          await sleep(3_000);
          lock.assertHeld();
        },
        { key: 'order:1', ttlMs: 4_200 },
      );
    });

    it('for longer than the TTL loses the lock, told at the deadline', async () => {
      const locks = new LockService(await own(), resolveOptions());
      let toldAfterMs = 0;
      const { code } = await failure(
        locks.lock(
          async ({ signal }) => {
            const elapsedMs = stopwatch();
            await proxy.refuse();
            await new Promise((resolve) => signal.addEventListener('abort', resolve));
            toldAfterMs = elapsedMs();
          },
          { key: 'order:1', ttlMs: 600 },
        ),
      );
      expect(code).toBe('LockLost');
      expect(toldAfterMs).toBeLessThan(1_500);
    });
  });

  it('a grant that comes after its TTL does not start the body', async () => {
    const locks = new LockService(await own(), resolveOptions());
    proxy.delay(150);
    const body = jest.fn();
    const { code, error } = await failure(locks.lock(body, { key: 'order:1', ttlMs: 120, timeoutMs: 0 }));
    expect(code).toBe('NetworkTimeout');
    expect(error.message).toMatch(/TTL was over/);
    expect(body).not.toHaveBeenCalled();
    expect((await failure(locks.acquire({ key: 'order:2', ttlMs: 120 }))).code).toBe('NetworkTimeout');
  });

  it('shutdown tries once more what could not be released', async () => {
    const locks = new LockService(await own(), resolveOptions());
    await locks.lock(() => proxy.cutAfterRequest(), { key: 'order:1' });
    await eventually(async () =>
      expect(await failure(locks.isLocked({ key: 'x' })).catch(() => 'up')).toBe('up'),
    );
    await locks.onModuleDestroy();
    expect(await server.client().exists('syncguard:order:1')).toBe(0);
  });

  it('an expired or unknown lock is not said to be released because the connection was lost', async () => {
    const backend = await theirs();
    const lock = granted(await backend.acquire({ key: 'order:1', ttlMs: 100 }));
    await proxy.refuse();
    await sleep(150);
    const results = [
      lock.release(),
      backend.release({ lockId: lock.lockId }),
      backend.release({ lockId: 'A'.repeat(22) }),
    ];
    await sleep(200);
    await proxy.restore();
    for (const result of await Promise.all(results)) expect(result).toStrictEqual({ ok: false });
  });

  it('an undo ends after it was told twice that there is nothing to undo', async () => {
    const backend = await own();
    granted(await backend.acquire({ key: 'order:1', ttlMs: TTL_MS }));
    const controller = new AbortController();
    const aborted = Array.from({ length: 20 }, () =>
      failure(backend.acquire({ key: 'order:1', ttlMs: TTL_MS, signal: controller.signal })),
    );
    controller.abort();
    await Promise.all(aborted);
    await backend.flush?.();
    const calls = async (): Promise<number> =>
      Number(/cmdstat_evalsha:calls=(\d+)/.exec(await server.client().info('commandstats'))?.[1] ?? 0);
    const before = await calls();
    await sleep(700); // Longer than until a third look: that there is none takes its time.
    expect(await calls()).toBe(before);
    expect(await backend.isLocked({ key: 'order:1' })).toBe(true);
  });

  it('a client in a MULTI of its user leaves no lock behind', async () => {
    const client = server.client();
    const backend = createRedisBackend(client);
    await client.multi({ pipeline: false });
    const acquiring = failure(backend.acquire({ key: 'order:1', ttlMs: TTL_MS }));
    await client.exec();
    expect((await acquiring).code).toBe('Internal');
    await nothingIsHeld();
  });

  it('replies that come byte by byte are read as any other', async () => {
    const backend = await own();
    proxy.byteByByte();
    const lock = granted(await backend.acquire({ key: 'order:1', ttlMs: TTL_MS }));
    expect(await lock.release()).toStrictEqual({ ok: true });
  });

  it('a lazy client is connected, a closed one is said to be closed', async () => {
    const lazy = server.client({ lazyConnect: true });
    expect((await createRedisBackend(lazy).acquire({ key: 'order:1', ttlMs: TTL_MS })).ok).toBe(true);
    lazy.disconnect();
    await eventually(() => expect(lazy.status).toBe('end'));
    const { code, ms, error } = await failure(
      createRedisBackend(lazy).acquire({ key: 'order:2', ttlMs: TTL_MS }),
    );
    expect(code).toBe('ServiceUnavailable');
    expect(ms).toBeLessThan(900);
    expect(error.message).toMatch(/closed/);
  });

  describe('a call that waits', () => {
    it.each([
      ['a connection that is lost', () => proxy.refuse(), () => proxy.restore()],
      ['a server that stands still', async () => server.pause(), async () => server.resume()],
    ])('gets its lock after %s', async (_, breakIt, mend) => {
      const backend = await own();
      const locks = new LockService(backend, resolveOptions());
      const held = granted(await backend.acquire({ key: 'order:1', ttlMs: 2_000 }));
      const waiting = locks.lock(({ fence }) => fence, { key: 'order:1', timeoutMs: 20_000 });
      await eventually(async () => expect(await server.client().zcard('syncguard/queue:order:1')).toBe(1));
      await breakIt();
      await sleep(2_500);
      await mend();
      expect((await waiting) > held.fence).toBe(true);
      await nothingIsHeld();
    });

    it('ends at timeoutMs with the code of what was there to the end, the last fault as cause', async () => {
      const backend = await own();
      const locks = new LockService(backend, resolveOptions());
      await proxy.refuse();
      const startedMs = performance.now();
      const { code, ms, error } = await failure(locks.lock(() => 1, { key: 'order:1', timeoutMs: 2_500 }));
      const atLeastMs = performance.now() - startedMs;
      expect(code).toBe('ServiceUnavailable');
      expect(atLeastMs).toBeGreaterThan(2_400);
      expect(ms).toBeLessThan(4_500);
      expect(error.message).toMatch(/cannot be reached.* tried for \d+ ms/);
      expect(error.cause).toMatchObject({ code: 'ServiceUnavailable' });
      await proxy.restore();
    });

    it('that is contended again after a fault ends with AcquisitionTimeout, and tells of the fault', async () => {
      const backend = await own();
      const locks = new LockService(backend, resolveOptions());
      granted(await backend.acquire({ key: 'order:1', ttlMs: TTL_MS }));
      proxy.cutAfterRequest();
      const { code, error } = await failure(locks.lock(() => 1, { key: 'order:1', timeoutMs: 3_000 }));
      expect(code).toBe('AcquisitionTimeout');
      expect(error.cause).toMatchObject({ code: 'ServiceUnavailable' });
    });

    it('does not wait where the credentials are refused, nor with skip', async () => {
      const backend = await own();
      const locks = new LockService(backend, resolveOptions());
      await proxy.refuse();
      const { code, ms } = await failure(
        locks.lock(() => 1, { key: 'order:1', onContention: 'skip', timeoutMs: 60_000 }),
      );
      expect(code).toBe('ServiceUnavailable');
      expect(ms).toBeLessThan(1_900);
      await proxy.restore();
    });
  });

  describe('a full server', () => {
    afterEach(() => server.client().config('SET', 'maxmemory', '0'));
    const fill = (): Promise<unknown> => server.client().config('SET', 'maxmemory', '1');

    it.each(['spec', 'slotted'] as const)(
      'costs no lock that is held, in the %s layout',
      async (keyLayout) => {
        const backend = createRedisBackend(server.client(), { keyLayout });
        const locks = new LockService(backend, resolveOptions());
        const lock = granted(await backend.acquire({ key: 'order:2', ttlMs: TTL_MS }));
        await locks.lock(
          async (context) => {
            await fill();
            for (let renewal = 0; renewal < 3; renewal++) {
              const before = context.expiresAtMs;
              await eventually(() => expect(context.expiresAtMs).toBeGreaterThan(before));
            }
            context.assertHeld();
            expect((await failure(backend.acquire({ key: 'order:3', ttlMs: TTL_MS }))).code).toBe(
              'ServiceUnavailable',
            );
          },
          { key: 'order:1', ttlMs: 1_500, minHoldMs: 60_000 },
        );
        expect((await backend.lookup({ key: 'order:1' }))?.expiresAtMs).toBeGreaterThan(Date.now() + 30_000);
        expect(await backend.extend({ lockId: lock.lockId, ttlMs: TTL_MS })).toMatchObject({ ok: true });
        expect(await lock.release()).toStrictEqual({ ok: true });
      },
    );
  });
});
