import 'reflect-metadata';
import { request as httpRequest } from 'node:http';
import {
  type CanActivate,
  Controller,
  type ExecutionContext,
  Get,
  type INestApplication,
  Injectable,
  Logger,
  Post,
  UnauthorizedException,
  UseGuards,
} from '@nestjs/common';
import { APP_GUARD } from '@nestjs/core';
import {
  type ContextResolver,
  minutes,
  RateLimit,
  RateLimitGuard,
  SyncGuardModule,
  type SyncGuardOptions,
} from 'nestjs-syncguard';
import { freshRedis, workerRedis } from '../support/redis.js';
import { listen } from '../support/adapters.js';

Logger.overrideLogger(['error', 'warn']);

const TWO = { limit: 2, windowMs: minutes(1) };

class ObjectId {
  constructor(private readonly hex: string) {}
  toHexString(): string {
    return this.hex;
  }
}

class Uuid {
  constructor(private readonly text: string) {}
  toString(): string {
    return this.text;
  }
}

/** Who is authenticated, as several libraries put it on the request. */
const USERS: Readonly<Record<string, (name: string) => unknown>> = {
  id: (id) => ({ id, role: 'user' }),
  sub: (sub) => ({ sub, role: 'user' }),
  userId: (userId) => ({ userId, username: 'somebody' }),
  _id: (_id) => ({ _id, name: 'somebody' }),
  uid: (uid) => ({ uid }),
  number: (name) => ({ id: name.length }),
  'an ObjectId': (name) => ({ _id: new ObjectId(name) }),
  'an object with a text': (name) => ({ id: new Uuid(name) }),
  bytes: (name) => ({ _id: Buffer.from(name) }),
  'the id itself': (name) => name,
};

interface Request {
  readonly headers: Readonly<Record<string, string>>;
  user?: unknown;
}

@Injectable()
class Auth implements CanActivate {
  canActivate(context: ExecutionContext): boolean {
    const request = context.switchToHttp().getRequest<Request>();
    const { 'x-user': name, 'x-shape': shape = 'id', 'x-api-key': apiKey } = request.headers;
    if (apiKey !== undefined && apiKey !== 'real') throw new UnauthorizedException();
    if (shape === 'nothing') request.user = { email: 'ann@example.org' };
    else if (shape === 'objects') request.user = { id: {}, sub: [name], _id: null, uid: '' };
    else if (name) request.user = USERS[shape]?.(name);
    return true;
  }
}

@Injectable()
class Tenant implements ContextResolver<string | undefined> {
  resolve(context: ExecutionContext): string | undefined {
    return context.switchToHttp().getRequest<Request>().headers['x-tenant'];
  }
}

@UseGuards(Auth)
@Controller()
class Routes {
  @RateLimit({ ...TWO, keyBy: 'user' })
  @Get('user')
  user(): void {}

  @RateLimit({ ...TWO, keyBy: 'ip' })
  @Get('ip')
  ip(): void {}

  @RateLimit({ ...TWO, keyBy: ['ip', 'body.email'] })
  @Post('form')
  form(): void {}

  @RateLimit({ ...TWO, name: 'account', keyBy: (context) => accountOf(context) })
  @Get('account')
  account(): void {}

  @RateLimit({
    ...TWO,
    ask: 'before',
    keyBy: (context) => new ObjectId(String(headerOf(context, 'x-user'))) as never,
  })
  @Get('function')
  byFunction(): void {}
}

@Controller()
class Api {
  @UseGuards(Auth)
  @RateLimit([
    { ...TWO, keyBy: 'headers.x-api-key' },
    { keyBy: 'ip', count: 'failure', temp: { windowMs: minutes(1), threshold: 3, blockMs: minutes(1) } },
  ])
  @Get('api')
  api(): void {}
}

/** Builds a key from the header `x-account`, as an app may that does not check whether the header is there. */
function accountOf(context: ExecutionContext): string {
  const account = String(headerOf(context, 'x-account'));
  const shapes: Record<string, string> = {
    text: account,
    path: `account:${account}`,
    part: `account:${account}:login`,
  };
  return shapes[String(headerOf(context, 'x-shape'))] ?? '';
}

const headerOf = (context: ExecutionContext, name: string): string | undefined =>
  context.switchToHttp().getRequest<Request>().headers[name];

@Controller()
class Open {
  @Get('a')
  a(): void {}

  @Get('items/:id')
  item(): void {}
}

@Controller({ host: 'one.example.org' })
class HostOne {
  @RateLimit(TWO)
  @Get('hosted')
  hosted(): void {}
}

@Controller({ host: ':tenant.example.net' })
class HostAny {
  @RateLimit(TWO)
  @Get('hosted-any')
  hosted(): void {}
}

@Controller({ host: 'two.example.org' })
class HostTwo {
  @RateLimit(TWO)
  @Get('hosted')
  hosted(): void {}
}

describe.each(['express', 'fastify'] as const)('who is counted, on %s', (adapter) => {
  let app: INestApplication | undefined;
  let url = '';
  let warn: jest.SpyInstance;
  beforeEach(() => {
    warn = jest.spyOn(Logger.prototype, 'warn').mockImplementation(() => {});
  });
  afterEach(async () => {
    await app?.close();
    app = undefined;
    warn.mockRestore();
  });

  async function start(
    options: SyncGuardOptions = {},
    { controllers = [Routes], global = false }: { controllers?: (typeof Routes)[]; global?: boolean } = {},
  ): Promise<void> {
    const guard = global ? [{ provide: APP_GUARD, useClass: RateLimitGuard }] : [];
    ({ app, url } = await listen(adapter, {
      imports: [SyncGuardModule.forRoot(options)],
      controllers,
      providers: [Tenant, ...guard],
    }));
  }

  const get = async (path: string, headers: Record<string, string> = {}): Promise<number> =>
    (await fetch(`${url}/${path}`, { headers })).status;
  const statuses = async (path: string, many: Record<string, string>[]): Promise<number[]> => {
    const seen: number[] = [];
    for (const headers of many) seen.push(await get(path, headers));
    return seen;
  };
  const codes = (): string[] =>
    warn.mock.calls
      .map(([message]) => /^RATE_LIMIT_(?!ASK)\w+/.exec(String(message))?.[0] ?? '')
      .filter(Boolean);

  describe("'user'", () => {
    it.each(Object.keys(USERS))('is known by %s', async (shape) => {
      await start();
      const of = (name: string) => ({ 'x-user': name, 'x-shape': shape });
      expect(await statuses('user', [of('ann'), of('ann'), of('ann'), of('barbara'), of('barbara')])).toEqual(
        [200, 200, 429, 200, 200],
      );
      expect(codes()).toEqual([]);
    });

    it.each(['nothing', 'objects'])(
      'who has no id (%s) counts by address, with one warning',
      async (shape) => {
        await start();
        const of = (name: string) => ({ 'x-user': name, 'x-shape': shape });
        expect(await statuses('user', [of('ann'), of('bob'), of('cid')])).toEqual([200, 200, 429]);
        expect(codes()).toEqual(['RATE_LIMIT_NO_USER']);
      },
    );

    it('who is not there at all counts by address without a warning', async () => {
      await start();
      expect(await statuses('user', [{}, {}, {}])).toEqual([200, 200, 429]);
      expect(codes()).toEqual([]);
    });

    it('is what `limit.user` says, a function or a provider', async () => {
      for (const user of [(context: ExecutionContext) => headerOf(context, 'x-tenant'), Tenant]) {
        await start({ limit: { user } });
        const of = (tenant: string) => ({ 'x-tenant': tenant, 'x-user': 'ann' });
        expect(await statuses('user', [of('a'), of('a'), of('a'), of('b')])).toEqual([200, 200, 429, 200]);
        expect(codes()).toEqual([]);
        await app?.close();
      }
    });

    it('a `keyBy` function may give an object with an id of its own', async () => {
      await start();
      const of = (name: string) => ({ 'x-user': name });
      expect(await statuses('function', [of('a'), of('a'), of('a'), of('b')])).toEqual([200, 200, 429, 200]);
    });
  });

  describe('a `keyBy` function that builds its key from a missing value', () => {
    it.each(['text', 'path', 'part'])('counts by address: %s', async (shape) => {
      await start({ limit: { address: 'headers.cf-connecting-ip' } });
      const from = (address: string, account?: string) => ({
        ...{ 'cf-connecting-ip': address, 'x-shape': shape },
        ...(account === undefined ? {} : { 'x-account': account }),
      });
      const [one, other] = ['203.0.113.7', '203.0.113.8'] as const;
      expect(await statuses('account', [from(one, 'a'), from(other, 'a'), from(one, 'a')])).toEqual([
        200, 200, 429,
      ]);
      expect(await statuses('account', [from(one), from(one), from(one), from(other)])).toEqual([
        200, 200, 429, 200,
      ]);
    });
  });

  describe('limit.address', () => {
    const by = (address: string) => ({ 'cf-connecting-ip': address });

    it.each([
      ["'headers.cf-connecting-ip'", 'headers.CF-Connecting-IP'],
      ['a function', (context: ExecutionContext) => headerOf(context, 'cf-connecting-ip')],
    ] as const)('%s: one address, IPv6 by its /64', async (_, address) => {
      await start({ limit: { address } });
      const walk = Array.from({ length: 12 }, (__, i) => by(`2001:db8:1:2::${(i + 1).toString(16)}`));
      expect((await statuses('ip', walk)).filter((status) => status === 200)).toHaveLength(2);
      expect(await statuses('ip', [by('2001:db8:1:3::1'), by('203.0.113.7'), by('203.0.113.8')])).toEqual([
        200, 200, 200,
      ]);
      expect(await statuses('ip', [by(' 203.0.113.7'), by('::ffff:203.0.113.7')])).toEqual([200, 429]);
      expect(codes()).toEqual([]);
    });

    it('what is no single address counts by that of the connection, with one warning', async () => {
      await start({ limit: { address: 'headers.cf-connecting-ip' } });
      const odd = [by('1.2.3.4, 5.6.7.8'), by('example.org'), {}, by('1.2.3'), by('999.1.1.1')];
      expect(await statuses('ip', odd)).toEqual([200, 200, 429, 429, 429]);
      expect(codes()).toEqual(['RATE_LIMIT_NO_ADDRESS']);
    });

    it('holds also where another part falls back to the address', async () => {
      await start({ limit: { address: 'headers.cf-connecting-ip' } });
      const calls = [by('203.0.113.7'), by('203.0.113.7'), by('203.0.113.7'), by('203.0.113.8')];
      expect(await statuses('user', calls)).toEqual([200, 200, 429, 200]);
    });
  });

  it('a body without the field of the key: one warning', async () => {
    await start();
    const ask = async (body: object): Promise<number> => {
      const headers = { 'content-type': 'application/json' };
      return (await fetch(`${url}/form`, { method: 'POST', headers, body: JSON.stringify(body) })).status;
    };
    expect([await ask({}), await ask({ email: 'ann@example.org' })]).toEqual([201, 201]);
    expect(codes()).toEqual([]);
    expect([await ask({ mail: 'ann' }), await ask({ mail: 'bob' })]).toEqual([201, 429]);
    expect(codes()).toEqual(['RATE_LIMIT_NO_FIELD']);
  });

  it('a multipart form is not parsed when a limit looks for its field: one warning', async () => {
    await start();
    const form = new FormData();
    form.set('email', 'ann@example.org');
    const answers = [];
    for (let i = 0; i < 3; i++)
      answers.push((await fetch(`${url}/form`, { method: 'POST', body: form })).status);
    // Fastify answers 415 by itself, and asks no guard, unless a plugin reads forms.
    expect(answers).toEqual(adapter === 'express' ? [201, 201, 429] : [415, 415, 415]);
    expect(codes()).toEqual(adapter === 'express' ? ['RATE_LIMIT_BODY_NOT_PARSED'] : []);
  });

  it.each(['memory', 'redis'])("'route' counts each route apart under one policy (%s)", async (backend) => {
    const { port } = await freshRedis();
    for (const keyBy of ['route', ['ip', 'route'], ['user', 'route']] as const) {
      await start(
        {
          limits: { default: { name: `by ${[keyBy].flat().join()}`, ...TWO, keyBy } },
          ...(backend === 'redis' ? { redis: workerRedis().client({ port }) } : {}),
        },
        { controllers: [Open as never], global: true },
      );
      expect(await statuses('a', [{}, {}, {}])).toEqual([200, 200, 429]);
      expect([await get('items/1'), await get('items/2'), await get('items/3')]).toEqual([200, 200, 429]);
      await app?.close();
    }
  });

  it("'route' never says who: clients of one route count apart", async () => {
    await start(
      { limit: { address: 'headers.x-client' }, limits: { default: { ...TWO, keyBy: 'route' } } },
      { controllers: [Open as never], global: true },
    );
    const of = (address: string) => ({ 'x-client': address });
    const calls = ['192.0.2.1', '192.0.2.1', '192.0.2.1', '192.0.2.2'].map(of);
    expect(await statuses('a', calls)).toEqual([200, 200, 429, 200]);
  });

  it('controllers of different hosts count apart, by their template and not by what a client sends', async () => {
    // Fastify has one route of a method and path, whatever the host is.
    const controllers = adapter === 'express' ? [HostOne, HostTwo, HostAny] : [HostOne, HostAny];
    await start({}, { controllers: controllers as never });
    const ask = (host: string, path: string): Promise<number | undefined> =>
      new Promise((resolve, reject) => {
        httpRequest(`${url}/${path}`, { headers: { host } }, (response) => {
          response.resume();
          resolve(response.statusCode);
        })
          .on('error', reject)
          .end();
      });
    const seen = [];
    for (const host of ['one', 'one', 'one', 'two', 'two', 'two'])
      seen.push(await ask(`${host}.example.org`, 'hosted'));
    const ofTwo = adapter === 'express' ? [200, 200, 429] : [404, 404, 404];
    expect(seen).toEqual([200, 200, 429, ...ofTwo]);
    const made = [];
    for (const host of ['a', 'b', 'c']) made.push(await ask(`${host}.example.net`, 'hosted-any'));
    expect(made).toEqual([200, 200, 429]);
  });

  it('made-up API keys have a bucket each: their refusals count by address', async () => {
    await start({}, { controllers: [Api] as never });
    const madeUp = Array.from({ length: 6 }, (_, i) => ({ 'x-api-key': `made-up-${i}` }));
    expect(await statuses('api', madeUp)).toEqual([401, 401, 401, 429, 429, 429]);
    expect(await get('api', { 'x-api-key': 'real' })).toBe(429);
  });
});
