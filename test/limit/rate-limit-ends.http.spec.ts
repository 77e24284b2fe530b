import 'reflect-metadata';
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { request as httpRequest, type IncomingMessage, type RequestOptions } from 'node:http';
import { setImmediate as nextTurn } from 'node:timers/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import {
  Body,
  type CanActivate,
  Controller,
  type ExecutionContext,
  HttpCode,
  Logger,
  Post,
  type Type,
  UnauthorizedException,
} from '@nestjs/common';
import {
  AbuseLimiterService,
  type LimitPolicy,
  minutes,
  RateLimit,
  SyncGuardModule,
  type SyncGuardOptions,
} from 'nestjs-syncguard';
import { type HttpApp, listen } from '../support/adapters.js';
import { eventually } from '../support/eventually.js';
import { freshRedis, workerRedis } from '../support/redis.js';
import { startTcpProxy } from '../support/tcp-proxy.js';

Logger.overrideLogger(['warn']);

const GUESSES = {
  name: 'guesses',
  keyBy: 'body.email',
  count: 'failure',
  judgedBy: 'handler', // The global guard only looks up the session.
  temp: { windowMs: minutes(10), threshold: 3, blockMs: minutes(10) },
} satisfies LimitPolicy;

/** What waits until the test lets it go on. */
class Gate {
  waiting: (() => void)[] = [];
  wait(): Promise<void> {
    return new Promise((resolve) => this.waiting.push(resolve));
  }
  open(): void {
    for (const go of this.waiting.splice(0)) go();
  }
}

let [session, handler] = [new Gate(), new Gate()];
let judged: string[] = [];
/** Each resets the connection of a call that is in its first guard. */
let resets: (() => void)[] = [];

interface Guess {
  readonly email: string;
  readonly code: string;
  readonly waits?: boolean;
}

@Controller()
class Guesses {
  @RateLimit([GUESSES, { ...GUESSES, name: 'by address', keyBy: ['ip', 'body.email'] }])
  @HttpCode(200)
  @Post('guess')
  async guess(@Body() { code, waits }: Guess): Promise<object> {
    judged.push(code);
    if (waits) await handler.wait();
    if (code !== 'right') throw new UnauthorizedException();
    return {};
  }

  @RateLimit(GUESSES)
  @HttpCode(200)
  @Post('account')
  account(@Body() guess: Guess): Promise<object> {
    return this.guess(guess);
  }

  @RateLimit({ keyBy: 'ip', limit: 2, windowMs: minutes(1) })
  @HttpCode(200)
  @Post('address')
  address(): object {
    return {};
  }
}

/** Another guard that takes its time, and the client of a call leaves meanwhile. */
class LooksUpTheSession implements CanActivate {
  async canActivate(context: ExecutionContext): Promise<boolean> {
    const { headers, socket } = context.switchToHttp().getRequest<IncomingMessage>();
    if (headers['x-resets']) resets.shift()?.();
    if (headers['x-waits']) {
      const closed = once(socket, 'close');
      await session.wait();
      await closed;
    }
    return true;
  }
}

/** What a test has started, in order. */
const started: (() => Promise<unknown>)[] = [];

async function start(adapter: 'express' | 'fastify', options: SyncGuardOptions = {}): Promise<HttpApp> {
  const metadata = { imports: [SyncGuardModule.forRoot(options)], controllers: [Guesses as Type] };
  const http = await listen(
    adapter,
    metadata,
    undefined,
    (app) => void app.useGlobalGuards(new LooksUpTheSession()),
  );
  started.push(() => http.app.close());
  return http;
}

/** Timers of jest do not touch it, as they would touch `fetch`. */
const send = (options: RequestOptions, body: object): ReturnType<typeof httpRequest> => {
  const headers = { 'content-type': 'application/json', ...options.headers };
  const request = httpRequest({ host: '127.0.0.1', method: 'POST', agent: false, ...options, headers });
  request.on('error', () => {});
  request.end(JSON.stringify(body));
  return request;
};

interface Answer {
  readonly status: number | undefined;
  readonly retryAfter: number;
}

const answerOf = async (request: ReturnType<typeof httpRequest>): Promise<Answer> => {
  const [response] = (await once(request, 'response')) as [IncomingMessage];
  response.resume();
  return { status: response.statusCode, retryAfter: Number(response.headers['retry-after']) };
};

describe.each(['express', 'fastify'] as const)('how calls end that nobody waits for, on %s', (adapter) => {
  let warnings: string[];
  beforeEach(() => {
    [session, handler, judged, resets, warnings] = [new Gate(), new Gate(), [], [], []];
    jest.spyOn(Logger.prototype, 'warn').mockImplementation((message: string) => void warnings.push(message));
  });
  afterEach(async () => {
    jest.restoreAllMocks();
    session.open();
    handler.open();
    for (const stop of started.splice(0).reverse()) await stop();
  });

  const ann = (code = 'wrong', waits = false): Guess => ({ email: 'ann@example.org', code, waits });
  const guessAt =
    ({ url }: HttpApp, path = '/account') =>
    (code?: string, waits?: boolean): Promise<Answer> =>
      answerOf(send({ port: new URL(url).port, path }, ann(code, waits)));

  it('a call that is gone before its limits are asked runs nothing, and counts where its key is known', async () => {
    const http = await start(adapter);
    const { port } = new URL(http.url);
    for (let i = 0; i < 3; i++) {
      const request = send({ port, path: '/guess', headers: { 'x-waits': '1' } }, ann('gone'));
      await eventually(() => expect(session.waiting).toHaveLength(1));
      request.destroy();
      session.open();
    }
    // Their address is not known any more, so only the limit by account has counted them.
    await eventually(async () => expect(await guessAt(http)('right')).toMatchObject({ status: 429 }));
    expect(judged).not.toContain('gone');
    expect(warnings).toEqual([]);
  });

  it('a connection that was reset, which Node.js does not know yet, is gone', async () => {
    const http = await start(adapter);
    for (let i = 0; i < 3; i++) {
      const request = send(
        { port: new URL(http.url).port, path: '/guess', headers: { 'x-resets': '1' } },
        ann('gone'),
      );
      const closed = new Promise((resolve) => request.once('close', resolve));
      resets.push(() => request.socket?.resetAndDestroy());
      await closed;
    }
    await eventually(async () => expect(await guessAt(http)('right')).toMatchObject({ status: 429 }));
    expect(judged).not.toContain('gone');
    expect(warnings).toEqual([]);
  });

  it('living calls without an address count together, with one warning', async () => {
    const { app } = await start(adapter);
    const folder = mkdtempSync(join(tmpdir(), 'limits-'));
    const socketPath = join(folder, 's');
    const server = app.getHttpServer() as { close(): unknown; listen(path: string): unknown };
    server.close();
    await once(server as never, 'close');
    server.listen(socketPath);
    const statuses: unknown[] = [];
    for (let i = 0; i < 3; i++)
      statuses.push((await answerOf(send({ socketPath, path: '/address' }, {}))).status);
    expect(statuses).toEqual([200, 200, 429]);
    expect(warnings).toEqual([expect.stringMatching(/^RATE_LIMIT_NO_ADDRESS: .* without an address/)]);
    rmSync(folder, { recursive: true });
  });

  describe.each(['memory', 'redis'])('a handler that takes long, in %s', (backend) => {
    afterEach(() => jest.useRealTimers());

    const startOn = async (limit: SyncGuardOptions['limit'] = {}): Promise<HttpApp> =>
      start(adapter, backend === 'redis' ? { redis: (await freshRedis()).url, limit } : { limit });

    /** Three calls in their handler, a time later. The waits need no timer, since these stand still. */
    const later = async (ms: number, { app }: HttpApp, guess: ReturnType<typeof guessAt>) => {
      jest.useFakeTimers({ doNotFake: ['nextTick', 'queueMicrotask', 'setImmediate', 'clearImmediate'] });
      const calls = Array.from({ length: 3 }, () => guess('right', true));
      while (handler.waiting.length < 3) await nextTurn();
      for (let left = ms; left > 0; left -= 10_000) {
        if (backend === 'redis') workerRedis().clock.advance(10_000);
        jest.advanceTimersByTime(10_000);
        // Answered after the renewals, which were sent before it.
        await app.get(AbuseLimiterService).peek('nobody', { name: 'none', limit: 1, windowMs: 1_000 });
      }
      return calls;
    };

    it('is in flight for longer than a lapse, and then counts by how it ends', async () => {
      const http = await startOn();
      const guess = guessAt(http);
      const calls = await later(minutes(4), http, guess);
      expect(await guess()).toEqual({ status: 429, retryAfter: 1 }); // The room is taken, and may be free soon.
      handler.open();
      expect(await Promise.all(calls)).toMatchObject(Array(3).fill({ status: 200 }));
      expect([await guess(), await guess()]).toMatchObject(Array(2).fill({ status: 401 }));
    });

    it('counts from its beginning after `limit.maxFlightMs`', async () => {
      const http = await startOn({ maxFlightMs: 60_000 });
      const guess = guessAt(http);
      const calls = await later(minutes(4), http, guess);
      const { status, retryAfter } = await guess();
      expect(status).toBe(429);
      expect(retryAfter).toBeGreaterThan(330);
      expect(retryAfter).toBeLessThanOrEqual(360); // When the first of them leaves its window.
      handler.open();
      expect(await Promise.all(calls)).toMatchObject(Array(3).fill({ status: 200 }));
      expect(await guess()).toMatchObject({ status: 401 }); // They were right after all.
    });
  });

  it.each(['wrong', 'right'])('what Redis is not told of a %s guess is told again', async (code) => {
    await freshRedis();
    const proxy = await startTcpProxy(workerRedis().port);
    started.push(() => proxy.stop());
    const http = await start(adapter, { redis: proxy.url, limit: { commandTimeoutMs: 500 } });
    const [guess, status] = [guessAt(http), code === 'right' ? 200 : 401];
    const long = [guess(code, true), guess(code, true)];
    await eventually(() => expect(handler.waiting).toHaveLength(2));
    await proxy.refuse();
    handler.open();
    expect(await Promise.all(long)).toMatchObject(Array(2).fill({ status }));
    await proxy.restore();
    await eventually(async () =>
      expect(await counted()).toEqual({ inFlight: 0, failed: code === 'right' ? 0 : 2 }),
    );
    // Two wrong guesses leave room for one more. Two right ones leave all of it.
    expect(await guess()).toMatchObject({ status: code === 'right' ? 401 : 429 });
  });

  /** What Redis counts. A call in flight has a score below 0. */
  const counted = async (): Promise<{ inFlight: number; failed: number }> => {
    const redis = workerRedis().client();
    const [key = ''] = await redis.keys('*abuse_limiter:attempts:*');
    return { inFlight: await redis.zcount(key, '-inf', '(0'), failed: await redis.zcount(key, '(0', '+inf') };
  };
});
