import 'reflect-metadata';
import {
  Body,
  Controller,
  Headers,
  type INestApplication,
  Logger,
  Post,
  UnauthorizedException,
} from '@nestjs/common';
import { days, RateLimit, SyncGuardModule, type SyncGuardOptions } from 'nestjs-syncguard';
import { listen } from '../support/adapters.js';
import { freshRedis } from '../support/redis.js';

Logger.overrideLogger(['error', 'warn']);

let judged = 0;

function judge(): never {
  judged++;
  throw new UnauthorizedException();
}

@Controller()
class Judges {
  @RateLimit('login')
  @Post('login')
  login(@Body() _body: unknown): void {
    judge();
  }

  @RateLimit('otp')
  @Post('otp')
  otp(@Body() _body: unknown): void {
    judge();
  }

  @RateLimit({ keyBy: 'headers.x-api-key', limit: 2, windowMs: days(1) })
  @Post('api-key')
  apiKey(@Headers('x-api-key') _key: string): string {
    return 'ok';
  }

  @RateLimit({ keyBy: ['ip', 'body.email'], limit: 2, windowMs: days(1) })
  @Post('own')
  own(): string {
    return 'ok';
  }
}

const SPELLINGS = [
  'ann@example.org',
  'ANN@example.org',
  'ａｎｎ@example.org',
  'ⓐnn@example.org',
  'ánn@example.org',
  'a\u0301nn@example.org',
  'an n@example.org',
  'ann\u200b@example.org',
  'ann\u00ad@example.org',
  `ann@example.org${'\u200b'.repeat(1_100)}`,
  `ann@example.org${'\u0301'.repeat(1_100)}`,
];

const DEEP = `{"email":${'['.repeat(9_000)}"ann"${']'.repeat(9_000)}}`;

describe.each(['express', 'fastify'] as const)('accounts, on %s', (adapter) => {
  let app: INestApplication | undefined;
  let url = '';
  let warn: jest.SpyInstance;
  beforeEach(() => {
    warn = jest.spyOn(Logger.prototype, 'warn').mockImplementation(() => {});
    judged = 0;
  });
  afterEach(async () => {
    await app?.close();
    app = undefined;
    warn.mockRestore();
  });

  async function start(limit: SyncGuardOptions['limit'] = {}, redis?: string): Promise<void> {
    const options: SyncGuardOptions = {
      limit: { address: 'headers.x-address', commandTimeoutMs: 5_000, ...limit },
    };
    const imports = [SyncGuardModule.forRoot(redis ? { ...options, redis } : options)];
    ({ app, url } = await listen(adapter, { imports, controllers: [Judges] }));
  }

  const codes = (): string[] => warn.mock.calls.map(([message]) => String(message).split(':')[0] as string);

  async function send(
    path: string,
    body: string,
    headers: Record<string, string> = {},
    type = 'application/json',
  ): Promise<number> {
    const answer = await fetch(`${url}/${path}`, {
      method: 'POST',
      headers: { 'content-type': type, 'x-address': '203.0.113.7', ...headers },
      body,
    });
    await answer.text();
    return answer.status;
  }

  const email = (value: unknown): string => JSON.stringify({ email: value });

  it('one account in many spellings has one count, from one address, also in Redis', async () => {
    await start({}, (await freshRedis()).url);
    for (const each of SPELLINGS) await send('login', email(each));
    expect(judged).toBe(5);
  });

  it('one account in many spellings has one count, from many addresses', async () => {
    await start();
    for (let i = 0; i < 23; i++) {
      const spelling = `${SPELLINGS[i % SPELLINGS.length]}${'\u200c'.repeat(i)}`;
      await send('otp', email(spelling), { 'x-address': `198.51.100.${i}` });
    }
    expect(judged).toBe(20);
  });

  it('a list or an object has one count, in whatever form it comes', async () => {
    await start();
    const form = 'application/x-www-form-urlencoded';
    for (let i = 0; i < 4; i++) await send('otp', `email=ann@example.org&email=r${i}`, {}, form);
    for (let i = 0; i < 4; i++) await send('otp', email(['ann@example.org', `r${i}`]));
    for (let i = 0; i < 4; i++) await send('otp', email({ in: ['ann@example.org', i] }));
    expect(judged).toBe(5);
    expect(codes()).toEqual(['RATE_LIMIT_NO_TEXT']);
    expect(await send('otp', email('ann@example.org'))).toBe(401);
  });

  it('a list of one counts as what it holds', async () => {
    await start();
    const values = ['ann@example.org', ['ann@example.org'], [' ANN@example.org'], ['ánn@example.org']];
    for (const value of [...values, ...values]) await send('otp', email(value));
    expect(judged).toBe(5);
    expect(await send('otp', email(7))).toBe(401);
    for (const value of ['7', [7], ['7'], 7.0, '７']) await send('otp', email(value));
    expect(judged).toBe(10);
    expect(codes()).toEqual([]);
  });

  it.each([
    ['a list of 9,000 lists', DEEP],
    ['`null` between colons', email('ann:null:')],
    ['`undefined` between slashes', email('/undefined/')],
    ['an object text', email('x:[object Object]')],
    ['a lone surrogate', '{"email":"a\\ud800"}'],
    ['a long text', email('é'.repeat(5_000))],
    ['a list of nothing', email([])],
  ])('%s counts', async (_, body) => {
    await start();
    const statuses = [];
    for (let i = 0; i < 7; i++) statuses.push(await send('otp', body));
    expect(statuses).toEqual([401, 401, 401, 401, 429, 429, 429]);
    expect(judged).toBe(5);
  });

  it('any number of accounts from one address have a limit under `otp`', async () => {
    await start();
    for (let i = 0; i < 53; i++) await send('otp', email(`victim-${i}@example.org`));
    expect(judged).toBe(50);
  });

  it('keys in headers that differ in case are two keys', async () => {
    await start();
    const by = (key: string): Promise<number> => send('api-key', '{}', { 'x-api-key': key });
    expect([await by('Key'), await by('Key'), await by('Key'), await by('key')]).toEqual([
      201, 201, 429, 201,
    ]);
  });

  it('accents count in a policy that is no preset', async () => {
    await start();
    const by = (text: string): Promise<number> => send('own', email(text));
    expect([await by('ann'), await by('Ann '), await by('ANN'), await by('ánn')]).toEqual([
      201, 201, 429, 201,
    ]);
  });

  it('`normalize` gets what the client sent, and what it gives counts', async () => {
    const seen: unknown[] = [];
    await start({
      normalize: (value, part) => {
        seen.push([value, part]);
        return typeof value === 'string' ? value.replace(/\+[^@]*@/, '@') : undefined;
      },
    });
    for (const text of ['ann+1@example.org', 'ann+2@example.org', 'ann@example.org'])
      await send('own', email(text));
    expect(await send('own', email(' ann@example.org'))).toBe(201);
    expect(await send('own', email('ann+3@example.org'))).toBe(429);
    expect(seen[0]).toEqual(['ann+1@example.org', 'body.email']);
    expect([
      await send('own', email({})),
      await send('own', email([1, 2])),
      await send('own', email([])),
    ]).toEqual([201, 201, 429]);
  });
});
