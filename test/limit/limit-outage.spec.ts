import { Logger } from '@nestjs/common';
import { AbuseLimiterService } from '../../lib/limit/abuse-limiter.service.js';
import { LimitError } from '../../lib/limit/limit.errors.js';
import { MemoryLimitBackend } from '../../lib/limit/memory/limit.memory-backend.js';
import { resolveLimitDefaults, resolveLimits } from '../../lib/limit/limit.options.js';
import { RedisLimitBackend } from '../../lib/limit/redis/limit.redis-backend.js';
import type { LimiterDecision, OnError } from '../../lib/limit/limit.types.js';
import { ScriptRunner } from '../../lib/script/script-runner.js';
import { minutes } from '../../lib/core/time.js';
import { observe } from '../../lib/telemetry/observe.js';
import type { Emit } from '../../lib/telemetry/telemetry.types.js';
import { eventually } from '../support/eventually.js';
import { stopwatch } from '../support/stopwatch.js';
import { freshRedis, workerRedis } from '../support/redis.js';
import { type RedisServer, startRedisServer } from '../support/redis-server.js';
import { startTcpProxy } from '../support/tcp-proxy.js';
import { API, BULK, LOGIN } from './limit.contract.js';

const TIMEOUT_MS = 1_000;

function limiterOn(
  client: unknown,
  limit: Parameters<typeof resolveLimitDefaults>[0] = {},
  emit?: Emit,
): AbuseLimiterService {
  const options = resolveLimitDefaults({ commandTimeoutMs: TIMEOUT_MS, ...(limit as object) });
  // However long the client's own commands may take.
  const onRedis = new RedisLimitBackend(new ScriptRunner(client as ScriptRunner['client'], 60_000), 'test');
  const backend = emit ? observe(onRedis, 'limit', { check: () => ({}) }, emit) : onRedis;
  return new AbuseLimiterService(backend, new MemoryLimitBackend(), {
    limit: options,
    limits: resolveLimits({}, options),
  });
}

const timed = async <T>(
  run: () => Promise<T>,
): Promise<{ ms: number; result: T | { code: string; retryAfter: unknown } }> => {
  const elapsedMs = stopwatch();
  const result = await run().catch((error: { code: string; context: { retryAfter: unknown } }) => ({
    code: error.code,
    retryAfter: error.context.retryAfter,
  }));
  return { ms: elapsedMs(), result };
};

describe('when Redis does not answer', () => {
  let server: RedisServer;
  beforeEach(async () => {
    server = await startRedisServer();
  });
  afterEach(() => server.stop());

  const policyOf = (onError: OnError) => ({ ...API, limit: 100, onError });
  const expected = {
    closed: { code: 'ServiceUnavailable', retryAfter: 1 },
    memory: { allowed: true, degraded: true },
    open: { allowed: true, shortCount: 0, degraded: true },
  };

  it.each(['closed', 'memory', 'open'] as const)(
    'in the middle of a load, every decision comes in time and is what onError says: %s',
    async (onError) => {
      const limiter = limiterOn(server.client());
      expect(await limiter.check('ann', policyOf(onError))).toMatchObject({ allowed: true, shortCount: 1 });
      server.pause();
      const decisions: Awaited<ReturnType<typeof timed<LimiterDecision>>>[] = [];
      for (let batch = 0; batch < 8; batch++) {
        decisions.push(
          ...(await Promise.all(
            Array.from({ length: 5 }, () => timed(() => limiter.check('ann', policyOf(onError)))),
          )),
        );
      }
      server.resume();
      for (const { ms, result } of decisions) {
        expect(result).toMatchObject(expected[onError]);
        expect(ms).toBeLessThan(4 * TIMEOUT_MS);
      }
      // Five failures open the breaker: who comes then does not wait at all.
      expect(decisions.slice(5).every(({ ms }) => ms < TIMEOUT_MS)).toBe(true);
    },
  );

  it.each(['sliding-log', 'fixed-window'] as const)(
    'a call that was given up is taken back once its answer comes, and none that was denied: %s',
    async (algorithm) => {
      const limiter = limiterOn(server.client());
      const policy = { name: 'late', algorithm, limit: 2, windowMs: minutes(1), onError: 'open' } as const;
      await limiter.check('ann', policy);
      for (const stands of [1, 2]) {
        server.pause();
        expect(await limiter.check('ann', policy)).toMatchObject({ degraded: true });
        server.resume();
        // By one connection: the late answer comes before that of the first peek, its withdrawal before the second.
        await limiter.peek('ann', policy);
        expect(await limiter.peek('ann', policy)).toMatchObject({ shortCount: stands });
        await limiter.check('ann', policy);
      }
    },
  );

  it('comes back by itself: a probe finds out, and Redis decides again', async () => {
    const limiter = limiterOn(server.client({ retryStrategy: () => 20 }));
    const policy = policyOf('open');
    await limiter.check('ann', policy);
    await server.kill();
    for (let i = 0; i < 6; i++) expect(await limiter.check('ann', policy)).toMatchObject({ degraded: true });
    await server.restart();
    await eventually(async () => expect(await limiter.check('ann', policy)).not.toHaveProperty('degraded'), {
      timeoutMs: 6_000,
      intervalMs: 50,
    });
  });

  it('several limits degrade together, as the strictest says', async () => {
    const limiter = limiterOn(server.client());
    await server.kill();
    const limits = [policyOf('open'), { ...policyOf('closed'), name: 'strict' }];
    await expect(limiter.check('ann', limits)).rejects.toMatchObject({ code: 'ServiceUnavailable' });
  });

  it('operations by hand reach the memory that decides meanwhile, and say that Redis was not reached', async () => {
    const limiter = limiterOn(server.client());
    await limiter.check('ann', LOGIN);
    await server.kill();
    // The client may hear only later that the connection has gone.
    const fault = { code: expect.stringMatching(/^(ServiceUnavailable|NetworkTimeout)$/) as unknown };
    const decide = (): Promise<LimiterDecision> => limiter.check('ann', LOGIN);

    await expect(limiter.block('ann', LOGIN, minutes(2), 'fraud')).rejects.toMatchObject(fault);
    expect(await decide()).toMatchObject({
      allowed: false,
      scope: 'manual',
      reason: 'fraud',
      degraded: true,
    });
    await expect(limiter.unblock('ann', LOGIN)).rejects.toMatchObject(fault);
    expect(await decide()).toMatchObject({ allowed: true, shortCount: 1, degraded: true });
    await decide();
    await expect(limiter.forgive('ann', LOGIN, 1)).rejects.toMatchObject(fault);
    expect(await decide()).toMatchObject({ shortCount: 2, degraded: true });
    await expect(limiter.reset('ann', LOGIN)).rejects.toMatchObject(fault);
    expect(await decide()).toMatchObject({ shortCount: 1, degraded: true });
  });

  it('an operation by hand is not kept from memory by a server that hangs', async () => {
    const limiter = limiterOn(server.client());
    await limiter.check('ann', LOGIN);
    server.pause();
    const blocking = limiter.block('ann', LOGIN, minutes(2)).catch((error: unknown) => error);
    expect(await limiter.check('ann', LOGIN)).toMatchObject({ scope: 'manual', degraded: true });
    expect(await blocking).toMatchObject({ code: 'NetworkTimeout' });
    server.resume();
  });

  it('an operation by hand on several limits reaches all of them', async () => {
    const limiter = limiterOn(server.client());
    await server.kill();
    const limits = [policyOf('memory'), { ...policyOf('memory'), name: 'second' }];
    await expect(limiter.block('ann', limits, minutes(2))).rejects.toMatchObject({
      code: 'ServiceUnavailable',
    });
    for (const policy of limits)
      expect(await limiter.check('ann', policy)).toMatchObject({ scope: 'manual', degraded: true });
  });

  it('the deny cache forgets the block with unblock also then', async () => {
    const limiter = limiterOn(server.client(), { denyCacheMs: 60_000 });
    for (let i = 0; i < 5; i++) await limiter.check('ann', LOGIN);
    await server.kill();
    expect(await limiter.check('ann', LOGIN)).toMatchObject({ allowed: false });
    await expect(limiter.unblock('ann', LOGIN)).rejects.toBeInstanceOf(LimitError);
    expect(await limiter.check('ann', LOGIN)).toMatchObject({ allowed: true, degraded: true });
  });

  it.each(['closed', 'memory', 'open'] as const)('peek degrades as check does: %s', async (onError) => {
    const limiter = limiterOn(server.client());
    await limiter.check('ann', policyOf(onError));
    await server.kill();
    const ask = (how: 'peek' | 'check') =>
      limiter[how]('ann', policyOf(onError)).catch((error: { code: string; context: object }) => ({
        code: error.code,
        ...error.context,
      }));
    expect(await ask('peek')).toMatchObject({ ...expected[onError] });
    const decision = await ask('check');
    const resetMs = expect.any(Number) as number;
    const peeked = { closed: {}, memory: { known: true, resetMs }, open: { known: false } };
    expect(await ask('peek')).toEqual({ ...decision, ...peeked[onError] });
  });

  it('a call that was refused for want of a connection does not run later', async () => {
    await using proxy = await startTcpProxy(server.port);
    const client = server.client({ port: proxy.port, retryStrategy: () => 20 });
    const limiter = limiterOn(client);
    const policy = policyOf('closed');
    await limiter.check('ann', policy);
    await proxy.refuse();
    await eventually(() => expect(client.status).not.toBe('ready'));
    for (let i = 0; i < 3; i++)
      await expect(limiter.check('ann', policy)).rejects.toMatchObject({ code: 'ServiceUnavailable' });
    await proxy.restore();
    await eventually(() => expect(client.status).toBe('ready'));
    await client.ping(); // What waited for the connection would have been sent before.
    expect(await limiter.peek('ann', policy)).toMatchObject({ shortCount: 1 });
  });

  it('a caller who gives up is not taken for an outage', async () => {
    const limiter = limiterOn(server.client());
    await limiter.check('ann', policyOf('open'));
    server.pause();
    for (let i = 0; i < 10; i++) {
      const controller = new AbortController();
      const call = limiter.check('ann', policyOf('open'), { signal: controller.signal });
      controller.abort();
      await expect(call).rejects.toMatchObject({ code: 'Aborted' });
    }
    server.resume();
    expect(await limiter.check('ann', policyOf('open'))).not.toHaveProperty('degraded');
  });
});

describe('the deny cache', () => {
  beforeEach(freshRedis);
  const setUp = async (limit = {}) => {
    const proxy = await startTcpProxy(workerRedis().port);
    const limiter = limiterOn(workerRedis().client({ port: proxy.port }), limit);
    for (let i = 0; i < 5; i++) await limiter.check('ann', LOGIN);
    return { proxy, limiter, [Symbol.asyncDispose]: () => proxy.stop() };
  };

  it('answers who hammers while blocked, without a round trip', async () => {
    await using case1 = await setUp();
    const { chunks } = case1.proxy.sent;
    const startMs = performance.now();
    let calls = 0;
    for (; calls < 10_000 && performance.now() - startMs < 900; calls++)
      expect(await case1.limiter.check('ann', LOGIN)).toMatchObject({ allowed: false, scope: 'temp' });
    expect(calls).toBeGreaterThan(100);
    expect(case1.proxy.sent.chunks).toBe(chunks);
  });

  it('counts the wait down, and forgets it', async () => {
    await using case2 = await setUp({ denyCacheMs: 50 });
    const { chunks } = case2.proxy.sent;
    await eventually(async () => {
      expect(await case2.limiter.check('ann', LOGIN)).toMatchObject({ allowed: false });
      expect(case2.proxy.sent.chunks).toBe(chunks + 1);
    });
  });

  it.each(['reset', 'unblock'] as const)('forgets it with %s', async (operation) => {
    await using case3 = await setUp({ denyCacheMs: 60_000 });
    expect(await case3.limiter.check('ann', LOGIN)).toMatchObject({ allowed: false });
    await case3.limiter[operation]('ann', LOGIN);
    expect(await case3.limiter.check('ann', LOGIN)).toMatchObject({ allowed: true });
  });

  it('holds a block of one limit for all limits of the call, and spends none', async () => {
    await using case4 = await setUp({ denyCacheMs: 60_000 });
    const limits = [{ ...API, limit: 50 }, LOGIN];
    for (let i = 0; i < 3; i++)
      expect(await case4.limiter.check('ann', limits)).toMatchObject({ allowed: false });
    expect(await case4.limiter.peek('ann', limits[0] as typeof API)).toMatchObject({ shortCount: 0 });
  });

  it('holds a block by hand before a fixed window, but not the window', async () => {
    await using case6 = await setUp({ denyCacheMs: 60_000 });
    const { limiter, proxy } = case6;
    for (let i = 0; i < 4; i++) await limiter.check('ann', BULK);
    workerRedis().clock.advance(minutes(1));
    expect(await limiter.check('ann', BULK)).toMatchObject({ allowed: true, shortCount: 1 });
    await limiter.block('ann', BULK, minutes(1));
    expect(await limiter.check('ann', BULK)).toMatchObject({ scope: 'manual' });
    const { chunks } = proxy.sent;
    expect(await limiter.check('ann', BULK)).toMatchObject({ scope: 'manual' });
    expect(proxy.sent.chunks).toBe(chunks);
    await limiter.unblock('ann', BULK);
    expect(await limiter.check('ann', BULK)).toMatchObject({ allowed: true, shortCount: 2 });
  });

  it('holds nothing of a limit without a block', async () => {
    await using case5 = await setUp({ denyCacheMs: 60_000 });
    const { clock } = workerRedis();
    for (let i = 0; i < 4; i++) await case5.limiter.check('ann', API);
    clock.advance(minutes(1));
    expect(await case5.limiter.check('ann', API)).toMatchObject({ allowed: true });
  });
});

describe('a flood of calls, and an outage', () => {
  beforeEach(freshRedis);

  /** Keeps the event loop busy, as the parsing of thousands of requests does. */
  const busyFor = (ms: number): void => {
    const endMs = performance.now() + ms;
    while (performance.now() < endMs);
  };

  it('does not count against Redis the time in which the event loop was late', async () => {
    await using proxy = await startTcpProxy(workerRedis().port);
    const limiter = limiterOn(workerRedis().client({ port: proxy.port }), { commandTimeoutMs: 1_000 });
    await limiter.check('ann', API);
    proxy.delay(700);
    const flood = setInterval(() => busyFor(100), 0);
    const decision = await limiter.check('ann', API).finally(() => clearInterval(flood));
    expect(decision).toMatchObject({ allowed: true, shortCount: 2 });
    expect(decision).not.toHaveProperty('degraded');
  });

  it('waits for an answer four times the time-out at most, and says that the loop was late', async () => {
    await using proxy = await startTcpProxy(workerRedis().port);
    const events: Parameters<Emit>[0][] = [];
    const client = workerRedis().client({ port: proxy.port });
    const limiter = limiterOn(client, { commandTimeoutMs: 100 }, (event) => void events.push(event));
    const warn = jest.spyOn(Logger.prototype, 'warn').mockImplementation(() => {});
    await eventually(() => limiter.check('ann', { ...API, onError: 'closed' }));
    proxy.halfOpen();
    const flood = setInterval(() => busyFor(150), 0);
    const decision = await limiter.check('ann', API).finally(() => clearInterval(flood));
    await proxy.restore();
    expect(decision).toMatchObject({ allowed: true, degraded: true });
    expect(events.at(-1)).toMatchObject({ type: 'check', result: 'fail', reason: 'loop' });
    expect(events.at(-1)?.durationMs).toBeGreaterThanOrEqual(400);
    expect(warn.mock.calls.flat()).toEqual([expect.stringMatching(/^RATE_LIMIT_LOOP: /)]);
    warn.mockRestore();
  });

  it.each([
    ['a log', { ...API, limit: 4 }],
    ['a fixed window', { ...BULK, limit: 4 }],
    ['a log in the middle of its window', { ...API, limit: 4, windowMs: minutes(5) }],
  ])('goes on from what Redis has said last: %s', async (_, policy) => {
    await using proxy = await startTcpProxy(workerRedis().port);
    const limiter = limiterOn(workerRedis().client({ port: proxy.port }), { commandTimeoutMs: 100 });
    for (let i = 0; i < 3; i++) await limiter.check('ann', policy);
    await limiter.check('bob', policy);
    await proxy.refuse();
    const decisions = [await limiter.check('ann', policy), await limiter.check('ann', policy)];
    expect(decisions).toMatchObject([
      { allowed: true, shortCount: 4, degraded: true },
      { allowed: false, degraded: true },
    ]);
    // A key that was less than half full begins afresh.
    expect(await limiter.check('bob', policy)).toMatchObject({
      allowed: true,
      shortCount: 1,
      degraded: true,
    });
  });

  it('keeps a block, and what a change by hand has made void', async () => {
    await using proxy = await startTcpProxy(workerRedis().port);
    const limiter = limiterOn(workerRedis().client({ port: proxy.port }), {
      commandTimeoutMs: 100,
      denyCacheMs: 0,
    });
    for (const key of ['ann', 'bob']) for (let i = 0; i < 5; i++) await limiter.check(key, LOGIN);
    await limiter.reset('bob', LOGIN);
    await proxy.refuse();
    expect(await limiter.check('ann', LOGIN)).toMatchObject({
      allowed: false,
      scope: 'temp',
      degraded: true,
    });
    expect(await limiter.check('bob', LOGIN)).toMatchObject({ allowed: true, shortCount: 1, degraded: true });
  });
});
