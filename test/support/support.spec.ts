import { once } from 'node:events';
import { connect, type Socket } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import { type Redis } from 'ioredis';
import { ensureTools } from './ensure-tools.js';
import { eventually } from './eventually.js';
import { startRedisServer } from './redis-server.js';
import { freshRedis, workerRedis } from './redis.js';
import { startTcpProxy } from './tcp-proxy.js';

const HOUR_MS = 3_600_000;

const timeMs = async (redis: Redis): Promise<number> => Number((await redis.time())[0]) * 1000;

const isRunning = (pid: number): boolean => {
  try {
    return process.kill(pid, 0);
  } catch {
    return false;
  }
};

function expectBetween(value: number, low: number, high: number): void {
  expect(value).toBeGreaterThanOrEqual(low);
  expect(value).toBeLessThanOrEqual(high);
}

/** What a promise came to so far. */
const soFar = <T>(promise: Promise<T>): Promise<T | 'nothing'> =>
  Promise.race([promise, sleep(50).then(() => 'nothing' as const)]);

/** Gives up at once, so that a test sees what its connection came to. */
const impatient = { retryStrategy: () => null, maxRetriesPerRequest: 0 };

describe('ensureTools', () => {
  it('names what to install where it cannot install it', () => {
    const nothing = { PATH: '/nowhere' };
    expect(() => ensureTools(nothing)).toThrow(/redis-server >= 6.2, redis-sentinel >= 6.2, gcc/);
    expect(() => ensureTools(nothing)).toThrow(/apt-get install[^]*dnf install[^]*brew install redis/);
  });
});

describe('the redis-server of a worker', () => {
  beforeEach(freshRedis);

  it('starts every test empty and at real time', async () => {
    const redis = workerRedis();
    await redis.client().set('left', 'behind');
    redis.clock.advance(HOUR_MS);

    await freshRedis();

    expect(await redis.client().dbsize()).toBe(0);
    expect(redis.clock.offsetMs).toBe(0);
  });
});

describe('the clock of a server', () => {
  const { clock } = workerRedis();
  let client: Redis;

  beforeAll(() => (client = workerRedis().client()));
  beforeEach(freshRedis);

  it('moves TIME forward and back, at once, for commands and scripts', async () => {
    const time = async (): Promise<number> =>
      Number(await client.eval('return redis.call("TIME")[1]', 0)) * 1000;
    const before = await timeMs(client);

    clock.advance(HOUR_MS);
    expectBetween((await timeMs(client)) - before, HOUR_MS, HOUR_MS + 2000);
    expectBetween((await time()) - before, HOUR_MS, HOUR_MS + 2000);

    clock.advance(-2 * HOUR_MS);
    expectBetween((await timeMs(client)) - before, -HOUR_MS, -HOUR_MS + 2000);
    expectBetween((await time()) - before, -HOUR_MS, -HOUR_MS + 2000);
  });

  it('stands still where it is held, and moves only when it is told to', async () => {
    const instant = Date.parse('2028-02-29T23:59:58.250Z');
    clock.hold(instant);
    await sleep(5);
    expect(await client.time()).toEqual([String(Math.floor(instant / 1000)), '250000']);

    clock.advance(1.5);
    expect(await client.time()).toEqual([String(Math.floor(instant / 1000)), '251500']);
    expect(clock.now()).toBe(instant + 1.5);
    clock.reset();
    expect(Math.abs((await timeMs(client)) - Date.now())).toBeLessThan(2000);
  });
});

describe('startRedisServer', () => {
  it('stands still, dies and comes back on its port, without its data', async () => {
    await using server = await startRedisServer();
    const client = server.client();
    await client.set('key', 'value');
    const { pid } = server;
    server.clock.advance(HOUR_MS);

    server.pause();
    const reply = client.get('key');
    expect(await soFar(reply)).toBe('nothing');
    server.resume();
    expect(await reply).toBe('value');

    await server.kill();
    expect(isRunning(pid)).toBe(false);
    await server.restart();
    expect(server.pid).not.toBe(pid);
    expect(await client.get('key')).toBeNull();
    expect(server.clock.offsetMs).toBe(HOUR_MS);
  });

  it('shows what the server said when it does not start', async () => {
    await expect(startRedisServer({ args: ['--no-such-option', '1'] })).rejects.toThrow(
      /did not start on port \d+:[^]*no-such-option/,
    );
  });
});

describe('startTcpProxy', () => {
  beforeEach(freshRedis);

  it('hands everything on, and counts round trips', async () => {
    await using proxy = await startTcpProxy(workerRedis().port);
    const client = await connectThrough(proxy);
    const { chunks, bytes } = proxy.sent;

    await client.pipeline().set('a', 1).incr('a').get('a').exec();

    expect(proxy.sent.chunks - chunks).toBe(1);
    expect(proxy.sent.bytes - bytes).toBeGreaterThan(60);
    expect(proxy.connections).toBe(1);
    client.disconnect();
    await eventually(() => expect(proxy.connections).toBe(0));
  });

  it('delays both ways, by latency and not by throughput', async () => {
    await using proxy = await startTcpProxy(workerRedis().port);
    const client = await connectThrough(proxy);
    proxy.delay(50);
    const start = performance.now();

    await Promise.all([client.incr('n'), sleep(5).then(() => client.incr('n'))]);

    expectBetween(performance.now() - start, 99, 190);
    expect(await client.get('n')).toBe('2');
  });

  it('cuts after the request was carried out and before the reply', async () => {
    await using proxy = await startTcpProxy(workerRedis().port);
    const client = await connectThrough(proxy);

    proxy.cutAfterRequest();
    await expect(client.incr('n')).rejects.toThrow('Connection is closed');

    expect(await workerRedis().client().get('n')).toBe('1');
    const next = await connectThrough(proxy);
    expect(await next.incr('n')).toBe(2);
  });

  it('goes dead without a word, and delivers later', async () => {
    await using proxy = await startTcpProxy(workerRedis().port);
    const client = await connectThrough(proxy);
    const closed = jest.fn();
    client.on('close', closed);

    proxy.halfOpen();
    const reply = client.incr('n');
    expect(await soFar(reply)).toBe('nothing');
    expect(await workerRedis().client().exists('n')).toBe(0);
    await workerRedis().client().call('CLIENT', 'KILL', 'TYPE', 'normal');
    expect(closed).not.toHaveBeenCalled();
    expect(proxy.connections).toBe(1);

    await proxy.restore();
    await expect(reply).rejects.toThrow('Connection is closed');
  });

  it('hands on byte by byte', async () => {
    await using proxy = await startTcpProxy(workerRedis().port);
    const client = await connectThrough(proxy);
    const pieces: number[] = [];
    const raw: Socket = connect(proxy.port, proxy.host).on('data', ({ length }) => pieces.push(length));
    proxy.byteByByte();

    raw.write('PING\r\n');
    await eventually(() => expect(pieces).toEqual(Array(7).fill(1)));
    raw.destroy();
    expect(await client.set('key', 'v'.repeat(200))).toBe('OK');
    expect(await client.mget('key', 'none')).toEqual(['v'.repeat(200), null]);
  });

  it('refuses, cuts what is open, and recovers on the same port', async () => {
    await using proxy = await startTcpProxy(workerRedis().port);
    const client = await connectThrough(proxy);
    const { url } = proxy;
    const closed = once(client, 'close');

    await proxy.refuse();
    await closed;
    expect(proxy.connections).toBe(0);
    const [error] = (await once(connect(proxy.port, proxy.host), 'error')) as [NodeJS.ErrnoException];
    expect(error.code).toBe('ECONNREFUSED');

    await proxy.restore();
    expect(proxy.url).toBe(url);
    expect(await (await connectThrough(proxy)).ping()).toBe('PONG');
  });
});

describe('eventually', () => {
  it('repeats until the assertion holds, and gives its value', async () => {
    let tries = 0;
    const value = await eventually(() => {
      expect(++tries).toBe(3);
      return 'value';
    });
    expect(value).toBe('value');
  });

  it('ends with the last error, also with fake timers', async () => {
    jest.useFakeTimers();
    const never = eventually(() => Promise.reject(new Error('not yet')));
    await expect(never).rejects.toThrow('not yet');
    jest.useRealTimers();
  });
});

/** An impatient client of the worker's server by way of a proxy, with its greeting behind it. */
async function connectThrough({ port }: { port: number }): Promise<Redis> {
  const client = workerRedis().client({ port, ...impatient });
  await client.ping();
  return client;
}
