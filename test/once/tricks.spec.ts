import { connect } from 'node:net';
import {
  All,
  Body,
  type CallHandler,
  type CanActivate,
  Catch,
  Controller,
  type DynamicModule,
  type ExceptionFilter,
  type ExecutionContext,
  type ArgumentsHost,
  ForbiddenException,
  Get,
  Injectable,
  Module,
  type NestInterceptor,
  Post,
  UseFilters,
  UseInterceptors,
  Version,
  VersioningType,
} from '@nestjs/common';
import { APP_GUARD, HttpAdapterHost } from '@nestjs/core';
import { Once, onceKey, OnceService, SyncGuardModule } from 'nestjs-syncguard';
import { SyncGuardTesting, SyncGuardTestingModule } from 'nestjs-syncguard/testing';
import { catchError, of, retry } from 'rxjs';
import { eventually } from '../support/eventually.js';
import { freshRedis } from '../support/redis.js';
import { type HttpApp, listen } from '../support/adapters.js';

@Injectable()
class Bank {
  charges = 0;
  failures = 0;
  open: Promise<void> | undefined;
  release = (): void => {};

  hold(): void {
    this.open = new Promise((resolve) => (this.release = resolve));
  }

  async charge(): Promise<string> {
    const charge = `charge ${++this.charges}`;
    await this.open;
    if (this.failures-- > 0) throw new Error('the bank is away');
    return charge;
  }
}

/** Who sends it is what the header says, as a text, or as what a careless app makes of it. */
@Injectable()
class Login implements CanActivate {
  canActivate(context: ExecutionContext): boolean {
    const request = context.switchToHttp().getRequest<{ headers: Record<string, string>; user?: unknown }>();
    const id = request.headers['x-user'];
    if (id === 'banned') throw new ForbiddenException();
    request.user = { id: request.headers['x-careless'] ? Number(id) : id };
    return true;
  }
}

class Retrying implements NestInterceptor {
  intercept(_: ExecutionContext, next: CallHandler) {
    return next.handle().pipe(retry(2));
  }
}

class Soothing implements NestInterceptor {
  intercept(_: ExecutionContext, next: CallHandler) {
    return next.handle().pipe(catchError(() => of({ queued: true })));
  }
}

@Catch()
class AlwaysFine implements ExceptionFilter {
  constructor(private readonly host: HttpAdapterHost) {}
  catch(_: unknown, host: ArgumentsHost): void {
    this.host.httpAdapter.reply(host.switchToHttp().getResponse(), { fine: true }, 200);
  }
}

type Request = { body: Record<string, unknown>; query: Record<string, string> };

@Controller()
class Shop {
  constructor(private readonly bank: Bank) {}

  @Once()
  @Post('pay')
  async pay(@Body() _body: unknown): Promise<object> {
    return { paid: await this.bank.charge() };
  }

  @Once()
  @Post(['a', 'b'])
  async either(): Promise<object> {
    return { either: await this.bank.charge() };
  }

  @Once({ key: 'body.id' })
  @Post('event')
  async event(): Promise<object> {
    return { seen: await this.bank.charge() };
  }

  @Once({ key: ({ body }: Request) => Number(body['number']), payload: () => 1 })
  @Post('number')
  async number(): Promise<object> {
    return { seen: await this.bank.charge() };
  }

  @Once({ payload: async ({ body }: Request) => body['amount'] })
  @Post('promised')
  async promised(): Promise<object> {
    return { paid: await this.bank.charge() };
  }

  @Once({ payload: ({ body }: Request) => new URLSearchParams(body as Record<string, string>) })
  @Post('params')
  async params(): Promise<object> {
    return { paid: await this.bank.charge() };
  }

  @Once({ key: 'query.id' })
  @Get('read')
  async read(): Promise<object> {
    return { read: await this.bank.charge() };
  }

  @Once()
  @All('any')
  async any(): Promise<object> {
    return { any: await this.bank.charge() };
  }

  @UseInterceptors(Retrying)
  @Once()
  @Post('retried')
  async retried(): Promise<object> {
    return { paid: await this.bank.charge() };
  }

  @UseInterceptors(Soothing)
  @Once()
  @Post('soothed')
  async soothed(): Promise<object> {
    return { paid: await this.bank.charge() };
  }

  @UseFilters(AlwaysFine)
  @Once()
  @Post('fine')
  async fine(): Promise<object> {
    return { paid: await this.bank.charge() };
  }

  @Once()
  @Version('2')
  @Post('versioned')
  async second(): Promise<object> {
    return { second: await this.bank.charge() };
  }

  @Once()
  @Post('versioned')
  async first(): Promise<object> {
    return { first: await this.bank.charge() };
  }
}

@Controller({ host: ':tenant.example.com' })
class Tenants {
  constructor(private readonly bank: Bank) {}

  @Once()
  @Post('tenant')
  async pay(): Promise<object> {
    return { paid: await this.bank.charge() };
  }
}

/** Tricks to read a stranger's answer, or to have a body run twice. */
describe.each(['express', 'fastify'] as const)('tricks against @Once() on %s', (adapter) => {
  let http: HttpApp;
  let bank: Bank;
  const start = async (root = SyncGuardModule.forRoot()): Promise<void> => {
    @Module({
      imports: [root],
      controllers: [Tenants, Shop],
      providers: [Bank, { provide: APP_GUARD, useClass: Login }],
    })
    class App {}
    http = await listen(adapter, { imports: [App] }, undefined, (app) => {
      app.useLogger(false);
      app.enableVersioning({ type: VersioningType.HEADER, header: 'x-version', defaultVersion: '1' });
    });
    bank = http.app.get(Bank);
  };
  const restart = async (root: DynamicModule): Promise<void> => {
    await http.app.close();
    await start(root);
  };
  beforeEach(() => start());
  afterEach(async () => {
    bank.release();
    await http.app.close();
  });

  interface Sent {
    readonly user?: string;
    readonly body?: string;
    readonly method?: string;
    readonly headers?: Record<string, string>;
  }
  const send = async (path: string, key: string, given: Sent = {}) => {
    const { user = 'ann', body = '{}', method = 'POST', headers = {} } = given;
    const response = await fetch(http.url + path, {
      method,
      headers: {
        'content-type': 'application/json',
        ...{ 'x-user': user, 'x-version': '1' },
        ...(key ? { 'idempotency-key': key } : {}),
        ...headers,
      },
      ...(['GET', 'HEAD'].includes(method) ? {} : { body }),
    });
    const text = await response.text();
    return {
      status: response.status,
      text,
      replayed: response.headers.get('idempotency-replayed') === 'true',
    };
  };
  const statusOf = async (...given: Parameters<typeof send>): Promise<number> =>
    (await send(...given)).status;

  /** Sends bytes as they are, and resolves to all that comes back until the server closes. */
  const raw = (head: string, body = ''): Promise<string> =>
    new Promise((resolve, reject) => {
      const socket = connect(Number(new URL(http.url).port), '127.0.0.1', () =>
        socket.write(`${head}\r\n\r\n${body}`),
      );
      let all = '';
      socket.on('data', (chunk: Buffer) => (all += chunk.toString()));
      socket.on('close', () => resolve(all)).on('error', reject);
    });
  const head = (path: string, ...headers: string[]): string =>
    [
      `POST ${path} HTTP/1.1`,
      'X-User: ann',
      'X-Version: 1',
      'Connection: close',
      'Content-Type: application/json',
      ...headers,
    ].join('\r\n');

  it.each<[string, (id: string) => unknown]>([
    ['an object', (id) => ({ id })],
    ['no number', (id) => Number(id)],
    ['a yes', (id) => id !== ''],
    ['a list in a list', (id) => [[id]]],
    ['an object in a list', (id) => ['tenant', { id }]],
  ])('1: a `user` that makes the same of all callers (%s) is nobody', async (_, of) => {
    const user = (context: ExecutionContext): string =>
      of(context.switchToHttp().getRequest<{ user: { id: string } }>().user.id) as string;
    await restart(SyncGuardModule.forRoot({ once: { user } }));
    expect([await statusOf('/pay', 'k'), await statusOf('/pay', 'k', { user: 'bob' })]).toStrictEqual([
      500, 500,
    ]);
    expect(bank.charges).toBe(0);
  });

  it('2: an id that is no number is nobody', async () => {
    const headers = { 'x-careless': 'yes' };
    expect(await statusOf('/pay', 'k', { headers })).toBe(500);
    expect(await statusOf('/pay', 'k', { headers, user: '7' })).toBe(201);
    expect(bank.charges).toBe(1);
  });

  it.each(['undefined', 'null', 'NaN', '[object', 'order:undefined', '"undefined"'])(
    '3: a key of a missing value is none: %s',
    async (key) => {
      expect(await statusOf('/pay', key === '[object' ? '"[object Object]"' : key)).toBe(400);
      expect(bank.charges).toBe(0);
    },
  );

  it('4: a function whose key is no number is refused, as it would be that of all', async () => {
    expect(await statusOf('/number', '', { body: '{"number":"a"}' })).toBe(400);
    expect(await statusOf('/number', '', { body: '{"number":1e999}' })).toBe(400);
    expect(await statusOf('/number', '', { body: '{"number":7}' })).toBe(201);
    expect(bank.charges).toBe(1);
  });

  it('5: two ids that JavaScript reads as one number are refused', async () => {
    for (const id of ['9007199254740992', '9007199254740993'])
      expect(await statusOf('/event', '', { body: `{"id":${id}}` })).toBe(400);
    expect(await statusOf('/event', '', { body: '{"id":9007199254740991}' })).toBe(201);
  });

  it('6: a promised payload, which would compare nothing, is refused', async () => {
    expect(await statusOf('/promised', 'k', { body: '{"amount":5}' })).toBe(400);
    expect(bank.charges).toBe(0);
  });

  it('7: a payload that JSON would write as nothing is refused', async () => {
    expect(await statusOf('/params', 'k', { body: '{"amount":"5"}' })).toBe(400);
    expect(bank.charges).toBe(0);
  });

  it('8: numbers beyond all numbers are told apart', async () => {
    expect(await statusOf('/pay', 'k', { body: '{"amount":1e999}' })).toBe(201);
    for (const amount of ['null', '-1e999', '"Infinity"'])
      expect(await statusOf('/pay', 'k', { body: `{"amount":${amount}}` })).toBe(422);
    expect((await send('/pay', 'k', { body: '{"amount":1e998}' })).replayed).toBe(true);
  });

  it('9: a tenant of the host has no answer of another one', async () => {
    const of = (tenant: string): Promise<string> =>
      raw(head('/tenant', `Host: ${tenant}.example.com`, 'Idempotency-Key: k', 'Content-Length: 2'), '{}');
    expect(await of('acme')).toMatch(/^HTTP\/1.1 201/);
    expect(await of('other')).toMatch(/^HTTP\/1.1 422/);
    expect(await of('acme')).toMatch(/Idempotency-Replayed: true/i);
  });

  it('10: that one client has an answer already is not what others get', async () => {
    // `fetch` would ask for no cache.
    const conditional = head('/read?id=1', 'Host: x', 'If-None-Match: *').replace('POST', 'GET');
    expect(await raw(conditional)).toMatch(/^HTTP\/1.1 200[^]*charge 1/);
    const other = await send('/read?id=1', '', { method: 'GET' });
    expect(other).toMatchObject({ status: 200, text: '{"read":"charge 1"}', replayed: true });
  });

  it('11: an interceptor that tries again runs one attempt, and none after its key was lost', async () => {
    bank.failures = 1;
    expect((await send('/retried', 'k')).text).toBe('{"paid":"charge 2"}');
    expect((await send('/retried', 'k')).replayed).toBe(true);
    bank.failures = 2;
    bank.hold();
    const lost = send('/retried', 'l');
    await eventually(() => expect(bank.charges).toBe(3));
    const once = http.app.get(OnceService);
    await once.forget(onceKey({ route: 'POST /retried@1', caller: 'ann', key: 'l' }), { force: true });
    bank.open = undefined;
    bank.release();
    await lost;
    expect(await statusOf('/retried', 'l')).toBe(201);
  });

  it.each(['/soothed', '/fine'])(
    '12: a failure that is answered as if it were none is not kept: %s',
    async (path) => {
      bank.failures = 1;
      expect((await send(path, 'k')).text).toMatch(/queued|fine/);
      expect(await send(path, 'k')).toMatchObject({ text: '{"paid":"charge 2"}', replayed: false });
      expect((await send(path, 'k')).replayed).toBe(true);
    },
  );

  it('13: another method of one handler is another request', async () => {
    await send('/any', 'k');
    for (const method of ['PUT', 'PATCH', 'DELETE'])
      expect(await statusOf('/any', 'k', { method })).toBe(422);
    expect(bank.charges).toBe(1);
  });

  it('14: a path in other letters is the same route', async () => {
    await send('/pay', 'k');
    const others = [await send('/p%61y', 'k'), await send('/PAY', 'k'), await send('/pay/', 'k')];
    for (const { status, replayed } of others) expect(status === 404 || replayed).toBe(true);
    expect(bank.charges).toBe(1);
  });

  it('15: two values at the place of the key are none', async () => {
    expect(await statusOf('/read?id=1&id=2', '', { method: 'GET' })).toBe(400);
    expect(await statusOf('/event', '', { body: '{"id":["a"]}' })).toBe(400);
    expect(bank.charges).toBe(0);
  });

  it('16: a key cannot be inherited', async () => {
    const body = '{"__proto__":{"id":"x"},"constructor":{"id":"x"}}';
    expect(await statusOf('/event', '', { body })).toBe(400);
    expect(bank.charges).toBe(0);
  });

  it('17: who has lost the right to call gets no answer that is kept', async () => {
    await send('/pay', 'k', { user: 'banned' });
    expect(await statusOf('/pay', 'k', { user: 'banned' })).toBe(403);
    await send('/event', '', { body: '{"id":"e"}' });
    expect(await statusOf('/event', '', { user: 'banned', body: '{"id":"e"}' })).toBe(403);
  });

  it('18: another version of a route has answers of its own', async () => {
    expect((await send('/versioned', 'k')).text).toBe('{"first":"charge 1"}');
    expect((await send('/versioned', 'k', { headers: { 'x-version': '2' } })).text).toBe(
      '{"second":"charge 2"}',
    );
  });

  it('19: a key in a trailer is none', async () => {
    const answer = await raw(
      head('/pay', 'Host: x', 'Transfer-Encoding: chunked', 'Trailer: Idempotency-Key'),
      '2\r\n{}\r\n0\r\nIdempotency-Key: k\r\n\r\n',
    );
    expect(answer).toMatch(/^HTTP\/1.1 400/);
    expect(bank.charges).toBe(0);
  });

  it('21: a key in quotes and the same bare are one key', async () => {
    await send('/pay', 'k-1');
    expect((await send('/pay', '"k-1"')).replayed).toBe(true);
    expect((await send('/pay', '"k\\"1"')).replayed).toBe(false);
    expect((await send('/pay', 'k"1')).replayed).toBe(true);
  });

  it.each(['"k', 'k k', '"k";a=1', '"k", "l"', '"a\\b"', 'k\u00e9', '""', 'x'.repeat(256)])(
    '22: %j is no key',
    async (key) => {
      expect((await send('/pay', key)).status).toBe(400);
      expect(bank.charges).toBe(0);
    },
  );

  it('23: a key of 255 characters is whole, and case counts', async () => {
    const long = 'x'.repeat(254);
    await send('/pay', `${long}a`);
    expect((await send('/pay', `${long}b`)).replayed).toBe(false);
    expect((await send('/pay', `${long}A`)).replayed).toBe(false);
  });

  it('24: the header twice is refused', async () => {
    const answer = await raw(
      head('/pay', 'Host: x', 'Idempotency-Key: a', 'Idempotency-Key: b', 'Content-Length: 2'),
      '{}',
    );
    expect(answer).toMatch(/^HTTP\/1.1 400/);
    expect(bank.charges).toBe(0);
  });

  it('25: a caller and a key cannot be moved into each other', async () => {
    await send('/pay', 'b"],["key","c', { user: 'a' });
    for (const [user, key] of [
      ['a"],["key","b', 'c'],
      ['a","b', 'c'],
    ] as const)
      expect((await send('/pay', key, { user })).replayed).toBe(false);
    expect(onceKey({ route: 'POST /pay', caller: ['a', 'b'], key: 'c' })).not.toBe(
      onceKey({ route: 'POST /pay', caller: 'a,b', key: 'c' }),
    );
  });

  it('26: a name twice counts as the handler sees it', async () => {
    await send('/pay', 'k', { body: '{"a":1,"a":2}' });
    expect((await send('/pay', 'k', { body: '{"a":2}' })).replayed).toBe(true);
    expect((await send('/pay', 'k', { body: '{"a":1}' })).status).toBe(422);
  });

  it('27: HEAD does not stand for GET', async () => {
    await send('/read?id=1', '', { method: 'GET' });
    expect([404, 422]).toContain((await send('/read?id=1', '', { method: 'HEAD' })).status);
    expect((await send('/read?id=1', '', { method: 'GET' })).replayed).toBe(true);
    expect(bank.charges).toBe(1);
  });

  it('28: of several paths of one handler one runs', async () => {
    await send('/a', 'k');
    await send('/b', 'k');
    expect((await send('/a', 'k')).replayed).toBe(true);
    expect(bank.charges).toBe(1);
  });

  it('29: of requests in one write on one connection one runs', async () => {
    const last = head('/pay', 'Host: x', 'Idempotency-Key: k', 'Content-Length: 2');
    const one = `${last.replace('Connection: close\r\n', '')}\r\n\r\n{}`;
    const answers = await raw(one + one + last, '{}');
    expect(answers.match(/HTTP\/1.1 (201|409)/g)).toHaveLength(3);
    expect(bank.charges).toBe(1);
  });

  it('30: Redis away at the end: the answer is given, and the retry never runs', async () => {
    await restart(SyncGuardTestingModule.forRoot());
    const testing = http.app.get(SyncGuardTesting);
    bank.hold();
    const first = send('/pay', 'k');
    await eventually(() => expect(bank.charges).toBe(1));
    testing.makeUnreachable();
    bank.release();
    expect(await first).toMatchObject({ status: 201, text: '{"paid":"charge 1"}' });
    testing.restore();
    await eventually(async () => expect((await send('/pay', 'k')).replayed).toBe(true));
    expect(bank.charges).toBe(1);
  });

  it('31: a process that stood still past its lease answers 409, and not over the next one', async () => {
    bank.hold();
    const first = send('/pay', 'k');
    await eventually(() => expect(bank.charges).toBe(1));
    const key = onceKey({ route: 'POST /pay', caller: 'ann', key: 'k' });
    await http.app.get(OnceService).forget(key, { force: true });
    const { release } = bank;
    bank.open = undefined;
    const second = await send('/pay', 'k');
    expect(second.text).toBe('{"paid":"charge 2"}');
    release();
    const late = await first;
    expect([late.status, (JSON.parse(late.text) as { code: string }).code]).toStrictEqual([409, 'OnceLost']);
    expect(await send('/pay', 'k')).toMatchObject({ replayed: true, text: second.text });
  });

  it('32: a record that somebody forged or moved to another key is no answer', async () => {
    const redis = await freshRedis();
    await restart(SyncGuardModule.forRoot({ redis: redis.url }));
    const admin = redis.client();
    await send('/pay', 'mine');
    const [stored] = (await admin.keys('*once*')) as [string];
    await send('/pay', 'other', { user: 'bob' });
    const theirs = (await admin.keys('*once*')).find((name) => name !== stored)!;
    await admin.copy(stored, theirs, 'REPLACE');
    const moved = await send('/pay', 'other', { user: 'bob' });
    expect([moved.status, moved.text.includes('charge 1')]).toStrictEqual([500, false]);
    for (const forged of ['once1 done', 'x', 'once1 done n 1 1 1 1 1 run - value 99 -\nkey{}']) {
      await admin.set(theirs, forged, 'PX', 60_000);
      expect((await send('/pay', 'other', { user: 'bob' })).status).toBe(500);
    }
    expect(bank.charges).toBe(2);
  });
});
