import 'reflect-metadata';
import {
  Body,
  Controller,
  HttpCode,
  type INestApplication,
  Logger,
  Post,
  UnauthorizedException,
} from '@nestjs/common';
import { AbuseLimiterService, RateLimit, SyncGuardModule } from 'nestjs-syncguard';
import { listen } from '../support/adapters.js';
import { freshRedis } from '../support/redis.js';

Logger.overrideLogger(['error']);

interface Given {
  readonly email: string;
  readonly password: string;
}

@Controller()
class Accounts {
  constructor(private readonly limiter: AbuseLimiterService) {}

  @RateLimit('login')
  @HttpCode(200)
  @Post('login')
  login(@Body() { password }: Given): void {
    if (password !== 'right') throw new UnauthorizedException();
  }

  @HttpCode(200)
  @Post('reset')
  reset(@Body() { email }: Given): Promise<{ lifted: number }> {
    return this.limiter.lift('login', { 'body.email': email });
  }
}

const KINDS = (['express', 'fastify'] as const).flatMap((adapter) =>
  (['memory', 'redis'] as const).map((backend) => [adapter, backend] as const),
);

describe.each(KINDS)('a reset of a password, on %s and %s', (adapter, backend) => {
  let app: INestApplication;
  let url = '';
  beforeEach(async () => {
    const redis = backend === 'redis' ? { redis: (await freshRedis()).url } : {};
    const limit = { address: 'headers.x-address', commandTimeoutMs: 5_000 } as const;
    const imports = [SyncGuardModule.forRoot({ ...redis, limit })];
    ({ app, url } = await listen(adapter, { imports, controllers: [Accounts] }));
  });
  afterEach(() => app.close());

  const send = (path: string, body: object, address: string): Promise<Response> =>
    fetch(`${url}/${path}`, {
      method: 'POST',
      headers: { 'content-type': 'application/json', 'x-address': address },
      body: JSON.stringify(body),
    });
  const login = async (email: string, address: string, password = 'right'): Promise<number> =>
    (await send('login', { email, password }, address)).status;
  const lockOut = async (email: string, address: string): Promise<void> => {
    for (let i = 0; i < 5; i++) await login(email, address, 'wrong');
    expect(await login(email, address)).toBe(429);
  };

  it('lets its owner in at once, from each address that was locked out, and nobody else', async () => {
    const addresses = ['203.0.113.7', '2001:db8::7'];
    for (const address of addresses) await lockOut('ann@example.org', address);
    await lockOut('bob@example.org', '203.0.113.7');

    const reset = await send('reset', { email: ' Ann@Example.org' }, '198.51.100.1');
    expect(await reset.json()).toEqual({ lifted: 2 });
    for (const address of addresses) expect(await login('ann@example.org', address)).toBe(200);
    expect(await login('bob@example.org', '203.0.113.7')).toBe(429);

    // The count began afresh: four wrong passwords are let in, and the fifth locks out again.
    const statuses = [];
    for (let i = 0; i < 5; i++) statuses.push(await login('ann@example.org', '203.0.113.7', 'wrong'));
    expect(statuses).toEqual([401, 401, 401, 401, 429]);
  });
});
