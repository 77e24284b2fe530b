import 'reflect-metadata';
import {
  Controller,
  type INestApplication,
  Injectable,
  Post,
  Req,
  Sse,
  StreamableFile,
} from '@nestjs/common';
import { request as httpRequest } from 'node:http';
import { Readable } from 'node:stream';
import { setTimeout as sleep } from 'node:timers/promises';
import {
  BudgetService,
  currentHold,
  type SyncGuardEvent,
  SyncGuardModule,
  WithBudget,
} from 'nestjs-syncguard';
import { map, NEVER, type Observable, startWith } from 'rxjs';
import { eventually } from '../support/eventually.js';
import { freshRedis } from '../support/redis.js';
import { listen } from '../support/adapters.js';

/** 100 tokens a chunk. The provider reports the total with the tenth chunk. */
interface Chunk {
  readonly text: string;
  readonly usage?: { readonly total: number };
}

const CHUNKS = 10;
const chunk = (i: number): Chunk => ({
  text: `chunk ${i}\n`,
  ...(i === CHUNKS ? { usage: { total: 100 * i } } : {}),
});

const budgeted = {
  scopes: () => ['org'],
  estimate: () => 1_000,
  actual: (last: Chunk) => last.usage?.total ?? 0,
};

@Injectable()
class Llm {
  delivered = 0;

  @WithBudget(budgeted)
  async *stream(signal?: AbortSignal): AsyncGenerator<Chunk, void, undefined> {
    for (let i = 1; i <= CHUNKS; i++) {
      // The client of a provider throws this when its request is aborted.
      if (i === CHUNKS && signal) await sleep(60_000, undefined, { signal, ref: false });
      this.delivered += 100;
      yield chunk(i);
    }
  }

  @WithBudget({ scopes: () => ['org'], estimate: () => 1_000 })
  async silent(signal: AbortSignal): Promise<string> {
    await sleep(60_000, undefined, { signal, ref: false });
    return 'never';
  }

  @WithBudget({ scopes: () => ['org'], estimate: () => 1_000 })
  async paidAndUnreadable(): Promise<unknown> {
    currentHold()?.spent(120);
    return JSON.parse('{') as unknown;
  }

  @WithBudget({ scopes: () => ['org'], estimate: () => 1_000, id: (id: string) => id })
  async job(_id: string, work: Promise<void>): Promise<string> {
    await work;
    return 'done';
  }

  @WithBudget(budgeted)
  async endless(): Promise<Observable<Chunk>> {
    return NEVER.pipe(startWith(chunk(1)));
  }
}

interface Closing {
  on(event: 'close', listener: () => void): unknown;
}

@Controller()
class LlmController {
  constructor(private readonly llm: Llm) {}

  @Post('file')
  file(@Req() req: { raw?: { socket: Closing }; socket: Closing }): StreamableFile {
    const gone = new AbortController();
    (req.raw ?? req).socket.on('close', () => gone.abort('the client has hung up'));
    const texts = async function* (llm: Llm): AsyncGenerator<string> {
      for await (const { text } of llm.stream(gone.signal)) yield text;
    };
    return new StreamableFile(Readable.from(texts(this.llm)));
  }

  @Sse('events')
  async events(): Promise<Observable<{ data: string }>> {
    return (await this.llm.endless()).pipe(map(({ text }) => ({ data: text })));
  }

  @Post('silent')
  silent(@Req() req: { raw?: { socket: Closing }; socket: Closing }): Promise<string> {
    const gone = new AbortController();
    (req.raw ?? req).socket.on('close', () => gone.abort('the client has hung up'));
    return this.llm.silent(gone.signal);
  }
}

const moduleWith = (redis?: string, onEvent?: (event: SyncGuardEvent) => void) => ({
  imports: [
    SyncGuardModule.forRoot({
      ...(redis ? { redis } : {}),
      ...(onEvent ? { telemetry: { onEvent } } : {}),
      budget: {
        limits: [{ scope: 'org', period: 'lifetime' as const, limit: 3_000, thresholds: [50, 100] }],
      },
    }),
  ],
  providers: [Llm],
  controllers: [LlmController],
});

/**
 * Sends a request, reads until `enough` of its answer has arrived (or does not wait for an answer), and hangs
 * up.
 */
function hangUp(url: string, method: string, enough: number): Promise<void> {
  return new Promise((resolve) => {
    let read = 0;
    const sent = httpRequest(url, { method, agent: false }, (response) => {
      response.on('data', (data: Buffer) => {
        read += data.toString().split('chunk').length - 1;
        if (read >= enough) sent.destroy();
      });
      response.on('close', resolve);
    });
    sent.on('error', () => resolve());
    if (enough === 0) sent.on('finish', () => setTimeout(() => sent.destroy(), 200));
    sent.end();
  });
}

describe.each(['memory', 'Redis'])('who hangs up pays, on %s', (store) => {
  describe.each(['express', 'fastify'] as const)('%s', (adapter) => {
    let app: INestApplication;
    let url: string;
    let llm: Llm;
    let events: SyncGuardEvent[];

    const balance = async (): Promise<{ committed: number; reserved: number }> => {
      const [org] = await app.get(BudgetService).balance({ scope: 'org' });
      return { committed: Number(org?.committed), reserved: Number(org?.reserved) };
    };

    beforeEach(async () => {
      events = [];
      const redis = store === 'Redis' ? (await freshRedis()).url : undefined;
      ({ app, url } = await listen(
        adapter,
        moduleWith(redis, (event) => void events.push(event)),
      ));
      app.useLogger(false);
      llm = app.get(Llm);
    });
    afterEach(() => app.close());

    it('a client that reads nine of ten chunks, twenty times', async () => {
      for (let i = 0; i < 20; i++) {
        await hangUp(`${url}/file`, 'POST', 9);
        await eventually(async () => expect((await balance()).reserved).toBe(0));
      }
      expect(llm.delivered).toBe(2_700);
      expect((await balance()).committed).toBeGreaterThanOrEqual(llm.delivered);
    });

    it('a client of an event stream, and one that does not wait for the first byte', async () => {
      await hangUp(`${url}/events`, 'GET', 1);
      await eventually(async () => expect(await balance()).toEqual({ committed: 1_000, reserved: 0 }));
      await hangUp(`${url}/silent`, 'POST', 0);
      await eventually(async () => expect(await balance()).toEqual({ committed: 2_000, reserved: 0 }));
    });

    if (adapter === 'express') {
      it('a reader that stops after nine of ten chunks: three are served', async () => {
        let served = 0;
        for (let i = 0; i < 20; i++) {
          let read = 0;
          try {
            for await (const _ of llm.stream()) if (++read === 9) break;
            served++;
          } catch (error) {
            expect(error).toMatchObject({ name: 'BudgetExceededError' });
          }
        }
        expect(served).toBe(3);
        expect((await balance()).committed).toBeGreaterThanOrEqual(llm.delivered);
        expect(events.filter(({ type }) => type === 'threshold')).toMatchObject([
          { result: 'ok', percent: 50, scopeType: 'org', period: 'lifetime' },
          { result: 'ok', percent: 100, scopeType: 'org', period: 'lifetime' },
        ]);
      });

      it('a body that paid and cannot read the answer has paid what it noted', async () => {
        await expect(llm.paidAndUnreadable()).rejects.toThrow(SyntaxError);
        expect(await balance()).toEqual({ committed: 120, reserved: 0 });
      });

      it('one id runs one body', async () => {
        let end = (): void => {};
        const work = new Promise<void>((done) => (end = done));
        const calls = [1, 2, 3].map(() => llm.job('7', work).catch((error: unknown) => error));
        const first = (await Promise.race(calls)) as { reason: string };
        expect(first).toMatchObject({ name: 'BudgetConflictError', reason: 'pending' });
        end();
        expect((await Promise.all(calls)).filter((each) => each === 'done')).toHaveLength(1);
        await expect(llm.job('7', work)).rejects.toMatchObject({ reason: 'already_finalized' });
      });
    }
  });
});
