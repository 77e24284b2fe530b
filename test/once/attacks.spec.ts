import { connect } from 'node:net';
import {
  type CanActivate,
  Body,
  Controller,
  type ExecutionContext,
  Get,
  Injectable,
  Post,
  Res,
} from '@nestjs/common';
import { APP_GUARD } from '@nestjs/core';
import { currentOnce, Once, onceKey, OnceService, SyncGuardModule } from 'nestjs-syncguard';
import { SyncGuardTesting, SyncGuardTestingModule } from 'nestjs-syncguard/testing';
import { eventually } from '../support/eventually.js';
import { freshRedis } from '../support/redis.js';
import { type HttpApp, listen } from '../support/adapters.js';

@Injectable()
class Bank {
  charges: string[] = [];
  open: Promise<void> | undefined;
  release = (): void => {};

  hold(): void {
    this.open = new Promise((resolve) => (this.release = resolve));
  }

  async charge(): Promise<string> {
    this.charges.push(currentOnce()?.fence ?? 'none');
    await this.open;
    return `charge ${this.charges.length}`;
  }
}

@Injectable()
class Login implements CanActivate {
  canActivate(context: ExecutionContext): boolean {
    const request = context.switchToHttp().getRequest<{ headers: Record<string, string>; user?: unknown }>();
    request.user = { id: request.headers['x-user'] };
    return true;
  }
}

@Controller()
class Shop {
  constructor(private readonly bank: Bank) {}

  @Once()
  @Post('pay')
  async pay(@Body() _body: unknown): Promise<object> {
    return { paid: await this.bank.charge() };
  }

  @Once()
  @Post('refund')
  async refund(): Promise<object> {
    return { refunded: await this.bank.charge() };
  }

  @Once()
  @Post(['a', 'b'])
  async either(): Promise<object> {
    return { either: await this.bank.charge() };
  }

  @Once({ key: 'query.id' })
  @Get('read')
  async read(): Promise<object> {
    return { read: await this.bank.charge() };
  }

  @Once({ headers: ['set-cookie', 'authorization', 'www-authenticate'] })
  @Post('session')
  async session(
    @Res({ passthrough: true }) res: { header(name: string, value: string): unknown },
  ): Promise<object> {
    res.header('Set-Cookie', 'session=ann');
    res.header('WWW-Authenticate', 'x');
    return { session: await this.bank.charge() };
  }
}

/** Tricks by which somebody might get a stranger's answer, or have a body run twice. */
describe.each(['express', 'fastify'] as const)('tricks against @Once() on %s', (adapter) => {
  let http: HttpApp;
  let bank: Bank;
  const start = async (root = SyncGuardModule.forRoot()): Promise<void> => {
    http = await listen(
      adapter,
      { imports: [root], controllers: [Shop], providers: [Bank, { provide: APP_GUARD, useClass: Login }] },
      undefined,
      (app) => app.useLogger(false),
    );
    bank = http.app.get(Bank);
  };
  beforeEach(() => start());
  afterEach(async () => {
    bank.release();
    await http.app.close();
  });

  const send = async (
    path: string,
    key: string,
    { user = 'ann', body = '{}', method = 'POST' }: { user?: string; body?: string; method?: string } = {},
  ) => {
    const response = await fetch(http.url + path, {
      method,
      headers: {
        'content-type': 'application/json',
        'x-user': user,
        ...(key ? { 'idempotency-key': key } : {}),
      },
      ...(method === 'POST' ? { body } : {}),
    });
    const text = await response.text();
    return {
      status: response.status,
      text,
      replayed: response.headers.get('idempotency-replayed') === 'true',
      headers: response.headers,
    };
  };

  /** Sends bytes as they are, and resolves to all that comes back until the server closes. */
  const raw = (bytes: string): Promise<string> =>
    new Promise((resolve, reject) => {
      const socket = connect(Number(new URL(http.url).port), '127.0.0.1', () => socket.write(bytes));
      let all = '';
      socket.on('data', (chunk: Buffer) => (all += chunk.toString()));
      socket.on('close', () => resolve(all)).on('error', reject);
    });
  const requestOf = (headers: string, body = '{}', path = '/pay'): string =>
    `POST ${path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nX-User: ann\r\n${headers}Content-Length: ${Buffer.byteLength(body)}\r\n\r\n${body}`;

  it('1: a key in quotes and the same bare are one key', async () => {
    await send('/pay', 'k-1');
    expect((await send('/pay', '"k-1"')).replayed).toBe(true);
    expect((await send('/pay', '"k\\"1"')).replayed).toBe(false);
    expect((await send('/pay', 'k"1')).replayed).toBe(true);
  });

  it.each(['"k', 'k k', '"k";a=1', '"k", "l"', '"a\\b"', 'k\u00e9', '""', 'x'.repeat(256)])(
    '2: %j is no key',
    async (key) => {
      expect((await send('/pay', key)).status).toBe(400);
      expect(bank.charges).toHaveLength(0);
    },
  );

  it('3: a key of 255 characters is whole, and case counts', async () => {
    const long = 'x'.repeat(254);
    await send('/pay', `${long}a`);
    expect((await send('/pay', `${long}b`)).replayed).toBe(false);
    expect((await send('/pay', `${long}A`)).replayed).toBe(false);
  });

  it('4: the header twice is refused', async () => {
    const answer = await raw(requestOf('Connection: close\r\nIdempotency-Key: a\r\nIdempotency-Key: b\r\n'));
    expect(answer).toMatch(/^HTTP\/1.1 400/);
    expect(bank.charges).toHaveLength(0);
  });

  it('5: another caller gets an answer of its own', async () => {
    await send('/pay', 'k');
    expect(await send('/pay', 'k', { user: 'bob' })).toMatchObject({
      replayed: false,
      text: '{"paid":"charge 2"}',
    });
  });

  it('6: a caller and a key cannot be moved into each other', async () => {
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

  it('7: another route gets an answer of its own', async () => {
    await send('/pay', 'k');
    expect((await send('/refund', 'k')).text).toBe('{"refunded":"charge 2"}');
  });

  it('8: the order of names and the form of numbers are one payload', async () => {
    await send('/pay', 'k', { body: '{"a":1,"b":{"c":2,"d":[1]}}' });
    const again = await send('/pay', 'k', { body: '{ "b":{"d":[1.0],"c":2e0}, "a":1 }' });
    expect(again.replayed).toBe(true);
  });

  it('9: a name twice counts as the handler sees it', async () => {
    await send('/pay', 'k', { body: '{"a":1,"a":2}' });
    expect((await send('/pay', 'k', { body: '{"a":2}' })).replayed).toBe(true);
    expect((await send('/pay', 'k', { body: '{"a":1}' })).status).toBe(422);
  });

  it('10: another payload is refused, also one that differs in a list, a type or an own prototype', async () => {
    await send('/pay', 'k', { body: '{"to":["a","b"]}' });
    for (const body of [
      '{"to":["a,b"]}',
      '{"to":["b","a"]}',
      '{"to":{"0":"a","1":"b"}}',
      '{"to":["a","b"],"x":null}',
    ])
      expect((await send('/pay', 'k', { body })).status).toBe(422);
    expect((await send('/pay?admin=1', 'k', { body: '{"to":["a","b"]}' })).status).toBe(422);
    expect(bank.charges).toHaveLength(1);
  });

  it('11: HEAD does not stand for GET', async () => {
    await send('/read?id=1', '', { method: 'GET' });
    expect([404, 422]).toContain((await send('/read?id=1', '', { method: 'HEAD' })).status);
    expect((await send('/read?id=1', '', { method: 'GET' })).replayed).toBe(true);
    expect(bank.charges).toHaveLength(1);
  });

  it('12: of several paths of one handler one runs', async () => {
    await send('/a', 'k');
    await send('/b', 'k');
    expect((await send('/a', 'k')).replayed).toBe(true);
    expect(bank.charges).toHaveLength(1);
  });

  it('13: cookies and credentials are not replayed, even if named', async () => {
    expect((await send('/session', 'k')).headers.get('set-cookie')).toBe('session=ann');
    const again = await send('/session', 'k');
    expect(again.replayed).toBe(true);
    for (const name of ['set-cookie', 'authorization', 'www-authenticate'])
      expect(again.headers.get(name)).toBeNull();
  });

  it.each(['before the answer', 'at once'])(
    '14: a client that hangs up %s has not run it twice',
    async (when) => {
      bank.hold();
      const socket = connect(Number(new URL(http.url).port), '127.0.0.1', () => {
        socket.write(requestOf('Idempotency-Key: k\r\n'));
        if (when === 'at once') socket.end();
      });
      socket.on('error', () => {});
      await eventually(() => expect(bank.charges).toHaveLength(1));
      socket.destroy();
      bank.release();
      await eventually(async () =>
        expect(await send('/pay', 'k')).toMatchObject({ replayed: true, text: '{"paid":"charge 1"}' }),
      );
      expect(bank.charges).toHaveLength(1);
    },
  );

  it('15: of requests in one write on one connection one runs', async () => {
    const one = requestOf('Idempotency-Key: k\r\n');
    const last = requestOf('Connection: close\r\nIdempotency-Key: k\r\n');
    const answers = await raw(one + one + last);
    expect(answers.match(/HTTP\/1.1 (201|409)/g)).toHaveLength(3);
    expect(bank.charges).toHaveLength(1);
  });

  it('16: while Redis is away nothing runs, and afterwards it runs once', async () => {
    await http.app.close();
    await start(SyncGuardTestingModule.forRoot());
    const testing = http.app.get(SyncGuardTesting);
    testing.makeUnreachable();
    expect((await send('/pay', 'k')).status).toBe(503);
    expect(bank.charges).toHaveLength(0);
    testing.restore();
    expect((await send('/pay', 'k')).status).toBe(201);
  });

  it('17: Redis away at the end: the answer is given, and the retry never runs', async () => {
    await http.app.close();
    await start(SyncGuardTestingModule.forRoot());
    const testing = http.app.get(SyncGuardTesting);
    bank.hold();
    const first = send('/pay', 'k');
    await eventually(() => expect(bank.charges).toHaveLength(1));
    testing.makeUnreachable();
    bank.release();
    expect(await first).toMatchObject({ status: 201, text: '{"paid":"charge 1"}' });
    testing.restore();
    await eventually(async () => expect((await send('/pay', 'k')).replayed).toBe(true));
    expect(bank.charges).toHaveLength(1);
  });

  it('18: a process that stood still past its lease answers 409, and not over the next one', async () => {
    bank.hold();
    const first = send('/pay', 'k');
    await eventually(() => expect(bank.charges).toHaveLength(1));
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
    expect(bank.charges[1]! > bank.charges[0]!).toBe(true);
  });

  it('19: a record that somebody forged or moved to another key is no answer', async () => {
    await http.app.close();
    const redis = await freshRedis();
    await start(SyncGuardModule.forRoot({ redis: redis.url }));
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
    expect(bank.charges).toHaveLength(2);
  });

  it('20: forgetting and settling while calls come lets no two bodies run beside each other', async () => {
    const once = http.app.get(OnceService);
    const key = onceKey({ route: 'POST /pay', caller: 'ann', key: 'k' });
    bank.hold();
    const calls = Array.from({ length: 10 }, () => send('/pay', 'k'));
    await eventually(() => expect(bank.charges).toHaveLength(1));
    expect(await once.forget(key)).toStrictEqual({ ok: false, reason: 'running' });
    expect(await once.settle(key, { value: 1 })).toStrictEqual({ ok: false, reason: 'running' });
    bank.release();
    await Promise.all(calls);
    expect(bank.charges).toHaveLength(1);
    expect(await once.settle(key, { value: 'forged' })).toStrictEqual({ ok: false, reason: 'already_done' });
    expect((await send('/pay', 'k')).text).toBe('{"paid":"charge 1"}');
  });
});
