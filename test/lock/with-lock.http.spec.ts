import 'reflect-metadata';
import {
  Controller,
  createParamDecorator,
  Get,
  HttpCode,
  HttpException,
  Injectable,
  type INestApplication,
  Param,
  Post,
  SetMetadata,
} from '@nestjs/common';
import { Reflector } from '@nestjs/core';
import { inspect } from 'node:util';
import {
  currentLock,
  Lock,
  type LockContext,
  LockService,
  SyncGuardModule,
  WithLock,
} from 'nestjs-syncguard';
import { eventually } from '../support/eventually.js';
import { freshRedis } from '../support/redis.js';
import { listen } from '../support/adapters.js';
import { upTo } from '../support/up-to.js';

const Marked = (text: string) => SetMetadata('mark', text);

@Injectable()
class Ledger {
  readonly paid = new Map<string, number>();

  @WithLock('ledger:{0}')
  async pay(
    id: string,
    amount = 1,
    @Lock() lock?: LockContext,
  ): Promise<{ fence: string | undefined; amount: number }> {
    this.paid.set(id, (this.paid.get(id) ?? 0) + amount);
    return { fence: lock?.fence, amount };
  }

  @WithLock((order: { id: string }) => `order:${order.id}`)
  async ship(order: { id: string }): Promise<string | undefined> {
    return order.id + (currentLock()?.fence ?? '');
  }

  @Marked('below')
  @WithLock('x', { ttlMs: 1_000 })
  async markedAbove(_a: string, _b: number): Promise<void> {}

  @WithLock('x')
  @Marked('below')
  async markedBelow(_a: string, _b: number): Promise<void> {}
}

const Caller = createParamDecorator(() => 'caller');

@Controller('orders')
class OrdersController {
  constructor(
    private readonly ledger: Ledger,
    private readonly locks: LockService,
  ) {}

  @Post(':id/pay')
  @HttpCode(202)
  @WithLock('order:{0}')
  async pay(@Param('id') id: string, @Caller() caller: string, @Lock() lock?: LockContext): Promise<object> {
    return { id, caller, fence: lock?.fence };
  }

  @WithLock('order:{0}', { timeoutMs: 0 })
  @Get(':id')
  async above(@Param('id') id: string): Promise<object> {
    return { id, key: currentLock()?.key };
  }

  @Get('held/:id')
  async held(@Param('id') id: string): Promise<unknown> {
    return this.locks.lock(() => this.above(id), { key: `order:${id}` });
  }

  @Get('busy/:id')
  async busy(@Param('id') id: string): Promise<unknown> {
    await this.locks.acquire({ key: `order:${id}`, ttlMs: 7_500 });
    return this.above(id);
  }

  @Get('lost/now')
  @WithLock('lost', { ttlMs: 20, autoExtend: false })
  async lost(): Promise<void> {
    await eventually(() => expect(() => currentLock()?.assertHeld()).toThrow());
  }

  @Get('teapot/now')
  @WithLock('teapot')
  async teapot(): Promise<void> {
    throw new HttpException('short and stout', 418);
  }

  @Get('empty/key')
  async emptyKey(): Promise<unknown> {
    return this.ledger.pay('');
  }
}

const shared = { controllers: [OrdersController], providers: [Ledger] };

describe.each(['express', 'fastify'] as const)('@WithLock() on %s', (adapter) => {
  let app: INestApplication;
  let url: string;
  beforeAll(async () => {
    ({ app, url } = await listen(adapter, {
      imports: [SyncGuardModule.forRoot({ shutdown: { drainMs: 0 } })],
      ...shared,
    }));
  });
  afterAll(() => app.close());
  const get = async (
    path: string,
  ): Promise<{ status: number; body: Record<string, unknown>; headers: Headers }> => {
    const response = await fetch(url + path);
    return {
      status: response.status,
      body: (await response.json()) as Record<string, unknown>,
      headers: response.headers,
    };
  };

  it('keeps route, status, parameters and custom parameters, and gives the lock last', async () => {
    const response = await fetch(`${url}/orders/7/pay`, { method: 'POST' });
    expect(response.status).toBe(202);
    expect(await response.json()).toStrictEqual({
      id: '7',
      caller: 'caller',
      fence: expect.stringMatching(/^\d{15}$/) as unknown,
    });
  });

  it('answers contention with 423, Retry-After and a body that names no key', async () => {
    const { status, body, headers } = await get('/orders/busy/9');
    expect(status).toBe(423);
    expect(headers.get('retry-after')).toEqual(upTo(8));
    expect(body).toStrictEqual({
      statusCode: 423,
      code: 'AcquisitionTimeout',
      message: expect.stringContaining('Somebody else holds the lock') as unknown,
      context: { timeoutMs: 0, retryAfter: upTo(8), retryAtMs: expect.any(Number) as unknown },
    });
  });

  it('answers a missing key part with 400', async () => {
    const { status, body } = await get('/orders/empty/key');
    expect(status).toBe(400);
    expect(body).toMatchObject({
      code: 'InvalidArgument',
      message: expect.stringContaining('{0}') as unknown,
    });
  });

  it('answers a lost lock and a nested one with 500', async () => {
    expect(await get('/orders/lost/now')).toMatchObject({ status: 500, body: { code: 'LockLost' } });
    expect(await get('/orders/held/3')).toMatchObject({ status: 500, body: { code: 'AlreadyHeld' } });
  });

  it('answers a key that another program uses with 500, and an outage with 503 that says when to try again', async () => {
    const redis = await freshRedis();
    await redis.client().set('syncguard:order:7', 'mine');
    const ask = async (url: string): Promise<Response> => {
      const other = await listen(adapter, {
        imports: [SyncGuardModule.forRoot({ redis: url, lock: { timeoutMs: 0 }, commandTimeoutMs: 200 })],
        ...shared,
      });
      const response = await fetch(`${other.url}/orders/7`);
      await other.app.close();
      return response;
    };
    const foreign = await ask(redis.url);
    expect(foreign.status).toBe(500);
    expect(await foreign.json()).toMatchObject({ code: 'InvalidArgument' });
    const away = await ask('redis://127.0.0.1:1');
    expect([away.status, away.headers.get('retry-after')]).toStrictEqual([503, '1']);
    expect(await away.json()).toMatchObject({ code: 'ServiceUnavailable', context: { retryAfter: 1 } });
  });

  it("leaves the user's exceptions to Nest", async () => {
    expect(await get('/orders/teapot/now')).toMatchObject({
      status: 418,
      body: { message: 'short and stout' },
    });
  });
});

describe('@WithLock() on providers', () => {
  let app: INestApplication;
  let ledger: Ledger;
  beforeEach(async () => {
    ({ app } = await listen('express', {
      imports: [SyncGuardModule.forRoot({ redis: (await freshRedis()).url })],
      ...shared,
    }));
    ledger = app.get(Ledger);
  });
  afterEach(() => app.close());

  it('puts the lock at its parameter, also when earlier ones are left out', async () => {
    expect(await ledger.pay('7')).toStrictEqual({
      fence: expect.stringMatching(/^\d{15}$/) as unknown,
      amount: 1,
    });
  });

  it('takes the key from a function of typed arguments', async () => {
    expect(await ledger.ship({ id: '1' })).toMatch(/^1\d{15}$/);
  });

  it('does not show the service in what is logged or serialised', () => {
    expect(
      Object.getOwnPropertySymbols(ledger).filter(
        (symbol) => Object.getOwnPropertyDescriptor(ledger, symbol)?.enumerable,
      ),
    ).toStrictEqual([]);
    expect(inspect(ledger, { depth: 5 })).not.toContain('LockService');
  });

  it('keeps name, length and metadata, whichever decorator is above', () => {
    const reflector = app.get(Reflector);
    for (const name of ['markedAbove', 'markedBelow'] as const) {
      const method = ledger[name] as (...args: unknown[]) => unknown;
      expect([method.name, method.length, reflector.get('mark', method)]).toStrictEqual([name, 2, 'below']);
    }
    expect(ledger.pay.length).toBe(1);
  });

  it('passes errors on as the same instance', async () => {
    const error = new Error('mine');
    jest.spyOn(ledger.paid, 'set').mockImplementation(() => {
      throw error;
    });
    await expect(ledger.pay('7')).rejects.toBe(error);
  });
});

describe('@WithLock() when a class is defined', () => {
  it('names the decorator, the class and the method in errors of options', () => {
    const on = (options: object) => (): void => {
      class Orders {
        @WithLock('x', options as never)
        async pay(): Promise<void> {}
      }
      void Orders;
    };
    expect(on({ ttl: 5 })).toThrow(
      /^@WithLock\(\) on Orders\.pay: options\.ttl is not an option\. Did you mean ttlMs\?/,
    );
    expect(on({ ttlMs: 0 })).toThrow(
      /^@WithLock\(\) on Orders\.pay: options\.ttlMs must be an integer from 1/,
    );
  });

  it('refuses what is not an async method', () => {
    expect(() => WithLock('x')({}, 'field', undefined as never)).toThrow(/not a method/);
    class Static {}
    expect(() => WithLock('x')(Static, 'run', { value: async () => {} })).toThrow(/static method/);
    const generator = { value: function* () {} } as never;
    expect(() => WithLock('x')({}, 'stream', generator)).toThrow(/generator/);
  });
});
