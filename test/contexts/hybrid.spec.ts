import 'reflect-metadata';
import { Controller, Get } from '@nestjs/common';
import { MessagePattern } from '@nestjs/microservices';
import { SubscribeMessage, WebSocketGateway } from '@nestjs/websockets';
import { Lock, type LockContext, SyncGuardModule, WithLock } from 'nestjs-syncguard';
import { eventually } from '../support/eventually.js';
import { type HybridApp, hybridApp } from './apps/hybrid-app.js';
import { Work } from './jobs.js';

@Controller()
class RoutesAndMessages {
  constructor(private readonly work: Work) {}

  @Get('run')
  @MessagePattern('run')
  @WithLock('everywhere')
  async run(@Lock() lock?: LockContext): Promise<string> {
    return this.work.run(lock);
  }

  @Get('try')
  @MessagePattern('try')
  @WithLock('everywhere', { timeoutMs: 0 })
  async tryToRun(@Lock() lock?: LockContext): Promise<string> {
    return this.work.run(lock);
  }
}

@WebSocketGateway()
class Gateway {
  constructor(private readonly work: Work) {}

  @SubscribeMessage('run')
  @WithLock('everywhere')
  async run(@Lock() lock?: LockContext): Promise<string> {
    return this.work.run(lock);
  }
}

describe.each([
  ['express', 'socket.io'],
  ['fastify', 'ws'],
] as const)('@WithLock in a hybrid app on %s, %s and TCP', (server, sockets) => {
  const start = (inheritAppConfig: boolean): Promise<HybridApp> =>
    hybridApp(
      server,
      sockets,
      {
        imports: [SyncGuardModule.forRoot({ lock: { retryDelayMs: 5 } })],
        controllers: [RoutesAndMessages],
        providers: [Gateway, Work],
      },
      { inheritAppConfig },
    );

  it('is one lock for all ways in', async () => {
    const { app, url, rpc, sockets: clients, close } = await start(true);
    const work = app.get(Work);
    const letOut = work.keepInside();
    const overHttp = fetch(`${url}/run`).then((response) => response.text());
    await eventually(() => expect(work.inside).toBe(1));
    const others = [rpc.send('run'), clients.send('run')];
    expect((await fetch(`${url}/try`)).status).toBe(423);

    letOut();
    const fences = [{ answer: await overHttp }, ...(await Promise.all(others))];
    expect(work.most).toBe(1);
    expect(new Set(work.done.map(({ fence }) => fence)).size).toBe(3);
    expect(fences).toEqual(fences.map(() => ({ answer: expect.stringMatching(/^\d{15}$/) as unknown })));
    await close();
  });

  it.each([
    [
      true,
      {
        status: 'error',
        statusCode: 423,
        code: 'AcquisitionTimeout',
        message: expect.any(String) as unknown,
        context: {
          timeoutMs: 0,
          retryAfter: expect.any(Number) as unknown,
          retryAtMs: expect.any(Number) as unknown,
        },
      },
    ],
    [false, { status: 'error', message: 'Internal server error' }],
  ])('says over TCP why it refuses only with inheritAppConfig: %s', async (inheritAppConfig, exception) => {
    const { app, url, rpc, close } = await start(inheritAppConfig);
    app.useLogger(false);
    const work = app.get(Work);
    const letOut = work.keepInside();
    const holder = fetch(`${url}/run`);
    await eventually(() => expect(work.inside).toBe(1));
    expect(await rpc.send('try')).toEqual({ exception });
    letOut();
    expect((await holder).status).toBe(200);
    expect(work.done).toHaveLength(1);
    await close();
  });
});
