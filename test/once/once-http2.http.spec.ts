import { Controller, type INestApplication, Post } from '@nestjs/common';
import { FastifyAdapter } from '@nestjs/platform-fastify';
import { Test } from '@nestjs/testing';
import { once } from 'node:events';
import { type ClientHttp2Session, type ClientHttp2Stream, connect } from 'node:http2';
import { text } from 'node:stream/consumers';
import { currentOnce, Once, onceKey, OnceService, SyncGuardModule } from 'nestjs-syncguard';
import { eventually } from '../support/eventually.js';
import { freshRedis } from '../support/redis.js';

let runs = 0;
let release = (): void => {};
let wasAborted: boolean | undefined;

@Controller()
class Shop {
  @Once({ scope: 'public' })
  @Post('pay')
  async pay(): Promise<object> {
    const run = ++runs;
    await new Promise<void>((resolve) => (release = resolve));
    wasAborted = currentOnce()?.signal.aborted;
    return { run };
  }
}

describe.each(['memory', 'Redis'] as const)('@Once() over HTTP/2 on Fastify, with %s', (backend) => {
  let app: INestApplication;
  let session: ClientHttp2Session;
  beforeEach(async () => {
    runs = 0;
    const redis = backend === 'Redis' ? { redis: (await freshRedis()).url } : {};
    const module = await Test.createTestingModule({
      imports: [SyncGuardModule.forRoot(redis)],
      controllers: [Shop],
    }).compile();
    app = module.createNestApplication(new FastifyAdapter({ http2: true } as never));
    app.useLogger(false);
    await app.listen(0, '127.0.0.1');
    session = connect(await app.getUrl());
  });
  afterEach(async () => {
    session.destroy();
    await app.close();
  });

  function pay(): ClientHttp2Stream {
    const stream = session.request({ ':method': 'POST', ':path': '/pay', 'idempotency-key': 'k' });
    stream.on('error', () => {});
    return stream.end();
  }
  const answerOf = async (stream: ClientHttp2Stream): Promise<unknown[]> => {
    const [headers] = (await once(stream, 'response')) as [Record<string, unknown>];
    return [headers[':status'], headers['idempotency-replayed'], await text(stream)];
  };
  const record = () => app.get(OnceService).get(onceKey({ route: 'POST /pay', key: 'k' }));

  it.each<[string, (stream: ClientHttp2Stream) => void]>([
    ['cancels its stream', (stream) => stream.close(8 /* CANCEL */)],
    ['breaks its connection', () => session.destroy()],
  ])(
    'a client that %s changes nothing: the body goes on, and the retry gets its answer',
    async (_, leave) => {
      const left = pay();
      await eventually(() => expect(runs).toBe(1));
      leave(left);
      await once(left, 'close');
      if (session.destroyed) session = connect(await app.getUrl());
      expect((await answerOf(pay()))[0]).toBe(409);
      release();
      await eventually(async () => expect((await record())?.state).toBe('done'));
      expect(await answerOf(pay())).toStrictEqual([201, 'true', '{"run":1}']);
      expect([runs, wasAborted]).toStrictEqual([1, false]);
    },
  );

  it('of streams of one connection one runs, and the later ones get its answer', async () => {
    const first = pay();
    await eventually(() => expect(runs).toBe(1));
    const others = await Promise.all(Array.from({ length: 5 }, () => answerOf(pay())));
    expect(others.map(([status]) => status)).toStrictEqual(Array(5).fill(409));
    release();
    expect(await answerOf(first)).toStrictEqual([201, undefined, '{"run":1}']);
    expect(await answerOf(pay())).toStrictEqual([201, 'true', '{"run":1}']);
  });
});
