import 'reflect-metadata';
import { Controller, Get, Module, type Type, UseGuards } from '@nestjs/common';
import { APP_GUARD } from '@nestjs/core';
import { SubscribeMessage, WebSocketGateway } from '@nestjs/websockets';
import {
  hours,
  minutes,
  RateLimit,
  RateLimitGuard,
  type RateLimitOptions,
  SkipRateLimit,
  SyncGuardConfigError,
  SyncGuardModule,
  type SyncGuardOptions,
} from 'nestjs-syncguard';
import { type HttpApp, listen } from '../support/adapters.js';

const of = (limit: number, name?: string): { limit: number; windowMs: number; name?: string } => ({
  ...{ limit, windowMs: minutes(1) },
  ...(name === undefined ? {} : { name }),
});
const globally = { provide: APP_GUARD, useClass: RateLimitGuard };

describe.each(['express', 'fastify'] as const)('names of policies, on %s', (adapter) => {
  let running: HttpApp | undefined;
  afterEach(async () => {
    await running?.app.close();
    running = undefined;
  });

  const start = async (
    controller: Type,
    options: SyncGuardOptions,
    more: Partial<Parameters<typeof listen>[1]> = {},
    prepare: Parameters<typeof listen>[3] = () => {},
  ): Promise<void> => {
    const metadata = { imports: [SyncGuardModule.forRoot(options)], controllers: [controller], ...more };
    running = await listen(adapter, metadata, undefined, prepare);
  };
  const allowed = async (path: string): Promise<number> => {
    for (let n = 0; n < 9; n++) if ((await fetch(`${running?.url}/${path}`)).status !== 200) return n;
    return 9;
  };
  const refusal = (started: Promise<void>): Promise<unknown> => started.catch((error: unknown) => error);

  it('are skipped by their key, and by a name of their own', async () => {
    @RateLimit('shared')
    @Controller()
    class Routes {
      @Get('limited')
      limited(): void {}
      @SkipRateLimit('default')
      @Get('by-key')
      byKey(): void {}
      @SkipRateLimit('global')
      @Get('by-name')
      byName(): void {}
      @SkipRateLimit('list')
      @SkipRateLimit('global')
      @Get('stacked')
      stacked(): void {}
      @SkipRateLimit('shared', 'room#7')
      @RateLimit(of(3, 'room#7'))
      @RateLimit(of(2, 'room'))
      @Get('own')
      own(): void {}
    }
    const limits = { default: of(1, 'global'), shared: [of(4, 'list'), of(8)] };
    await start(Routes, { limits }, { providers: [globally] });
    expect(await allowed('limited')).toBe(1);
    expect(await allowed('by-key')).toBe(3);
    await running?.app.close();
    await start(Routes, { limits }, { providers: [globally] });
    expect([await allowed('by-name'), await allowed('stacked')]).toEqual([4, 4]);
    await running?.app.close();
    await start(Routes, { limits: { ...limits, default: of(9, 'global') } }, { providers: [globally] });
    expect(await allowed('own')).toBe(2);
  });

  it('of decorators may be skipped, and others do not boot', async () => {
    @RateLimit(of(1, 'inline'))
    @Controller()
    class Routes {
      @SkipRateLimit('inline')
      @Get('free')
      free(): void {}
    }
    await start(Routes, {});
    expect(await allowed('free')).toBe(9);
    await running?.app.close();
    @SkipRateLimit()
    @Controller()
    class Bare {
      @RateLimit(of(1))
      @Get('own')
      own(): void {}
    }
    await start(Bare, {});
    expect(await allowed('own')).toBe(1);
    await running?.app.close();
    @Controller()
    class Elsewhere {
      @SkipRateLimit('inline')
      @Get()
      free(): void {}
    }
    expect(await refusal(start(Elsewhere, {}))).toMatchObject({ code: 'RATE_LIMIT_UNKNOWN_POLICY' });
  });

  it('of one history do not boot with other windows, or with other limits on one route', async () => {
    const hourly = { ...of(3, 'mine'), windowMs: hours(1) };
    const failures = { ...of(2, 'mine'), count: 'failure' } as const;
    for (const [first, second] of [
      [of(2, 'mine'), hourly],
      [of(2, 'mine'), of(3, 'mine')],
      [of(2, 'mine'), failures],
    ] as const) {
      @Controller()
      class OneRoute {
        @RateLimit([first, second])
        @Get()
        get(): void {}
      }
      await expect(start(OneRoute, {})).rejects.toMatchObject({ code: 'RATE_LIMIT_NAME' });
    }
    @Controller()
    class TwoRoutes {
      @RateLimit('mine')
      @Get('one')
      one(): void {}

      @RateLimit(hourly)
      @Get('two')
      two(): void {}
    }
    await expect(start(TwoRoutes, { limits: { mine: of(2) } })).rejects.toThrow(
      /Two policies named mine have windows of 60000 and of 3600000 ms/,
    );
  });

  it('that no decorator uses do not boot either, as AbuseLimiterService may use them', async () => {
    @Controller()
    class Limited {
      @RateLimit({ ...of(2, 'mine'), windowMs: hours(1) })
      @Get()
      get(): void {}
    }
    @Controller()
    class Free {}
    const clash = {
      code: 'RATE_LIMIT_NAME',
      message: expect.stringMatching(/policies named mine/) as unknown,
    };
    await expect(start(Limited, { limits: { mine: of(2) } })).rejects.toMatchObject(clash);
    await expect(
      start(Free, { limits: { first: of(2, 'mine'), second: { ...of(2, 'mine'), windowMs: hours(1) } } }),
    ).rejects.toMatchObject(clash);
  });

  it('boot where they count together as they should, and beside presets that nobody uses', async () => {
    @RateLimit(of(2, 'mine'))
    @Controller()
    class Together {
      @RateLimit(of(2, 'mine'))
      @Get('one')
      one(): void {}

      @RateLimit([of(3), { ...of(4), windowMs: hours(1) }])
      @RateLimit({ ...of(5, 'mine'), keyBy: 'query.q' })
      @Get('two')
      two(): void {}

      @RateLimit(of(3, 'login'))
      @Get('three')
      three(): void {}
    }
    await start(Together, {});
    expect(await allowed('one')).toBe(2);
  });

  it('are overridden by a class: `default`, and what its bases have', async () => {
    const routes = (options?: RateLimitOptions): Type => {
      @RateLimit(of(1, 'base'))
      class Base {
        @Get('plain')
        plain(): void {}
        @RateLimit(of(4, 'method'))
        @Get('both')
        both(): void {}
      }
      @RateLimit(of(6, 'upper'))
      @RateLimit(of(5, 'class'), options)
      @Controller()
      class Routes extends Base {}
      return Routes;
    };
    const limits = { default: of(2) };
    await start(routes({ override: true }), { limits }, { providers: [globally] });
    expect(await allowed('both')).toBe(4);
    expect(await allowed('plain')).toBe(1); // Of 5, which both have by their class.
    await running?.app.close();
    await start(routes(), { limits }, { providers: [globally] });
    expect(await allowed('plain')).toBe(1);
  });

  describe('RateLimitGuard without `default`', () => {
    @Controller()
    class Limited {
      @RateLimit(of(2, 'own'))
      @Get()
      get(): void {}
    }
    const noDefault = (where: RegExp): unknown =>
      expect.objectContaining({
        code: 'RATE_LIMIT_NO_DEFAULT',
        message: expect.stringMatching(where) as unknown,
      });

    it('does not boot where it is global, in any way', async () => {
      class Mine extends RateLimitGuard {}
      for (const provider of [
        globally,
        { provide: APP_GUARD, useClass: Mine },
        { provide: APP_GUARD, useExisting: RateLimitGuard },
      ]) {
        const started = start(Limited, {}, { providers: [RateLimitGuard, provider] });
        expect(await refusal(started)).toEqual(
          noDefault(/is bound to all handlers\. It applies the policy `default`, and there is none/),
        );
      }
      const byHand = start(Limited, {}, { providers: [RateLimitGuard] }, (app) =>
        app.useGlobalGuards(app.get(RateLimitGuard)),
      );
      expect(await refusal(byHand)).toEqual(noDefault(/is bound to all handlers/));
    });

    it('does not boot on a handler without limits', async () => {
      @UseGuards(RateLimitGuard)
      @Controller()
      class OnClass extends Limited {
        @Get('unlimited')
        unlimited(): void {}
      }
      @Controller()
      class OnMethod {
        @UseGuards(RateLimitGuard)
        @Get()
        get(): void {}
      }
      @UseGuards(RateLimitGuard)
      @WebSocketGateway()
      class Gateway {
        @SubscribeMessage('say')
        say(_text: string): void {}
      }
      expect(await refusal(start(OnClass, {}))).toEqual(
        noDefault(/to OnClass\.unlimited, which has no limits/),
      );
      expect(await refusal(start(OnMethod, {}))).toEqual(noDefault(/to OnMethod\.get/));
      const gateway = start(Limited, {}, { providers: [Gateway] });
      expect(await refusal(gateway)).toEqual(noDefault(/to Gateway\.say/));
      expect(await refusal(gateway)).toBeInstanceOf(SyncGuardConfigError);
    });

    it('boots beside limits, and where they are left out on purpose', async () => {
      @UseGuards(RateLimitGuard)
      @Controller()
      class Beside extends Limited {
        @SkipRateLimit()
        @Get('health')
        health(): void {}
        helper(): void {}
      }
      @RateLimit('api')
      @UseGuards(RateLimitGuard)
      @Controller('more')
      class ByClass {
        @Get()
        get(): void {}
      }
      @Module({ controllers: [ByClass], providers: [RateLimitGuard] })
      class More {}
      const imports = [SyncGuardModule.forRoot(), More];
      await start(Beside, {}, { imports });
      expect(await allowed('')).toBe(2);
      expect(await allowed('health')).toBe(9);
    });
  });
});
