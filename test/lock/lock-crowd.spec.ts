import 'reflect-metadata';
import type { Server } from 'node:http';
import { type AddressInfo, connect } from 'node:net';
import { Controller, Get, type INestApplication } from '@nestjs/common';
import { Test } from '@nestjs/testing';
import { LockService, type SyncGuardEvent, SyncGuardModule, WithLock } from 'nestjs-syncguard';
import { closeApp } from '../support/close-app.js';
import { freshRedis, workerRedis } from '../support/redis.js';

/** How many turns the loop takes at least while a crowd comes in. They were a handful when all calls were sent at once. */
const TURNS = 50;

@Controller()
class Orders {
  served = 0;

  @Get('pay')
  @WithLock('order', { timeoutMs: 60_000 })
  async pay(): Promise<string> {
    this.served++;
    return 'paid';
  }

  @Get('health')
  health(): string {
    return 'well';
  }
}

/** How many calls get the lock at least while a crowd comes in. They were two when a crowd came in by hundreds a turn. */
const SERVED_MEANWHILE = 30;

/** Counts the turns of the event loop from now on: in each of them others are served too. */
function countTurns(): () => number {
  let turns = 0;
  let next = setImmediate(function turn() {
    turns++;
    next = setImmediate(turn);
  });
  return () => {
    clearImmediate(next);
    return turns;
  };
}

/** Sends requests over one connection without waiting for answers. Returns the statuses of all. */
const pipelined = (port: number, path: string, requests: number): Promise<number[]> =>
  new Promise((resolve, reject) => {
    const statuses: number[] = [];
    let rest = '';
    const socket = connect(port, '127.0.0.1', () =>
      socket.write(`GET ${path} HTTP/1.1\r\nHost: crowd\r\n\r\n`.repeat(requests)),
    );
    socket.setEncoding('utf8').on('error', reject);
    socket.on('data', (text: string) => {
      rest += text;
      statuses.push(...[...rest.matchAll(/HTTP\/1\.1 (\d{3}) /g)].map(([, status]) => Number(status)));
      rest = rest.slice(-'HTTP/1.1 200'.length); // Too short for a whole status line, so none is counted twice.
      if (statuses.length === requests) resolve(statuses);
      if (statuses.length === requests) socket.destroy();
    });
  });

describe.each(['Redis', 'memory'])('a crowd on %s', (name) => {
  let app: INestApplication;
  const boot = async (
    lock: object = {},
    onEvent?: (event: SyncGuardEvent) => void,
  ): Promise<INestApplication> => {
    await freshRedis();
    const redis = name === 'Redis' ? { redis: workerRedis().url } : {};
    const telemetry = onEvent && { telemetry: { onEvent } };
    const module = await Test.createTestingModule({
      imports: [SyncGuardModule.forRoot({ ...redis, lock, ...telemetry })],
      controllers: [Orders],
    }).compile();
    app = module.createNestApplication({ logger: false });
    await app.listen(0, '127.0.0.1');
    return app;
  };
  afterEach(() => closeApp(app));

  it('20,000 calls at once for 20,000 free keys are all served, and the process goes on meanwhile', async () => {
    const locks = (await boot()).get(LockService);
    const turns = countTurns();
    let lost = 0;
    const calls = Array.from({ length: 20_000 }, (_, i) =>
      locks.lock(({ signal }) => void (lost += signal.aborted ? 1 : 0), {
        key: `order:${i}`,
        timeoutMs: 60_000,
      }),
    );
    await Promise.all(calls);
    expect(lost).toBe(0);
    expect(turns()).toBeGreaterThan(TURNS);
  }, 120_000);

  it('8,000 requests that wait for one key are served or told at once, and others are answered meanwhile', async () => {
    await boot({ maxWaiting: 1_000 });
    const { port } = (app.getHttpServer() as Server).address() as AddressInfo;
    const locks = app.get(LockService);
    let release!: () => void;
    const held = locks.lock(() => new Promise<void>((resolve) => (release = resolve)), { key: 'order' });
    const crowd = pipelined(port, '/pay', 8_000);
    // Answered while the crowd waits.
    for (let i = 0; i < 20; i++) expect(await pipelined(port, '/health', 1)).toStrictEqual([200]);
    release();
    const statuses = await crowd;
    await held;
    const served = statuses.filter((status) => status === 200).length;
    expect(served).toBe(app.get(Orders).served);
    expect(served).toBeGreaterThanOrEqual(1_000);
    expect(statuses.filter((status) => status === 503)).toHaveLength(8_000 - served);
  }, 120_000);

  it('the lock goes from one to the next while 8,000 requests come in', async () => {
    let servedMeanwhile = Infinity; // In memory they may be served too fast for any to be refused.
    await boot({}, ({ reason }) => {
      if (reason === 'too_many_waiting') servedMeanwhile = app.get(Orders).served;
    });
    const { port } = (app.getHttpServer() as Server).address() as AddressInfo;
    await pipelined(port, '/pay', 8_000);
    expect(servedMeanwhile).toBeGreaterThan(SERVED_MEANWHILE);
  }, 120_000);
});
