import { EventEmitter, once } from 'node:events';
import { request, type Server, type ServerResponse } from 'node:http';
import { setImmediate, setTimeout as sleep } from 'node:timers/promises';
import { promisify } from 'node:util';
import { Controller, Module, Post, Res } from '@nestjs/common';
import { BudgetService, currentHold, SyncGuardModule, WithBudget } from 'nestjs-syncguard';
import { eventually } from '../../support/eventually.js';
import { post, stage } from './instances.js';

describe('docs/guides/llm-stream.md', () => {
  const on = stage();
  const open = async () => {
    const { AiModule, Llm } = await import('./llm-stream/llm.js');
    const { url, app } = await on.start(AiModule);
    const spent = async () => {
      const [balance] = await app.get(BudgetService).balance({ scope: 'user:ada' });
      return { committed: balance?.committed, reserved: balance?.reserved };
    };
    return { url, app, spent, llm: app.get(Llm) };
  };

  it('reserves the most, pays what was streamed, and then says 429 or 402', async () => {
    const { url, spent } = await open();
    const ask = { user: 'ada', prompt: 'hi', maxTokens: 500 };
    const answer = await post(`${url}/ai`, ask);
    expect(answer.status).toBe(201);
    expect(String(answer.body).split(' ')).toHaveLength(501);
    await eventually(async () => expect(await spent()).toEqual({ committed: 502, reserved: 0 }));

    const full = await post(`${url}/ai`, ask);
    expect(full).toMatchObject({ status: 429, body: { code: 'BudgetExceeded' } });
    expect(Number(full.headers.get('retry-after'))).toBeGreaterThan(0);
    expect((await post(`${url}/ai`, { ...ask, maxTokens: 2_000 })).status).toBe(402);
  });

  it('charges a client that hangs up for what it was sent', async () => {
    const { url, spent } = await open();
    const gone = new AbortController();
    const response = await fetch(`${url}/ai`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ user: 'ada', prompt: 'hi', maxTokens: 900 }),
      signal: gone.signal,
    });
    expect(response.status).toBe(201);
    gone.abort();
    await eventually(async () => expect((await spent()).reserved).toBe(0));
    expect((await spent()).committed).toBeLessThanOrEqual(902);
    expect((await spent()).committed).toBeGreaterThan(0);
  });

  it('charges a client that hangs up before the first item for that', async () => {
    const { url, app, spent, llm } = await open();
    const redis = on.redis.client();
    const streams = jest.spyOn(llm, 'stream');
    await redis.client('PAUSE', 60_000, 'WRITE');
    const call = request(`${url}/ai`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      agent: false, // A connection of its own, which closes with the call.
    });
    const answer = once(call, 'response');
    call.end(JSON.stringify({ user: 'ada', prompt: 'hi', maxTokens: 900 }));
    await eventually(() => expect(streams).toHaveBeenCalled());
    call.destroy();
    await expect(answer).rejects.toThrow();
    const connections = promisify<number>((done) => (app.getHttpServer() as Server).getConnections(done));
    await eventually(async () => expect(await connections()).toBe(0));
    await redis.client('UNPAUSE');
    await eventually(async () => expect(await spent()).toEqual({ committed: 3, reserved: 0 }));
  });

  it('serves what is left if `maxTokens` is lowered to what is available, less the prompt', async () => {
    const { url, app, spent } = await open();
    const ask = { user: 'ada', prompt: 'hi', maxTokens: 800 };
    await post(`${url}/ai`, ask);
    await eventually(async () => expect(await spent()).toEqual({ committed: 802, reserved: 0 }));
    expect((await post(`${url}/ai`, ask)).status).toBe(429);
    const [balance] = await app.get(BudgetService).balance({ scope: 'user:ada' });
    const maxTokens = Number(balance?.available) - ask.prompt.length;
    expect((await post(`${url}/ai`, { ...ask, maxTokens })).status).toBe(201);
    await eventually(async () => expect(await spent()).toEqual({ committed: 1_000, reserved: 0 }));
  });

  it.each([
    ['what it has noted', 20, 20],
    ['the estimate where it has noted nothing', 0, 500],
  ])('a body that is aborted before its first item costs %s', async (_what, noted, cost) => {
    const asked = new EventEmitter();
    @Controller()
    class Answers {
      @WithBudget({ scopes: () => ['user:ada'], estimate: () => 500 })
      async *stream(signal: AbortSignal) {
        if (noted) currentHold()?.spent(noted);
        asked.emit('now');
        yield await sleep(60_000, 'an item', { signal });
      }

      @Post()
      async answer(@Res({ passthrough: true }) response: ServerResponse) {
        const abort = new AbortController();
        response.once('close', () => abort.abort());
        return (await this.stream(abort.signal).next()).value;
      }
    }
    const limits = [{ scope: 'user', period: 'lifetime' as const, limit: 1_000 }];
    const imports = [SyncGuardModule.forRoot({ redis: process.env.REDIS_URL as string, budget: { limits } })];
    @Module({ imports, controllers: [Answers] })
    class App {}
    const { url, app } = await on.start(App);
    const gone = new AbortController();
    const isAsked = once(asked, 'now');
    const answer = fetch(url, { method: 'POST', signal: gone.signal });
    await isAsked;
    gone.abort();
    await expect(answer).rejects.toThrow();
    await eventually(async () =>
      expect(await app.get(BudgetService).balance({ scope: 'user:ada' })).toMatchObject([
        { committed: cost, reserved: 0 },
      ]),
    );
  });

  it('a provider that is silent between two items goes on until the next one, which is paid for', async () => {
    const provider = new EventEmitter();
    @Controller()
    class Answers {
      @WithBudget({ scopes: () => ['user:ada'], estimate: () => 500, actual: (last: number) => last })
      async *stream() {
        yield 10;
        await once(provider, 'speaks');
        yield 20;
        yield 30;
      }
    }
    const limits = [{ scope: 'user', period: 'lifetime' as const, limit: 1_000 }];
    const imports = [SyncGuardModule.forRoot({ redis: process.env.REDIS_URL as string, budget: { limits } })];
    @Module({ imports, controllers: [Answers] })
    class App {}
    const { app } = await on.start(App);
    const balance = () => app.get(BudgetService).balance({ scope: 'user:ada' });
    const answer = app.get(Answers).stream();
    await answer.next();
    const ends = [answer.next(), answer.return(undefined)]; // It is asked for more, and the client hangs up.
    await setImmediate();
    expect(await balance()).toMatchObject([{ committed: 0, reserved: 500 }]);
    provider.emit('speaks');
    await Promise.all(ends);
    expect(await balance()).toMatchObject([{ committed: 20, reserved: 0 }]);
  });

  it('asks no provider without Redis', async () => {
    const { url } = await open();
    await on.redis.kill();
    expect((await post(`${url}/ai`, { user: 'ada', prompt: 'hi', maxTokens: 5 })).status).toBe(503);
  });
});
