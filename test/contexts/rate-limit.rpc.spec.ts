import 'reflect-metadata';
import { Controller, Get, Logger, type ModuleMetadata } from '@nestjs/common';
import { APP_GUARD } from '@nestjs/core';
import { EventPattern, MessagePattern, Payload, RpcException } from '@nestjs/microservices';
import { minutes, RateLimit, RateLimitGuard, SyncGuardModule, type SyncGuardOptions } from 'nestjs-syncguard';
import { eventually } from '../support/eventually.js';
import { hybridApp } from './apps/hybrid-app.js';
import { type RpcApp, rpcApp } from './apps/rpc-app.js';
import { tryAgainUpTo, upTo } from '../support/up-to.js';

const TWO = { limit: 2, windowMs: minutes(1) };
const PAYLOAD = {
  status: 'error',
  statusCode: 429,
  code: 'RateLimited',
  message: tryAgainUpTo(60),
  context: { retryAfter: upTo(60), retryAtMs: expect.any(Number) as unknown },
};

@Controller()
class Jobs {
  readonly events: string[] = [];

  @MessagePattern('export')
  @RateLimit({ ...TWO, keyBy: 'body.tenant' })
  export(): string {
    return 'exported';
  }

  @RateLimit({ ...TWO, keyBy: (context) => context.switchToRpc().getData<{ tenant: string }>().tenant })
  @MessagePattern({ job: 'import', version: 1 })
  import(): string {
    return 'imported';
  }

  @EventPattern('happened')
  @RateLimit({ ...TWO, keyBy: 'body.tenant' })
  happened(@Payload() { tenant }: { tenant: string }): void {
    this.events.push(tenant);
  }

  @MessagePattern('verify')
  @RateLimit({ ...TWO, count: 'failure', blockMs: minutes(1), keyBy: 'body.tenant' })
  verify(@Payload() { token }: { token: string }): string {
    if (token !== 'right') throw new RpcException({ statusCode: 401, message: 'no' });
    return 'verified';
  }

  @MessagePattern('free')
  free(): string {
    return 'free';
  }
}

@Controller()
class Everything {
  @Get('report')
  @MessagePattern('report')
  @RateLimit({ ...TWO, keyBy: ['ip', 'body.tenant'] })
  report(): { done: true } {
    return { done: true };
  }

  @Get('free')
  @MessagePattern('free')
  free(): { done: true } {
    return { done: true };
  }
}

const closing: (() => Promise<void>)[] = [];
afterEach(async () => {
  await Promise.all(closing.splice(0).map((close) => close()));
});

async function start(options: SyncGuardOptions = {}, metadata: ModuleMetadata = {}): Promise<RpcApp> {
  const app = await rpcApp({
    imports: [SyncGuardModule.forRoot(options)],
    controllers: [Jobs],
    ...metadata,
  });
  closing.push(() => app.close());
  return app;
}

const global = { providers: [{ provide: APP_GUARD, useClass: RateLimitGuard }] };

describe('@RateLimit on a message handler', () => {
  it('counts by a function of the context, and by the pattern', async () => {
    const app = await start();
    const pattern = { job: 'import', version: 1 };
    for (let i = 0; i < 2; i++)
      expect(await app.send(pattern, { tenant: 'one' })).toEqual({ answer: 'imported' });
    expect(await app.send(pattern, { tenant: 'one' })).toEqual({ exception: PAYLOAD });
    expect(await app.send('export', { tenant: 'one' })).toEqual({ answer: 'exported' });
  });

  it('refuses a message that does not say who sends it, rather than count it for all', async () => {
    const app = await start();
    expect(await app.send('export', { tenant: '' })).toEqual({
      exception: {
        status: 'error',
        statusCode: 400,
        code: 'InvalidArgument',
        message: 'The call does not have the values that identify its caller.',
        context: {},
      },
    });
  });

  it('keeps events above the limit from their handler', async () => {
    jest.spyOn(Logger.prototype, 'error').mockImplementation();
    const app = await start();
    for (const tenant of ['one', 'one', 'one', 'one', 'two']) await app.emit('happened', { tenant });
    const { events } = app.app.get(Jobs);
    await eventually(() => expect(events).toContain('two'));
    expect(events).toEqual(['one', 'one', 'two']);
    jest.restoreAllMocks();
  });

  it('answers the failure that blocks by the block', async () => {
    const app = await start();
    const verify = (token: string): Promise<unknown> => app.send('verify', { tenant: 'one', token });
    for (let i = 0; i < 2; i++)
      expect(await verify('wrong')).toEqual({ exception: { statusCode: 401, message: 'no' } });
    expect(await verify('right')).toEqual({ answer: 'verified' });
    const blocked = { exception: { ...PAYLOAD, code: 'TooManyAttempts' } };
    expect([await verify('wrong'), await verify('right')]).toEqual([blocked, blocked]);
  });

  it('refuses to boot where it could only count by an address', async () => {
    @Controller()
    class Keyless {
      @MessagePattern('x')
      @RateLimit(TWO)
      x(): string {
        return 'never';
      }
    }
    await expect(start({}, { controllers: [Keyless] })).rejects.toThrow(
      /RATE_LIMIT_NO_KEY: .*message handler Keyless\.x .*no address.*keyBy/,
    );
    @RateLimit('api')
    @Controller()
    class KeylessClass {
      @EventPattern('y')
      y(data: unknown): void {
        throw new Error(`Never called: ${String(data)}`);
      }
    }
    await expect(start({}, { controllers: [KeylessClass] })).rejects.toThrow(/RATE_LIMIT_NO_KEY/);
  });
});

describe('handlers that classes inherit', () => {
  class Base {
    readonly events: number[] = [];

    @EventPattern('counted')
    count(@Payload() { n }: { n: number }): void {
      this.events.push(n);
    }
  }

  it('have the limits of their class, also where a sister has the same handler', async () => {
    @Controller()
    @RateLimit({ limit: 1, windowMs: minutes(1), name: 'first', keyBy: 'body.tenant' })
    class First extends Base {}
    @Controller()
    @RateLimit({ limit: 2, windowMs: minutes(1), name: 'second', keyBy: 'body.tenant' })
    class Second extends Base {}
    @Controller()
    class Third extends Base {}
    jest.spyOn(Logger.prototype, 'error').mockImplementation();
    const app = await start({}, { controllers: [First, Second, Third] });
    for (const n of [1, 2, 3]) await app.emit('counted', { n, tenant: 'one' });
    await eventually(() => expect(app.app.get(Third).events).toEqual([1, 2, 3]));
    await eventually(() => expect(app.app.get(Second).events).toEqual([1, 2]));
    expect(app.app.get(First).events).toEqual([1]);
    jest.restoreAllMocks();
  });

  it('may have any name', async () => {
    @Controller()
    class Foreign {
      @RateLimit({ ...TWO, keyBy: 'body.tenant' })
      @MessagePattern('grüße')
      grüße(): string {
        return 'hello';
      }
    }
    const app = await start({}, { controllers: [Foreign] });
    expect(await app.send('grüße', { tenant: 'one' })).toEqual({ answer: 'hello' });
  });
});

describe('RateLimitGuard before messages', () => {
  it('limits them by what they say', async () => {
    const app = await start({ limits: { default: { ...TWO, keyBy: 'body.tenant' } } }, global);
    for (let i = 0; i < 2; i++) expect(await app.send('free', { tenant: 'one' })).toEqual({ answer: 'free' });
    expect(await app.send('free', { tenant: 'one' })).toEqual({ exception: PAYLOAD });
  });

  it('lets them pass, with one warning, where it counts by address', async () => {
    const warn = jest.spyOn(Logger.prototype, 'warn').mockImplementation();
    const app = await start({ limits: { default: TWO } }, global);
    for (let i = 0; i < 3; i++) expect(await app.send('free')).toEqual({ answer: 'free' });
    const told = warn.mock.calls
      .map(([message]) => String(message))
      .filter((text) => /RATE_LIMIT/.test(text));
    expect(told).toEqual([expect.stringMatching(/RATE_LIMIT_NO_KEY: Calls of type 'rpc' have no address/)]);
    warn.mockRestore();
  });
});

describe.each(['express', 'fastify'] as const)('@RateLimit in a hybrid app on %s', (adapter) => {
  it.each([true, false])(
    'stands before both ways of a handler, each with its own count; inheritAppConfig: %s',
    async (inheritAppConfig) => {
      const app = await hybridApp(
        adapter,
        'ws',
        { imports: [SyncGuardModule.forRoot()], controllers: [Everything] },
        { inheritAppConfig },
      );
      closing.push(() => app.close());
      const overHttp = async (): Promise<number> => (await fetch(`${app.url}/report`)).status;
      const send = (): Promise<unknown> => app.rpc.send('report', { tenant: 'one' });
      for (let i = 0; i < 2; i++) {
        expect(await overHttp()).toBe(200);
        expect(await send()).toEqual({ answer: { done: true } });
      }
      expect(await overHttp()).toBe(429);
      expect(await send()).toEqual({ exception: PAYLOAD });
    },
  );

  it.each([
    [true, PAYLOAD],
    [false, undefined],
  ])(
    'has the global guard before messages with inheritAppConfig: %s',
    async (inheritAppConfig, exception) => {
      const app = await hybridApp(
        adapter,
        'ws',
        {
          imports: [
            SyncGuardModule.forRoot({ limits: { default: { ...TWO, keyBy: ['ip', 'body.tenant'] } } }),
          ],
          controllers: [Everything],
          ...global,
        },
        { inheritAppConfig },
      );
      closing.push(() => app.close());
      const send = (): Promise<unknown> => app.rpc.send('free', { tenant: 'one' });
      for (let i = 0; i < 2; i++) expect(await send()).toEqual({ answer: { done: true } });
      expect(await send()).toEqual(exception ? { exception } : { answer: { done: true } });
    },
  );
});
