import 'reflect-metadata';
import { type ArgumentsHost, Catch, type Provider, UseFilters, UseGuards } from '@nestjs/common';
import { APP_GUARD } from '@nestjs/core';
import {
  BaseWsExceptionFilter,
  MessageBody,
  SubscribeMessage,
  WebSocketGateway,
  WsException,
} from '@nestjs/websockets';
import {
  minutes,
  RateLimit,
  RateLimitGuard,
  SkipRateLimit,
  SyncGuardModule,
  type SyncGuardOptions,
} from 'nestjs-syncguard';
import { interval, map, type Observable, of } from 'rxjs';
import { type SocketApp, socketApp } from './apps/socket-app.js';
import { NEST_VERSION } from './apps/nest-version.js';
import { tryAgainUpTo, upTo } from '../support/up-to.js';

const TWO = { limit: 2, windowMs: minutes(1) };
const PAYLOAD = {
  status: 'error',
  statusCode: 429,
  code: 'RateLimited',
  message: tryAgainUpTo(60),
  context: { retryAfter: upTo(60), retryAtMs: expect.any(Number) as unknown },
};

@WebSocketGateway()
class Chat {
  @SubscribeMessage('say')
  @RateLimit(TWO)
  say(@MessageBody() text: string): string {
    return text;
  }

  @RateLimit({ ...TWO, keyBy: 'body.email', name: 'by-account' })
  @SubscribeMessage('by-account')
  byAccount(): string {
    return 'fine';
  }

  @SubscribeMessage('login')
  @RateLimit('login')
  login(@MessageBody() { password }: { password: string }): Observable<string> {
    if (password !== 'correct') throw new WsException({ status: 401, message: 'no' });
    return of('token');
  }

  @SubscribeMessage({ cmd: 'one' })
  @RateLimit(TWO)
  one(): string {
    return 'one';
  }

  @SubscribeMessage({ cmd: 'two' })
  @RateLimit(TWO)
  two(): string {
    return 'two';
  }

  @SubscribeMessage('dear')
  @RateLimit({ ...TWO, name: 'dear', cost: () => 3 })
  dear(): string {
    return 'never';
  }

  /** Never ends: only its first item shows that it was no failure. */
  @SubscribeMessage('feed')
  @RateLimit({ ...TWO, count: 'failure' })
  feed(): Observable<number> {
    return interval(5).pipe(map((n) => n));
  }

  @SubscribeMessage('free')
  free(): string {
    return 'free';
  }

  @SkipRateLimit()
  @SubscribeMessage('skipped')
  skipped(): string {
    return 'skipped';
  }
}

/** Nest 11 tells clients of ws of no exception at all: apps bring a filter of their own there. */
@Catch(WsException)
class Telling extends BaseWsExceptionFilter<WsException> {
  override catch(exception: WsException, host: ArgumentsHost): void {
    const client = host.switchToWs().getClient<{ readyState?: number; send(text: string): void }>();
    if (client.readyState === undefined) super.catch(exception, host);
    else client.send(JSON.stringify({ event: 'exception', data: exception.getError() }));
  }
}

@WebSocketGateway()
@UseFilters(Telling)
class TellingChat extends Chat {}

/** Nest 11 has no global guards before gateways: bound by hand they stand there too. */
@WebSocketGateway()
@UseGuards(RateLimitGuard)
@UseFilters(...(NEST_VERSION === 11 ? [Telling] : []))
class GuardedChat extends Chat {}

const apps: SocketApp[] = [];
afterEach(async () => {
  await Promise.all(apps.splice(0).map((app) => app.close()));
});

async function start(
  kind: 'socket.io' | 'ws',
  options: SyncGuardOptions = {},
  providers: Provider[] = [kind === 'ws' && NEST_VERSION === 11 ? TellingChat : Chat],
): Promise<SocketApp> {
  const app = await socketApp(kind, {
    imports: [SyncGuardModule.forRoot(options)],
    providers,
  });
  apps.push(app);
  return app;
}

describe.each(['socket.io', 'ws'] as const)('@RateLimit on a gateway of %s', (kind) => {
  it('counts all connections of an address together, and each message by itself', async () => {
    const app = await start(kind);
    const one = await app.connect();
    const other = await app.connect();
    expect([await one.send('say', 'a'), await other.send('say', 'b')]).toEqual([
      { answer: 'a' },
      { answer: 'b' },
    ]);
    expect(await one.send('say', 'c')).toEqual({ exception: PAYLOAD });
    expect(await one.send('by-account', { email: 'ann@example.org' })).toEqual({ answer: 'fine' });
  });

  it('refuses a call that is dearer than its limit, as everywhere', async () => {
    const app = await start(kind);
    expect(await app.send('dear')).toMatchObject({
      exception: { status: 'error', statusCode: 400, code: 'InvalidArgument' },
    });
  });

  it('answers the failure that blocks by the block, and lets nobody in after it', async () => {
    const app = await start(kind);
    const client = await app.connect();
    const login = (password: string): Promise<unknown> =>
      client.send('login', { email: 'ann@example.org', password });
    for (let i = 0; i < 4; i++)
      expect(await login('wrong')).toEqual({ exception: { status: 401, message: 'no' } });
    expect(await login('correct')).toEqual({ answer: 'token' });
    for (let i = 0; i < 4; i++) await login('wrong');
    const blocked = { exception: { ...PAYLOAD, code: 'TooManyAttempts' } };
    expect(await login('wrong')).toEqual(blocked);
    expect(await login('correct')).toEqual(blocked);
  });

  it('takes the first item of a stream for a success, and gives the room back', async () => {
    const app = await start(kind);
    for (let i = 0; i < 5; i++) expect(await app.send('feed')).toEqual({ answer: 0 });
  });

  it.each([
    ['bound to the gateway', [GuardedChat]],
    // Nest 11 asks no global guards for gateways.
    ...(NEST_VERSION === 11
      ? []
      : [['global', [Chat, { provide: APP_GUARD, useClass: RateLimitGuard }]] as [string, Provider[]]]),
  ] as [string, Provider[]][])(
    'applies RateLimitGuard, %s, to every message, and leaves alone what is to be skipped',
    async (_, providers) => {
      const app = await start(kind, { limits: { default: TWO } }, providers);
      const client = await app.connect();
      for (let i = 0; i < 2; i++) expect(await client.send('free')).toEqual({ answer: 'free' });
      expect(await client.send('free')).toEqual({ exception: PAYLOAD });
      expect(await client.send('skipped')).toEqual({ answer: 'skipped' });
    },
  );
});
