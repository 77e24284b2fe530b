import 'reflect-metadata';
import { Controller, Get, Injectable, type INestApplication, Sse } from '@nestjs/common';
import { Test } from '@nestjs/testing';
import { setTimeout as sleep } from 'node:timers/promises';
import {
  concatMap,
  defer,
  from,
  interval,
  map,
  NEVER,
  Observable,
  of,
  range,
  take,
  tap,
  throwError,
} from 'rxjs';
import {
  currentLock,
  Lock,
  type LockContext,
  LockService,
  SyncGuardModule,
  WithLock,
} from 'nestjs-syncguard';
import { eventually } from '../support/eventually.js';
import { listen } from '../support/adapters.js';

@Injectable()
class Streams {
  cleanedUnder: string | undefined;

  @WithLock('stream')
  async *items(
    count: number,
    @Lock() lock?: LockContext,
  ): AsyncGenerator<string, string, string | undefined> {
    try {
      for (let i = 0; i < count; i++) {
        const sent = yield `${i} ${currentLock()?.key} ${lock?.fence === currentLock()?.fence}`;
        if (sent === 'throw') throw new Error('told to');
      }
      return 'done';
    } finally {
      await sleep(1);
      this.cleanedUnder = currentLock()?.key;
    }
  }

  @WithLock('stream')
  unfollowed(): AsyncIterable<string> {
    const next = async (): Promise<IteratorResult<string>> => ({ done: true, value: undefined });
    return { [Symbol.asyncIterator]: () => ({ next }) };
  }

  @WithLock('stream')
  async *stubborn(
    given = { text: currentLock()?.key },
    { text } = given,
  ): AsyncGenerator<string | undefined> {
    try {
      yield text;
    } catch (error) {
      yield `${(error as Error).message} ${currentLock()?.key}`;
    } finally {
      await Promise.reject(new Error('cannot clean up'));
    }
  }

  @WithLock('stream', { timeoutMs: 0 })
  async observable(source: Observable<unknown>): Promise<Observable<unknown>> {
    return source.pipe(map((item) => [item, currentLock()?.key]));
  }

  @WithLock('stream', { ttlMs: 60 })
  async impatient(): Promise<Observable<number>> {
    return of(1);
  }
}

@Controller()
class StreamsController {
  constructor(private readonly streams: Streams) {}

  @Get('stream')
  stream(): Promise<Observable<unknown>> {
    return this.streams.observable(of('only'));
  }

  @Sse('events')
  events(): Promise<Observable<{ data: unknown }>> {
    return this.streams
      .observable(interval(5).pipe(take(3)))
      .then((items) => items.pipe(map((data) => ({ data }))));
  }
}

const collect = (stream: Observable<unknown>): Promise<{ items: unknown[]; error?: unknown }> =>
  new Promise((resolve) => {
    const items: unknown[] = [];
    stream.subscribe({
      next: (item) => items.push(item),
      error: (error: unknown) => resolve({ items, error }),
      complete: () => resolve({ items }),
    });
  });

describe('@WithLock() on streams', () => {
  let streams: Streams;
  let locks: LockService;
  const isLocked = (): Promise<boolean> => locks.isLocked({ key: 'stream' });
  beforeEach(async () => {
    const module = await Test.createTestingModule({
      imports: [SyncGuardModule.forRoot()],
      providers: [Streams],
    }).compile();
    streams = module.get(Streams);
    locks = module.get(LockService);
  });

  describe('an async generator', () => {
    it('holds the lock from the first item to its end, and runs inside of it', async () => {
      const items = streams.items(2);
      expect(await isLocked()).toBe(false);
      expect(await items.next()).toStrictEqual({ done: false, value: '0 stream true' });
      expect(await isLocked()).toBe(true);
      expect(currentLock()).toBeUndefined();
      expect(await items.next()).toStrictEqual({ done: false, value: '1 stream true' });
      expect(await items.next()).toStrictEqual({ done: true, value: 'done' });
      expect(await isLocked()).toBe(false);
    });

    it('is left when its reader stops, after its own finally', async () => {
      for await (const item of streams.items(5)) {
        expect(item).toBe('0 stream true');
        break;
      }
      expect(streams.cleanedUnder).toBe('stream');
      expect(await isLocked()).toBe(false);
    });

    it('is left when it throws, with the error as it is', async () => {
      const items = streams.items(5);
      await items.next();
      await expect(items.next('throw')).rejects.toThrow('told to');
      expect(await isLocked()).toBe(false);
    });

    it('is told of what its reader throws into it, and may go on', async () => {
      const thrown = streams.items(5);
      await thrown.next();
      await expect(thrown.throw(new Error('no more'))).rejects.toThrow('no more');
      expect(streams.cleanedUnder).toBe('stream');
      expect(await isLocked()).toBe(false);

      const stubborn = streams.stubborn();
      expect((await stubborn.next()).value).toBe('stream');
      expect((await stubborn.throw(new Error('no more'))).value).toBe('no more stream');
      expect(await isLocked()).toBe(true);
    });

    it.each([
      ['its finally throws', () => streams.stubborn(), 'cannot clean up'],
      ['it cannot even begin', () => streams.stubborn(null as never), /null/],
    ])('is left though %s', async (_, start, message) => {
      const items = start();
      const stop = items.next().then(() => items.return(undefined));
      await expect(stop).rejects.toThrow(message);
      expect(await isLocked()).toBe(false);
    });

    it('waits for the lock of another', async () => {
      const first = streams.items(1);
      await first.next();
      const second = streams.items(1).next();
      await first.next();
      expect((await second).value).toBe('0 stream true');
    });

    it('keeps its kind, its name and its length', () => {
      expect([streams.items.constructor.name, streams.items.name, streams.items.length]).toStrictEqual([
        'AsyncGeneratorFunction',
        'items',
        2,
      ]);
    });

    it('tells at its end that the lock was lost', async () => {
      const items = streams.items(1);
      await items.next();
      await locks.release({ lockId: (await locks.getByKeyRaw('stream'))?.lockId ?? '' });
      await expect(items.next()).rejects.toMatchObject({ code: 'LockLost' });
    });
  });

  describe('a promised Observable', () => {
    it('holds the lock until it completes, subscribed inside of it', async () => {
      const stream = await streams.observable(
        from([1, 2]).pipe(concatMap((item) => sleep(5).then(() => item))),
      );
      expect(await isLocked()).toBe(true);
      await expect(streams.observable(NEVER)).rejects.toMatchObject({ code: 'AcquisitionTimeout' });
      expect(await collect(stream)).toStrictEqual({
        items: [
          [1, 'stream'],
          [2, 'stream'],
        ],
      });
      expect(await isLocked()).toBe(false);
    });

    it('is left when it fails, with the error as it is', async () => {
      const error = new Error('broken');
      expect(await collect(await streams.observable(throwError(() => error)))).toStrictEqual({
        items: [],
        error,
      });
      expect(await isLocked()).toBe(false);
    });

    it('is left when it is unsubscribed', async () => {
      const subscription = (await streams.observable(NEVER)).subscribe();
      expect(await isLocked()).toBe(true);
      subscription.unsubscribe();
      await eventually(async () => expect(await isLocked()).toBe(false));
    });

    it('stops as soon as it is unsubscribed, though it gives all at once', async () => {
      let given = 0;
      const all = defer(() => range(1, 1_000).pipe(tap(() => given++)));
      const stream = await streams.observable(all);
      expect(await collect(stream.pipe(take(2)))).toStrictEqual({
        items: [
          [1, 'stream'],
          [2, 'stream'],
        ],
      });
      expect(given).toBe(2);
      await eventually(async () => expect(await isLocked()).toBe(false));
    });

    it('is left when nobody subscribes within the TTL; who comes later is told', async () => {
      const stream = await streams.impatient();
      await eventually(async () => expect(await isLocked()).toBe(false));
      expect(await collect(stream)).toMatchObject({ items: [], error: { code: 'InvalidArgument' } });
    });

    it("is left after the module's `ttlMs`, where the decorator gives none", async () => {
      const module = await Test.createTestingModule({
        imports: [SyncGuardModule.forRoot({ lock: { ttlMs: 1_000 } })],
        providers: [Streams],
      }).compile();
      const stream = await module.get(Streams).observable(of(1));
      const locked = (): Promise<boolean> => module.get(LockService).isLocked({ key: 'stream' });
      expect(await locked()).toBe(true);
      await eventually(async () => expect(await locked()).toBe(false));
      expect(await collect(stream)).toMatchObject({ error: { code: 'InvalidArgument' } });
      await module.close();
    });

    it('is refused where a method that is no generator gives an async iterable: nothing could follow it', async () => {
      await expect(streams.unfollowed() as unknown as Promise<unknown>).rejects.toMatchObject({
        code: 'InvalidArgument',
      });
      expect(await isLocked()).toBe(false);
    });

    it('is subscribed once', async () => {
      const stream = await streams.observable(of(1));
      await collect(stream);
      expect(await collect(stream)).toMatchObject({ error: { code: 'InvalidArgument' } });
    });

    it('fails at its end when the lock was lost', async () => {
      const stream = await streams.observable(from(sleep(20)));
      await locks.release({ lockId: (await locks.getByKeyRaw('stream'))?.lockId ?? '' });
      expect(await collect(stream)).toMatchObject({ error: { code: 'LockLost' } });
    });
  });

  describe.each(['express', 'fastify'] as const)('over HTTP, on %s', (adapter) => {
    let app: INestApplication;
    let url: string;
    beforeAll(async () => {
      ({ app, url } = await listen(adapter, {
        imports: [SyncGuardModule.forRoot()],
        controllers: [StreamsController],
        providers: [Streams],
      }));
    });
    afterAll(() => app.close());

    it('a route that gives an Observable answers its last item', async () => {
      expect(await (await fetch(`${url}/stream`)).json()).toStrictEqual(['only', 'stream']);
    });

    it('server-sent events end with the stream, and so does the lock; also when the client leaves', async () => {
      expect(await (await fetch(`${url}/events`)).text()).toMatch(
        /data: \[0,"stream"\][^]*data: \[2,"stream"\]/,
      );
      const leaving = new AbortController();
      const response = await fetch(`${url}/events`, { signal: leaving.signal });
      await response.body?.getReader().read();
      leaving.abort();
      await eventually(async () =>
        expect(await app.get(LockService).isLocked({ key: 'stream' })).toBe(false),
      );
    });
  });
});
