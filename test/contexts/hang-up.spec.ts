import 'reflect-metadata';
import {
  type CanActivate,
  Controller,
  Get,
  Injectable,
  type INestApplication,
  type INestApplicationContext,
  Logger,
  Param,
  Post,
  UseGuards,
} from '@nestjs/common';
import { FastifyAdapter } from '@nestjs/platform-fastify';
import { Test } from '@nestjs/testing';
import { ConnectedSocket, MessageBody, SubscribeMessage, WebSocketGateway } from '@nestjs/websockets';
import { once } from 'node:events';
import type { Server } from 'node:http';
import { connect as connectHttp2 } from 'node:http2';
import { connect, type Socket } from 'node:net';
import { BudgetService, HangUp, LockService, SyncGuardModule, WithBudget, WithLock } from 'nestjs-syncguard';
import { listen } from '../support/adapters.js';
import { eventually } from '../support/eventually.js';
import { type SocketApp, socketApp } from './apps/socket-app.js';

@Injectable()
class Work {
  bodies = 0;
  signals: AbortSignal[] = [];

  @WithLock('page')
  async page(_id: string, _signal?: unknown): Promise<string> {
    this.bodies++;
    return 'done';
  }

  @WithLock('page', { signal: new AbortController().signal })
  async twice(_signal: AbortSignal): Promise<void> {
    this.bodies++;
  }

  @WithLock('direct')
  async direct(_id: string, @HangUp() gone?: AbortSignal): Promise<AbortSignal | undefined> {
    return gone;
  }

  @WithBudget({ scopes: () => ['org'], estimate: () => 1 })
  async *generated(@HangUp() gone?: AbortSignal): AsyncGenerator<AbortSignal | undefined> {
    yield gone;
  }
}

Logger.overrideLogger(false);

let arrived = 0;
const arrivals: CanActivate = { canActivate: () => ++arrived > 0 };

@Controller()
@UseGuards(arrivals)
class Pages {
  constructor(private readonly work: Work) {}

  @Get('page/:id')
  async page(@Param('id') id: string, @HangUp() gone: AbortSignal, @HangUp() same: AbortSignal) {
    expect(same).toBe(gone);
    this.work.signals.push(gone);
    return this.work.page(id, gone);
  }

  @Post('page')
  @WithLock('page')
  async onRoute(@HangUp() gone: AbortSignal): Promise<string> {
    this.work.signals.push(gone);
    this.work.bodies++;
    return 'done';
  }
}

@WebSocketGateway()
class Gateway {
  constructor(private readonly work: Work) {}

  @SubscribeMessage('page')
  async page(
    @MessageBody() id: string,
    @ConnectedSocket() _client: object,
    @HangUp() gone: AbortSignal,
  ): Promise<{ event: string; data: string }> {
    this.work.signals.push(gone);
    return { event: 'page', data: await this.work.page(id, { signal: gone }) };
  }
}

const reasons: unknown[] = [];
const metadata = {
  imports: [
    SyncGuardModule.forRoot({
      telemetry: { onEvent: ({ reason }) => void reasons.push(reason) },
      budget: { limits: [{ scope: 'org', period: 'lifetime' as const, limit: 100 }] },
    }),
  ],
  controllers: [Pages],
  providers: [Work, Gateway],
};

/** Holds the lock of the page, so that calls wait. */
async function hold(app: INestApplicationContext): Promise<() => Promise<unknown>> {
  const held = await app.get(LockService).acquire({ key: 'page', ttlMs: 30_000 });
  return () => (held as { release(): Promise<unknown> }).release();
}

const aborted = (work: Work): number => work.signals.filter((signal) => signal.aborted).length;

describe.each(['express', 'fastify'] as const)('@HangUp() over HTTP/1.1, on %s', (adapter) => {
  let app: INestApplication;
  let url: string;
  let work: Work;
  beforeEach(async () => {
    ({ app, url } = await listen(adapter, metadata));
    work = app.get(Work);
  });
  afterEach(() => app.close());

  async function dial(): Promise<Socket> {
    const socket = connect(Number(new URL(url).port), '127.0.0.1');
    await once(socket, 'connect');
    return socket.on('error', () => {});
  }

  it.each([
    ['in a handler that passes it on', 'GET /page/7 HTTP/1.1\r\nHost: x\r\n\r\n'],
    [
      'on the locked route itself',
      'POST /page HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}',
    ],
  ])('eight reloads of a page run one body: %s', async (_, request) => {
    const release = await hold(app);
    const warnings = jest.spyOn(Logger.prototype, 'warn').mockImplementation();
    [arrived, reasons.length] = [0, 0];
    const sockets: Socket[] = [];
    for (let i = 1; i <= 8; i++) {
      sockets.at(-1)?.destroy();
      sockets.push(await dial());
      sockets.at(-1)?.write(request);
      await eventually(() => expect(arrived).toBe(i));
    }
    const answer = once(sockets.at(-1) as Socket, 'data');
    await eventually(() => expect(reasons.filter((reason) => reason === 'aborted')).toHaveLength(7));
    await release();
    expect(String(await answer)).toMatch(/ 20[01] [^]*done/);
    expect(work.bodies).toBe(1);
    expect(warnings.mock.calls).toEqual([]); // Callers can cause it.
    warnings.mockRestore();
    sockets.at(-1)?.destroy();
  });

  it('calls that were sent together on one connection all learn that it has closed', async () => {
    const release = await hold(app);
    const socket = await dial();
    socket.write('GET /page/7 HTTP/1.1\r\nHost: x\r\n\r\n'.repeat(20));
    await eventually(() => expect(work.signals).toHaveLength(20));
    socket.destroy();
    await eventually(() => expect(aborted(work)).toBe(20));
    await release();
    await eventually(async () => expect(await app.get(LockService).isLocked({ key: 'page' })).toBe(false));
    expect(work.bodies).toBe(0);
  });

  it('an answered call is never aborted, though its connection goes on and closes', async () => {
    const socket = await dial();
    for (let i = 0; i < 15; i++) {
      socket.write('GET /page/7 HTTP/1.1\r\nHost: x\r\n\r\n');
      await once(socket, 'data');
    }
    socket.destroy();
    const server = app.getHttpServer() as Server;
    const connections = (): Promise<number> =>
      new Promise((resolve) => server.getConnections((_, count) => resolve(count)));
    await eventually(async () => expect(await connections()).toBe(0));
    expect([work.signals.length, aborted(work)]).toEqual([15, 0]);
  });
});

it('@HangUp() over HTTP/2 aborts when the stream is cancelled, and the connection goes on', async () => {
  const module = await Test.createTestingModule(metadata).compile();
  const app = module.createNestApplication(new FastifyAdapter({ http2: true } as never));
  await app.listen(0, '127.0.0.1');
  const work = app.get(Work);
  const session = connectHttp2(await app.getUrl());
  const release = await hold(app);
  const streams = Array.from({ length: 8 }, () => session.request({ ':path': '/page/7' }));
  for (const stream of streams) stream.on('error', () => {});
  await eventually(() => expect(work.signals).toHaveLength(8));
  for (const stream of streams.slice(0, 7)) stream.close(8 /* CANCEL */);
  await eventually(() => expect(aborted(work)).toBe(7));
  await release();
  const [headers] = (await once(streams[7]!, 'response')) as [{ ':status': number }];
  streams[7]?.resume();
  await once(streams[7]!, 'close');
  expect([headers[':status'], work.bodies, aborted(work)]).toEqual([200, 1, 7]);
  session.destroy();
  await app.close();
});

describe.each(['socket.io', 'ws'] as const)('@HangUp() on a gateway of %s', (kind) => {
  let sockets: SocketApp;
  beforeAll(async () => {
    sockets = await socketApp(kind, metadata);
  });
  afterAll(() => sockets.close());

  it('aborts when the socket disconnects', async () => {
    const work = sockets.app.get(Work);
    const release = await hold(sockets.app);
    const [leaving, staying] = [await sockets.connect(), await sockets.connect()];
    void leaving.send('page', '7');
    const answer = staying.send('page', '7');
    await eventually(() => expect(work.signals).toHaveLength(2));
    leaving.close();
    await eventually(() => expect(aborted(work)).toBe(1));
    await release();
    await answer;
    expect(work.bodies).toBe(1);
  });
});

describe('a signal among the arguments', () => {
  let app: INestApplicationContext;
  let work: Work;
  beforeAll(async () => {
    app = await (await Test.createTestingModule(metadata).compile()).init();
    work = app.get(Work);
  });
  afterAll(() => app.close());

  it.each<[string, (signal: AbortSignal, work: Work) => Promise<unknown>]>([
    ['itself', (signal) => work.page('7', signal)],
    ['as `signal` of an object', (signal) => work.page('7', Object.create({ signal }) as object)],
    ['in a plain object', (signal) => work.page('7', { gone: signal })],
    ['beside the one of the options', (signal) => work.twice(signal)],
    ['beside another', (signal) => work.page('7', { first: new AbortController().signal, signal })],
  ])('ends the wait for the lock: %s', async (_, call) => {
    const release = await hold(app);
    const leaving = new AbortController();
    const waiting = call(leaving.signal, work);
    setTimeout(() => leaving.abort(new Error('gone')), 20);
    await expect(waiting).rejects.toMatchObject({ code: 'Aborted', cause: { message: 'gone' } });
    await expect(call(leaving.signal, work)).rejects.toMatchObject({ code: 'Aborted' });
    await release();
    expect(work.bodies).toBe(0);
  });

  it('never aborts where the method is called directly', async () => {
    const gone = await work.direct('7');
    expect([gone instanceof AbortSignal, gone?.aborted]).toEqual([true, false]);
    for await (const signal of work.generated()) expect(signal?.aborted).toBe(false);
    const own = new AbortController().signal;
    expect(await work.direct('7', own)).toBe(own);
    expect(app.get(BudgetService)).toBeDefined();
  });

  it('is refused on a parameter of a constructor', () => {
    expect(() => HangUp()(Work, undefined, 0)).toThrow(/constructor/);
  });
});
