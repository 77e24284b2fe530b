import 'reflect-metadata';
import {
  Controller,
  Get,
  Injectable,
  type INestApplication,
  Logger,
  Sse,
  StreamableFile,
} from '@nestjs/common';
import { FastifyAdapter } from '@nestjs/platform-fastify';
import { Test } from '@nestjs/testing';
import { once } from 'node:events';
import { connect as connectHttp2 } from 'node:http2';
import { connect } from 'node:net';
import { Readable } from 'node:stream';
import { setImmediate as nextTurn, setTimeout as sleep } from 'node:timers/promises';
import { from, interval, map, type Observable } from 'rxjs';
import {
  BudgetService,
  currentLock,
  Lock,
  type LockContext,
  LockService,
  SyncGuardModule,
  WithBudget,
  WithLock,
} from 'nestjs-syncguard';
import { ReaderWatch } from '../../lib/method/reader-watch.js';
import { eventually } from '../support/eventually.js';

Logger.overrideLogger(false);

const IDLE_MS = 600;
/** As 70 s are to 60 s. */
const PAUSE_MS = 700;
const BUDGET = { scopes: () => ['org'], estimate: () => 100, actual: () => 7 };

@Injectable()
class Streams {
  lostBy: unknown;
  isEnded = false;
  lastAskedMs = 0;

  /** A source that is never empty. */
  async *endless(signal?: AbortSignal): AsyncGenerator<Buffer> {
    signal?.addEventListener('abort', () => (this.lostBy = signal.reason as unknown));
    try {
      for (;;) {
        this.lastAskedMs = performance.now();
        yield Buffer.alloc(32_768, 'x');
        await sleep(1);
      }
    } finally {
      this.isEnded = true;
    }
  }

  async *pausing(): AsyncGenerator<string> {
    for (const text of ['one ', 'two ', 'three ', 'four']) {
      yield text;
      await sleep(PAUSE_MS);
    }
  }

  @WithLock('stream')
  @WithBudget(BUDGET)
  async *items(@Lock() lock?: LockContext): AsyncGenerator<Buffer> {
    yield* this.endless(lock?.signal);
  }

  @WithLock('stream')
  async *pausingItems(): AsyncGenerator<string> {
    yield* this.pausing();
  }

  @WithLock('stream')
  async *few(): AsyncGenerator<string> {
    yield* ['one ', 'two'];
  }
}

@Controller()
class Routes {
  constructor(private readonly streams: Streams) {}

  @Get('file')
  @WithLock('stream')
  @WithBudget(BUDGET)
  async file(): Promise<StreamableFile> {
    return new StreamableFile(Readable.from(this.streams.endless(currentLock()?.signal)));
  }

  /** The lock learns of it from the hold. */
  @Get('patient/file')
  @WithLock('stream', { idleMs: 60_000 })
  @WithBudget(BUDGET)
  async patientFile(): Promise<StreamableFile> {
    return new StreamableFile(Readable.from(this.streams.endless(currentLock()?.signal)));
  }

  /** As the guide about language models shows it: nothing on the route is ours. */
  @Get('items')
  items(): StreamableFile {
    return new StreamableFile(Readable.from(this.streams.items()));
  }

  @Sse('events')
  @WithLock('stream')
  @WithBudget(BUDGET)
  async events(): Promise<Observable<{ data: string }>> {
    const signal = currentLock()?.signal;
    signal?.addEventListener('abort', () => (this.streams.lostBy = signal.reason as unknown));
    // Nest itself drops a client with many events that wait.
    return interval(5).pipe(
      map(() => {
        if (!this.streams.lostBy) this.streams.lastAskedMs = performance.now();
        return { data: 'x'.repeat(16_384) };
      }),
    );
  }

  @Get('pausing/file')
  @WithLock('stream')
  async pausingFile(): Promise<StreamableFile> {
    return new StreamableFile(Readable.from(this.streams.pausing()));
  }

  @Get('pausing/items')
  pausingItems(): StreamableFile {
    return new StreamableFile(Readable.from(this.streams.pausingItems()));
  }

  @Sse('pausing/events')
  @WithLock('stream')
  async pausingEvents(): Promise<Observable<string>> {
    return from(this.streams.pausing());
  }

  /** Reads an item, and works before it reads the next. */
  @Get('working')
  async working(): Promise<string> {
    let text = '';
    for await (const item of this.streams.few()) {
      text += item;
      await sleep(3 * PAUSE_MS);
    }
    return text;
  }

  @Get('big')
  @WithLock('stream', { idleMs: 2_000 })
  async big(): Promise<StreamableFile> {
    return new StreamableFile(Buffer.alloc(20 * 2 ** 20, 'x'));
  }

  @Get('text')
  @WithLock('stream')
  async text(): Promise<StreamableFile> {
    return new StreamableFile(Readable.from(['é'.repeat(100_000), Buffer.from('bytes')]));
  }
}

interface Client {
  /** Reads for a while, and then nothing more. */
  stopReading(): void;
  /** Reads at most so many bytes a second, to the end. */
  readSlowly(bytesPerSecond: number): Promise<number>;
  text(until?: RegExp): Promise<string>;
  close(): void;
}

function clientOf(stream: Readable & { pause(): unknown }, close: () => void): Client {
  stream.on('error', () => {});
  return {
    stopReading: () => stream.pause(),
    async readSlowly(bytesPerSecond) {
      let length = 0;
      for await (const chunk of stream) {
        length += (chunk as Buffer).length;
        await sleep(((chunk as Buffer).length / bytesPerSecond) * 1_000);
      }
      return length;
    },
    async text(until) {
      let text = '';
      stream.setEncoding('utf8');
      for await (const chunk of stream) {
        text += String(chunk);
        if (until?.test(text)) break;
      }
      return text;
    },
    close,
  };
}

const kinds = ['HTTP/1.1 on Express', 'HTTP/1.1 on Fastify', 'HTTP/2 on Fastify'] as const;

describe.each(kinds)('a stream under a lock and a budget whose client does not read, by %s', (kind) => {
  let app: INestApplication;
  let url: URL;
  let streams: Streams;
  const clients: Client[] = [];
  beforeEach(async () => {
    const limits = [{ scope: 'org', period: 'lifetime' as const, limit: 1_000 }];
    const module = await Test.createTestingModule({
      imports: [SyncGuardModule.forRoot({ lock: { idleMs: IDLE_MS }, budget: { limits, idleMs: IDLE_MS } })],
      controllers: [Routes],
      providers: [Streams],
    }).compile();
    const http2 = kind.startsWith('HTTP/2') ? { http2: true } : {};
    app = kind.endsWith('Express')
      ? module.createNestApplication({ forceCloseConnections: true })
      : module.createNestApplication(new FastifyAdapter({ forceCloseConnections: true, ...http2 } as never));
    await app.listen(0, '127.0.0.1');
    url = new URL(await app.getUrl());
    streams = app.get(Streams);
  });
  afterEach(async () => {
    for (const client of clients.splice(0)) client.close();
    await app.close();
  });

  async function get(path: string): Promise<Client> {
    let client: Client;
    if (kind.startsWith('HTTP/2')) {
      const session = connectHttp2(url);
      session.on('error', () => {});
      const stream = session.request({ ':path': path });
      await once(stream, 'response');
      client = clientOf(stream, () => session.destroy());
    } else {
      const socket = connect(Number(url.port), '127.0.0.1');
      socket.on('error', () => {});
      socket.write(`GET ${path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n`);
      await once(socket, 'readable');
      client = clientOf(socket, () => socket.destroy());
    }
    clients.push(client);
    return client;
  }

  const isLocked = (): Promise<boolean> => app.get(LockService).isLocked({ key: 'stream' });
  const spent = async (): Promise<unknown[]> => {
    const [balance] = await app.get(BudgetService).balance({ scope: 'org' });
    return [balance?.committed, balance?.reserved];
  };

  it.each(['/file', '/patient/file', '/items', '/events'])(
    '%s: the lock is lost and the hang-up is paid',
    async (path) => {
      const client = await get(path);
      client.stopReading();
      expect([await isLocked(), await spent()]).toEqual([true, [0, 100]]);
      await eventually(async () => expect(await isLocked()).toBe(false));
      const lostAfterMs = performance.now() - streams.lastAskedMs;
      // The source of events asks nobody.
      if (path !== '/events') expect(lostAfterMs).toBeGreaterThan(IDLE_MS - 100);
      expect(lostAfterMs).toBeLessThan(IDLE_MS + 2_000); // A second on an idle machine.
      expect(streams.lostBy).toMatchObject({ code: 'LockLost', context: { reason: 'idle' } });
      await eventually(async () => expect(await spent()).toEqual([7, 0]));
      if (path !== '/events') expect(streams.isEnded).toBe(true);
    },
  );

  it.each(['/pausing/file', '/pausing/items', '/pausing/events'])(
    '%s: a producer that takes its time is no reason',
    async (path) => {
      const client = await get(path);
      const text = client.text(/four/);
      await sleep(2 * PAUSE_MS);
      expect(await isLocked()).toBe(true);
      expect((await text).replace(/[^a-z]+/g, ' ')).toMatch(/one .*two .*three .*four/);
      await eventually(async () => expect(await isLocked()).toBe(false));
    },
  );

  it('neither is a handler that works between two items', async () => {
    const client = await get('/working');
    expect(await client.text()).toContain('one two');
  });

  it('nor a client that reads a large file slowly', async () => {
    const client = await get('/big');
    const [length, wasLocked] = await Promise.all([
      client.readSlowly(4 * 2 ** 20),
      sleep(2_500).then(isLocked),
    ]);
    expect(wasLocked).toBe(true);
    expect(length).toBeGreaterThanOrEqual(20 * 2 ** 20);
    await eventually(async () => expect(await isLocked()).toBe(false));
  });

  it('long texts are cut between bytes, and arrive whole', async () => {
    const text = await (await get('/text')).text();
    expect(text.replace(/\r\n[0-9a-f]+\r\n/g, '')).toContain(`${'é'.repeat(100_000)}bytes`);
  });
});

it('a busy event loop does not give much more time to a client that does not read', async () => {
  let isIdle = false;
  const watch = new ReaderWatch({ ms: 2_000, end: () => new Error('idle') }, () => (isIdle = true));
  watch.handedOn();
  let turns = 0;
  for (; !isIdle; turns++) {
    const untilMs = performance.now() + 200;
    while (performance.now() < untilMs);
    await nextTurn();
  }
  // Each look comes 150 ms late. Nine looks were 18 turns.
  expect(turns).toBeLessThan(16);
});

it('a stream that is read without an HTTP response may be read as slowly as the reader likes', async () => {
  const module = await Test.createTestingModule({
    imports: [SyncGuardModule.forRoot({ lock: { idleMs: 100 } })],
    providers: [Streams],
  }).compile();
  await module.init();
  const streams = module.get(Streams);
  const locks = module.get(LockService);
  const seen: unknown[] = [];
  for await (const item of streams.few()) {
    await sleep(1_000);
    seen.push([item, await locks.isLocked({ key: 'stream' })]);
  }
  expect(seen).toEqual([
    ['one ', true],
    ['two', true],
  ]);
  await module.close();
});
