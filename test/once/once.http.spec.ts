import { request as httpRequest, type Server } from 'node:http';
import {
  Body,
  type CallHandler,
  type CanActivate,
  Controller,
  type ExecutionContext,
  ForbiddenException,
  Get,
  Header,
  HttpCode,
  HttpException,
  Injectable,
  type NestInterceptor,
  Param,
  ParseIntPipe,
  Post,
  Put,
  type PipeTransform,
  Redirect,
  Res,
  Sse,
  StreamableFile,
  UseGuards,
  UseInterceptors,
} from '@nestjs/common';
import { APP_GUARD, APP_INTERCEPTOR } from '@nestjs/core';
import { EMPTY, map, type Observable, of, timeout } from 'rxjs';
import {
  currentOnce,
  type LockContext,
  Lock,
  Once,
  onceKey,
  OnceService,
  RateLimit,
  SyncGuardModule,
  type SyncGuardOptions,
  WithLock,
} from 'nestjs-syncguard';
import { eventually } from '../support/eventually.js';
import { freshRedis } from '../support/redis.js';
import { type HttpApp, listen } from '../support/adapters.js';

/** What the handlers do: it counts their runs, and keeps a body inside until it is let go. */
@Injectable()
class Work {
  runs = 0;
  asked: string[] = [];
  open: Promise<void> | undefined;
  release = (): void => {};

  hold(): void {
    this.open = new Promise((resolve) => (this.release = resolve));
  }

  async run(): Promise<number> {
    this.runs++;
    await this.open;
    return this.runs;
  }
}

@Injectable()
class Login implements CanActivate {
  canActivate(context: ExecutionContext): boolean {
    const request = context.switchToHttp().getRequest<{ headers: Record<string, string>; user?: unknown }>();
    const user = request.headers['x-user'];
    if (user === 'nobody') throw new ForbiddenException();
    if (user !== undefined) request.user = { id: user };
    return true;
  }
}

@Injectable()
class Envelope implements NestInterceptor {
  constructor(private readonly work: Work) {}

  intercept(context: ExecutionContext, next: CallHandler<unknown>): Observable<unknown> {
    this.work.asked.push('interceptor');
    const handler = context.getHandler();
    return next
      .handle()
      .pipe(map((data) => (typeof data === 'object' && handler.name === 'pay' ? { data } : data)));
  }
}

class Hasty implements NestInterceptor {
  intercept(_: ExecutionContext, next: CallHandler<unknown>): Observable<unknown> {
    return next.handle().pipe(timeout(50));
  }
}

class Secret {
  constructor(
    readonly id: number,
    readonly card = 'pan-4242',
  ) {}
  toJSON(): object {
    return { id: this.id };
  }
}

const SLOW = onceKey({ route: 'POST /slow', caller: 'ann', key: 'key-1' });

/** A pipe that takes longer than the lease. */
@Injectable()
class UntilLapsed implements PipeTransform {
  constructor(private readonly once: OnceService) {}

  async transform(value: unknown): Promise<unknown> {
    await eventually(async () => expect((await this.once.get(SLOW))?.state).toBe('failed'));
    return value;
  }
}

@Controller()
class Shop {
  constructor(private readonly work: Work) {}

  @Once()
  @Post('orders/:id/pay')
  async pay(@Param('id', ParseIntPipe) id: number, @Body() body: { amount?: number }): Promise<object> {
    const once = currentOnce();
    return { id, amount: body?.amount ?? null, run: await this.work.run(), attempt: once?.attempt };
  }

  @Post('below')
  @HttpCode(202)
  @Header('x-kept', 'yes')
  @Header('x-other', 'no')
  @Once({ headers: ['X-Kept', 'Set-Cookie', 'WWW-Authenticate', 'Authorization'] })
  async below(
    @Res({ passthrough: true }) res: { header(name: string, value: string): unknown },
  ): Promise<Secret> {
    res.header('Set-Cookie', 'session=1');
    res.header('WWW-Authenticate', 'x');
    res.header('Location', '/orders/7');
    return new Secret(await this.work.run());
  }

  @Once()
  @Post('text')
  async text(): Promise<string> {
    return `run ${await this.work.run()} \u2603`;
  }

  @Once()
  @Post('nothing')
  async nothing(): Promise<void> {
    await this.work.run();
  }

  @Once()
  @Post('moved')
  @Redirect('/there', 303)
  async moved(): Promise<void> {
    await this.work.run();
  }

  @Once()
  @Put('observable')
  observable(): Observable<unknown> {
    this.work.runs++;
    return of({ a: 1 }, { run: this.work.runs });
  }

  @Once()
  @Post('fails')
  async fails(): Promise<void> {
    throw new HttpException('no funds', (await this.work.run()) === 1 ? 402 : 409);
  }

  @Once({ keep: (end) => 'error' in end })
  @Post('declined')
  async declined(): Promise<void> {
    throw new HttpException(`declined ${await this.work.run()}`, 402);
  }

  @Once()
  @Post('soft')
  async soft(@Res({ passthrough: true }) res: { status(code: number): unknown }): Promise<object> {
    const run = await this.work.run();
    if (run === 1) res.status(422);
    return { run };
  }

  @Once({ key: 'body.id' })
  @Post('webhook')
  async webhook(): Promise<object> {
    return { run: await this.work.run() };
  }

  @Once({ required: false })
  @Post('optional')
  async optional(): Promise<object> {
    return { run: await this.work.run() };
  }

  @Once({ key: ({ body }: { body: { event: { id: string } } }) => body.event?.id, required: false })
  @Post('optional-function')
  async optionalByFunction(@Body() _body: object): Promise<object> {
    return { key: currentOnce()?.key ?? null, run: await this.work.run() };
  }

  @Once({ maxRunMs: 500 })
  @Post('slow')
  async slow(@Body(UntilLapsed) _body: object): Promise<object> {
    return { run: await this.work.run() };
  }

  @Once({ scope: 'public' })
  @Post('guests')
  async guests(@Body() _body: object): Promise<object> {
    return { run: await this.work.run() };
  }

  @Once()
  @Post('file')
  async file(): Promise<StreamableFile> {
    return new StreamableFile(Buffer.from(`run ${await this.work.run()}`));
  }

  @Once()
  @Post('large')
  async large(): Promise<string> {
    await this.work.run();
    return 'x'.repeat(300_000);
  }

  @UseInterceptors(Hasty)
  @Once()
  @Post('hasty')
  async hasty(): Promise<object> {
    return { run: await this.work.run() };
  }

  @UseGuards(Login)
  @RateLimit({ name: 'few', limit: 3, windowMs: 60_000, keyBy: () => 'all' })
  @WithLock('order')
  @Once()
  @Post('locked')
  async locked(@Lock() lock?: LockContext): Promise<object> {
    return { fence: lock?.fence, run: await this.work.run() };
  }

  @Get('open')
  open(): string {
    return 'open';
  }
}

interface Answered {
  readonly status: number;
  readonly body: string;
  readonly replayed: boolean;
  readonly headers: globalThis.Headers;
}

describe.each(['express', 'fastify'] as const)('@Once() over HTTP on %s', (adapter) => {
  describe.each(['memory', 'Redis'] as const)('with %s', (backend) => {
    let http: HttpApp;
    let work: Work;
    afterEach(() => http.app.close());

    async function start(options: SyncGuardOptions = {}): Promise<void> {
      const redis = backend === 'Redis' ? { redis: (await freshRedis()).url } : {};
      http = await listen(
        adapter,
        {
          imports: [SyncGuardModule.forRoot({ ...redis, ...options })],
          controllers: [Shop],
          providers: [
            Work,
            { provide: APP_GUARD, useClass: Login },
            { provide: APP_INTERCEPTOR, useClass: Envelope },
          ],
        },
        undefined,
        (app) => app.useLogger(false),
      );
      work = http.app.get(Work);
    }
    beforeEach(() => start());

    async function send(
      path: string,
      {
        key = 'key-1',
        user = 'ann',
        method = 'POST',
        body = {},
        headers = {},
      }: {
        key?: string | null;
        user?: string | null;
        method?: string;
        body?: unknown;
        headers?: Record<string, string>;
      } = {},
    ): Promise<Answered> {
      const response = await fetch(http.url + path, {
        method,
        redirect: 'manual',
        headers: {
          'content-type': 'application/json',
          ...(key === null ? {} : { 'idempotency-key': key }),
          ...(user === null ? {} : { 'x-user': user }),
          ...headers,
        },
        body: typeof body === 'string' ? body : JSON.stringify(body),
      });
      return {
        status: response.status,
        body: await response.text(),
        replayed: response.headers.get('idempotency-replayed') === 'true',
        headers: response.headers,
      };
    }
    const codeOf = ({ body }: Answered): string => (JSON.parse(body) as { code: string }).code;

    /** Sends a request twice, and expects the second answer to be the first one. */
    async function twice(
      path: string,
      given: Parameters<typeof send>[1] = {},
    ): Promise<[Answered, Answered]> {
      const first = await send(path, given);
      const second = await send(path, given);
      expect([first.replayed, second.replayed]).toStrictEqual([false, true]);
      expect([second.status, second.body]).toStrictEqual([first.status, first.body]);
      expect(second.headers.get('content-type')).toBe(first.headers.get('content-type'));
      expect(work.runs).toBe(1);
      return [first, second];
    }

    it('replays status and body as they were sent, in the envelope, and runs nothing behind guards', async () => {
      const [first] = await twice('/orders/7/pay', { body: { amount: 5 } });
      expect(first).toMatchObject({ status: 201 });
      expect(JSON.parse(first.body)).toStrictEqual({ data: { id: 7, amount: 5, run: 1, attempt: 1 } });
      expect(work.asked).toStrictEqual(['interceptor']);
    });

    it('replays headers that are named, and never a cookie', async () => {
      const [first, second] = await twice('/below');
      expect(first.status).toBe(202);
      expect(first.body).toBe('{"id":1}');
      expect(first.headers.get('set-cookie')).toBe('session=1');
      for (const [name, value] of [
        ['x-kept', 'yes'],
        ['location', '/orders/7'],
        ['x-other', null],
        ['set-cookie', null],
        ['www-authenticate', null],
      ] as const)
        expect([name, second.headers.get(name)]).toStrictEqual([name, value]);
      expect(second.headers.get('etag')).toBe(first.headers.get('etag'));
    });

    it.each(['/text', '/nothing', '/moved'])('replays %s', async (path) => {
      const [first, second] = await twice(path);
      expect(second.headers.get('location')).toBe(first.headers.get('location'));
    });

    it('replays what an Observable gives last', async () => {
      const [first] = await twice('/observable', { method: 'PUT' });
      expect(first.body).toBe('{"run":1}');
    });

    it('answers 409 with Retry-After while the first runs, and the first gets its own', async () => {
      work.hold();
      const first = send('/orders/7/pay');
      await eventually(() => expect(work.runs).toBe(1));
      const second = await send('/orders/7/pay');
      expect([second.status, codeOf(second)]).toStrictEqual([409, 'OnceInProgress']);
      expect(second.headers.get('retry-after')).toBe('1');
      work.release();
      expect((await first).status).toBe(201);
    });

    it('answers 422 to another payload, query, parameter or method under the same key', async () => {
      await send('/orders/7/pay', { body: { amount: 5, to: 'a' } });
      expect((await send('/orders/7/pay', { body: { to: 'a', amount: 5 } })).replayed).toBe(true);
      for (const [path, body] of [
        ['/orders/7/pay', { amount: 6, to: 'a' }],
        ['/orders/7/pay?x=1', { amount: 5, to: 'a' }],
        ['/orders/8/pay', { amount: 5, to: 'a' }],
      ] as const)
        expect(codeOf(await send(path, { body }))).toBe('OncePayloadMismatch');
      expect(work.runs).toBe(1);
    });

    it('keeps callers and routes apart', async () => {
      await send('/text');
      expect(await send('/text', { user: 'bob' })).toMatchObject({ replayed: false });
      expect(await send('/nothing')).toMatchObject({ replayed: false });
      expect(work.runs).toBe(3);
    });

    it('answers 500 to a call without a caller, unless the scope is public', async () => {
      const refused = await send('/text', { user: null });
      expect([refused.status, codeOf(refused)]).toStrictEqual([500, 'OnceNoCaller']);
      await twice('/guests', { user: null, body: { cart: 1 } });
      expect((await send('/guests', { user: null, body: { cart: 2 } })).status).toBe(422);
    });

    it('answers 400 to a call without a key, and lets it pass where none is required', async () => {
      expect(codeOf(await send('/text', { key: null }))).toBe('OnceKeyMissing');
      expect((await send('/text', { key: 'two words' })).status).toBe(400);
      expect(work.runs).toBe(0);
      for (const run of [1, 2]) expect((await send('/optional', { key: null })).body).toBe(`{"run":${run}}`);
      const kept = await send('/optional');
      expect((await send('/optional')).body).toBe(kept.body);
    });

    it('lets a call pass for which a function of the request has no key', async () => {
      const none = { key: null, body: { other: 1 } };
      for (const run of [1, 2])
        expect(JSON.parse((await send('/optional-function', none)).body)).toStrictEqual({ key: null, run });
      const event = { key: null, body: { event: { id: 'e' } } };
      const kept = await send('/optional-function', event);
      expect(await send('/optional-function', event)).toMatchObject({ replayed: true, body: kept.body });
    });

    it('runs no handler whose lease has lapsed in a pipe', async () => {
      const late = await send('/slow');
      expect([late.status, codeOf(late), work.runs]).toStrictEqual([409, 'OnceLost', 0]);
      expect(await http.app.get(OnceService).get(SLOW)).toBeNull();
    });

    it('has a shutdown wait for a handler whose client has hung up', async () => {
      work.hold();
      const client = new AbortController();
      const headers = { 'content-type': 'application/json', 'idempotency-key': 'key-1', 'x-user': 'ann' };
      const gone = fetch(`${http.url}/text`, { method: 'POST', headers, body: '{}', signal: client.signal });
      await eventually(() => expect(work.runs).toBe(1));
      client.abort();
      await expect(gone).rejects.toThrow();
      const closed = http.app.get(OnceService).onModuleDestroy();
      work.release();
      await closed;
      const key = onceKey({ route: 'POST /text', caller: 'ann', key: 'key-1' });
      expect(await http.app.get(OnceService).get(key)).toMatchObject({ state: 'done' });
    });

    it('takes the key from the body, exactly as it was sent', async () => {
      await twice('/webhook', { key: null, user: null, body: { id: 'evt_A' } });
      for (const id of ['evt_a', ' evt_A', 7])
        expect((await send('/webhook', { body: { id } })).replayed).toBe(false);
      for (const id of [undefined, null])
        expect(codeOf(await send('/webhook', { body: { id } }))).toBe('OnceKeyMissing');
      for (const id of [{}, [], '', true])
        expect(codeOf(await send('/webhook', { body: { id } }))).toBe('OnceKeyInvalid');
    });

    it('runs again what has thrown, as attempt 2, and keeps it where `keep` says so', async () => {
      expect((await send('/fails')).status).toBe(402);
      expect((await send('/fails')).status).toBe(409);
      expect(work.runs).toBe(2);
      work.runs = 0;
      await twice('/declined');
    });

    it('runs again what was answered with an error by hand', async () => {
      expect((await send('/soft')).status).toBe(422);
      expect(await send('/soft')).toMatchObject({ status: 201, body: '{"run":2}', replayed: false });
      expect(await send('/soft')).toMatchObject({ body: '{"run":2}', replayed: true });
    });

    it('keeps nothing where a guard or a pipe has refused: nothing ran', async () => {
      expect((await send('/orders/7/pay', { user: 'nobody' })).status).toBe(403);
      expect((await send('/orders/x/pay')).status).toBe(400);
      expect(work.runs).toBe(0);
      const key = onceKey({ route: 'POST /orders/:id/pay', caller: 'ann', key: 'key-1' });
      expect(await http.app.get(OnceService).get(key)).toBeNull();
      expect((await send('/orders/7/pay')).status).toBe(201);
      expect(await http.app.get(OnceService).get(key)).toMatchObject({ state: 'done', attempt: 1 });
    });

    it('does not keep a file or an answer that is too large: the call is done', async () => {
      for (const path of ['/file', '/large']) {
        work.runs = 0;
        expect((await send(path)).status).toBe(201);
        const again = await send(path);
        expect([again.status, codeOf(again), work.runs]).toStrictEqual([409, 'ResultNotKept', 1]);
      }
    });

    it('goes on when the client hangs up, and the retry gets the answer', async () => {
      work.hold();
      const gone = httpRequest(`${http.url}/text`, {
        method: 'POST',
        headers: { 'content-type': 'application/json', 'x-user': 'ann', 'idempotency-key': 'key-1' },
      });
      gone.on('error', () => {});
      gone.end('{}');
      await eventually(() => expect(work.runs).toBe(1));
      gone.destroy();
      const server = http.app.getHttpServer() as Server;
      const connections = () => new Promise((resolve) => server.getConnections((_, count) => resolve(count)));
      await eventually(async () => expect(await connections()).toBe(0)); // The server has noticed.
      work.release();
      const answer = { status: 201, body: 'run 1 \u2603', replayed: true };
      await eventually(async () => expect(await send('/text')).toMatchObject(answer));
    });

    it('is done without a result where an answer has left before the body had ended', async () => {
      work.hold();
      expect((await send('/hasty')).status).toBe(500);
      expect(codeOf(await send('/hasty'))).toBe('OnceInProgress');
      work.release();
      await eventually(async () => expect(codeOf(await send('/hasty'))).toBe('ResultNotKept'));
      expect(work.runs).toBe(1);
    });

    it('takes no lock on a replay, and counts it as an attempt', async () => {
      const [first] = await twice('/locked');
      expect((JSON.parse(first.body) as { fence: string }).fence).toMatch(/^\d{15}$/);
      expect((await send('/locked')).replayed).toBe(true);
      expect((await send('/locked')).status).toBe(429);
    });

    it('gives a value that was settled by hand as JSON', async () => {
      const key = onceKey({ route: 'POST /fails', caller: 'ann', key: 'key-1' });
      expect((await send('/fails')).status).toBe(402);
      expect(await http.app.get(OnceService).settle(key, { value: { paid: true } })).toStrictEqual({
        ok: true,
      });
      expect(await send('/fails')).toMatchObject({ status: 200, body: '{"paid":true}', replayed: true });
    });

    it('refuses a body that nobody has parsed', async () => {
      const form = new FormData();
      form.set('a', '1');
      const response = await fetch(`${http.url}/text`, {
        ...{ method: 'POST', headers: { 'x-user': 'ann', 'idempotency-key': 'k' }, body: form },
      });
      expect([400, 415]).toContain(response.status);
      expect(work.runs).toBe(0);
    });
  });

  describe('at boot', () => {
    const boot = async (Controller: new () => object): Promise<string> => {
      const app = await listen(
        adapter,
        { imports: [SyncGuardModule.forRoot()], controllers: [Controller] },
        undefined,
        (a) => a.useLogger(false),
      ).catch((error: { code: string }) => error.code);
      if (typeof app === 'string') return app;
      await app.app.close();
      return 'booted';
    };

    it('refuses what cannot be kept, and a GET without a key', async () => {
      @Controller()
      class Events {
        @Once({ key: 'query.id' })
        @Sse('events')
        events(): Observable<never> {
          return EMPTY;
        }
      }
      @Controller()
      class ByHand {
        @Once()
        @Post('x')
        x(@Res() res: { send(text: string): void }): void {
          res.send('x');
        }
      }
      @Controller()
      class Reads {
        @Once()
        @Get('x')
        x(): string {
          return 'x';
        }
      }
      expect(await boot(Events)).toBe('ONCE_NO_ANSWER');
      expect(await boot(ByHand)).toBe('ONCE_NO_ANSWER');
      expect(await boot(Reads)).toBe('ONCE_NO_KEY');
    });
  });
});
