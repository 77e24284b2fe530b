import 'reflect-metadata';
import {
  Controller,
  Get,
  Injectable,
  mixin,
  Module,
  type ModuleMetadata,
  Post,
  Scope,
  SetMetadata,
  Sse,
  type Type,
  UseGuards,
  Version,
  VersioningType,
} from '@nestjs/common';
import { Reflector, RouterModule } from '@nestjs/core';
import { OnEvent } from '@nestjs/event-emitter';
import { Args, Mutation, Query, ResolveField, Resolver } from '@nestjs/graphql';
import { EventPattern, MessagePattern } from '@nestjs/microservices';
import { Cron, Interval } from '@nestjs/schedule';
import { ApiOperation } from '@nestjs/swagger';
import { Test } from '@nestjs/testing';
import { SubscribeMessage, WebSocketGateway } from '@nestjs/websockets';
import { NEVER, type Observable } from 'rxjs';
import {
  AbuseLimiterService,
  RateLimit,
  seconds,
  SkipRateLimit,
  SyncGuardConfigError,
  SyncGuardModule,
  type SyncGuardOptions,
  WithBudget,
  WithLock,
} from 'nestjs-syncguard';

const TWO = { limit: 2, windowMs: seconds(10) };
const BY_TENANT = { ...TWO, keyBy: 'body.tenant' };

const log = { log: jest.fn(), error: jest.fn(), warn: jest.fn() };
beforeEach(() => jest.clearAllMocks());
const warned = (): string[] => log.warn.mock.calls.map(([message]) => String(message));

/** Starts an app as far as requests could come: gives its error, if it has one. */
async function boot(
  metadata: ModuleMetadata,
  options: SyncGuardOptions = {},
  prepare: (instances: { get(token: Type): object }) => void = () => {},
): Promise<SyncGuardConfigError | undefined> {
  const module = await Test.createTestingModule({
    ...metadata,
    imports: [SyncGuardModule.forRoot(options), ...(metadata.imports ?? [])],
  })
    .setLogger(log)
    .compile();
  prepare(module);
  const app = module.createNestApplication();
  app.enableVersioning({ type: VersioningType.URI });
  try {
    await app.init();
    return undefined;
  } catch (error) {
    return error as SyncGuardConfigError;
  } finally {
    await app.close();
  }
}

type Wrap = (original: (...args: unknown[]) => unknown) => unknown;

/** As ORMs and tracers write theirs: a function of its own, in the method's place. */
const replacing =
  (wrap: Wrap): MethodDecorator =>
  (_target, _key, descriptor) => {
    descriptor.value = wrap(descriptor.value as never) as never;
  };
const call: Wrap = (original) =>
  function (this: unknown, ...args: unknown[]) {
    return original.apply(this, args);
  };
const InTransaction = (): MethodDecorator => replacing(call);

/** A wrapper that leaves on its function what one of these keys names, or all. */
const Copying = (keep: (key: unknown) => boolean = () => true): MethodDecorator =>
  replacing((original) => {
    const wrapper = call(original) as object;
    for (const key of Reflect.getMetadataKeys(original) as string[])
      if (keep(key)) Reflect.defineMetadata(key, Reflect.getMetadata(key, original), wrapper);
    return wrapper;
  });

const controllerWith = (...decorators: MethodDecorator[]): Type => {
  class Logins {
    login(): string {
      return 'judged';
    }
  }
  const of = Logins.prototype;
  const descriptor = Object.getOwnPropertyDescriptor(of, 'login') as PropertyDescriptor;
  const decorated = [...decorators]
    .reverse()
    .reduce(
      (at, decorate) => (decorate(of, 'login', at) as PropertyDescriptor | undefined) ?? at,
      descriptor,
    );
  Object.defineProperty(of, 'login', decorated);
  Controller()(Logins);
  return Logins;
};

describe('a decorator that others have lost does not boot', () => {
  const lost: Record<string, MethodDecorator[]> = {
    'a function in its place': [Post(), InTransaction(), RateLimit('login')],
    'an async one': [
      Post(),
      replacing(
        (original) =>
          async (...args: unknown[]) =>
            original(...args),
      ),
      RateLimit('login'),
    ],
    'an arrow function, and the route is lost as well': [InTransaction(), RateLimit('login'), Post()],
    'a bound one': [Post(), replacing((original) => original.bind(undefined)), RateLimit('login')],
    'a proxy': [Post(), replacing((original) => new Proxy(original, {})), RateLimit('login')],
    'a descriptor of its own': [
      Post(),
      (_target, _key, descriptor) => ({ ...descriptor, value: call(descriptor.value as never) as never }),
      RateLimit('login'),
    ],
    'a wrapper that copies texts alone': [
      Post(),
      Copying((key) => typeof key === 'string'),
      RateLimit('login'),
    ],
    'a wrapper that copies the limits and no guard': [
      Post(),
      Copying((key) => key !== '__guards__'),
      RateLimit('login'),
    ],
    'guards that were put in place of ours': [
      (_target, _key, { value }) => Reflect.defineMetadata('__guards__', [], value as never),
      RateLimit('login'),
      Post(),
    ],
    'the lower one of two': [RateLimit('api'), Post(), InTransaction(), RateLimit('login')],
    'a wrapper between ours': [Post(), WithLock('x'), InTransaction(), RateLimit('login')],
  };
  it.each(Object.keys(lost))('%s', async (what) => {
    const error = await boot({ controllers: [controllerWith(...(lost[what] ?? []))] });
    expect(error).toBeInstanceOf(SyncGuardConfigError);
    expect(error).toMatchObject({
      code: 'RATE_LIMIT_LOST',
      message: expect.stringMatching(
        /RATE_LIMIT_LOST: @RateLimit on Logins\.login .*Put @RateLimit above/,
      ) as unknown,
    });
  });

  it('@SkipRateLimit alike', async () => {
    const error = await boot({ controllers: [controllerWith(Post(), InTransaction(), SkipRateLimit())] });
    expect(error).toMatchObject({
      code: 'RATE_LIMIT_LOST',
      message: expect.stringMatching(/@SkipRateLimit on Logins\.login .*Put @SkipRateLimit above/) as unknown,
    });
  });

  it('a method that the constructor binds', async () => {
    @Controller()
    class Bound {
      constructor() {
        this.login = this.login.bind(this);
      }
      @RateLimit('login')
      @Post()
      login(): void {}
    }
    expect(await boot({ controllers: [Bound] })).toMatchObject({ code: 'RATE_LIMIT_LOST' });
  });

  it('a method that a class decorator replaces, or that a spy has', async () => {
    const Traced = (type: { prototype: { get: unknown } }): void => {
      type.prototype.get = call(type.prototype.get as never);
    };
    @Traced
    @Controller()
    class TracedRoutes {
      @RateLimit(TWO)
      @Get()
      get(): void {}
    }
    expect(await boot({ controllers: [TracedRoutes] })).toMatchObject({ code: 'RATE_LIMIT_LOST' });

    @Controller()
    class Spied {
      @RateLimit(TWO)
      @Get()
      get(): void {}
    }
    const spy = (module: { get(token: Type): object }): unknown =>
      jest.spyOn(module.get(Spied) as Spied, 'get').mockReturnValue();
    expect(await boot({ controllers: [Spied] }, {}, spy)).toMatchObject({ code: 'RATE_LIMIT_LOST' });
  });

  it('in gateways, resolvers and message handlers', async () => {
    @WebSocketGateway()
    class Gateway {
      @SubscribeMessage('login')
      @InTransaction()
      @RateLimit('login')
      login(): void {}
    }
    @Controller()
    class Messages {
      @MessagePattern('login')
      @InTransaction()
      @RateLimit(BY_TENANT)
      login(): void {}
    }
    @Resolver()
    class Fields {
      @Query(() => String)
      @InTransaction()
      @RateLimit('api')
      login(): string {
        return '';
      }
    }
    for (const metadata of [{ providers: [Gateway] }, { controllers: [Messages] }, { providers: [Fields] }])
      expect(await boot(metadata)).toMatchObject({ code: 'RATE_LIMIT_LOST' });
  });

  it('request-scoped, inherited, of a mixin, in a module further down', async () => {
    @Controller({ scope: Scope.REQUEST })
    class PerRequest {
      @Get()
      @InTransaction()
      @RateLimit(TWO)
      get(): void {}
    }
    abstract class Base {
      @Get()
      @InTransaction()
      @RateLimit(TWO)
      get(): void {}
    }
    @Controller('inherited')
    class Inherited extends Base {}
    const Listing = (): Type => {
      class Mixed {
        @Get()
        @InTransaction()
        @RateLimit(TWO)
        list(): void {}
      }
      return mixin(Mixed);
    };
    @Controller('mixed')
    class Mixed extends Listing() {}
    for (const [type, place] of [
      [PerRequest, 'PerRequest.get'],
      [Inherited, 'Inherited.get'],
      [Mixed, 'Mixed.list'],
    ] as const) {
      @Module({ controllers: [type] })
      class Feature {}
      expect(await boot({ imports: [Feature] })).toMatchObject({
        code: 'RATE_LIMIT_LOST',
        message: expect.stringContaining(place) as unknown,
      });
    }
  });

  it('tells of all at once', async () => {
    @Controller()
    class Several {
      @Get('a')
      @InTransaction()
      @RateLimit(TWO)
      a(): void {}
      @Get('b')
      @InTransaction()
      @RateLimit(TWO)
      b(): void {}
    }
    expect((await boot({ controllers: [Several] }))?.message).toMatch(/Several\.a .*Several\.b /);
  });
});

describe('a decorator that nothing leads to does not boot', () => {
  const unrouted: Record<string, MethodDecorator[]> = {
    'a method of a service': [],
    'guards of its own': [UseGuards({ canActivate: () => true })],
    'our own others': [
      WithLock('x'),
      WithBudget({ scopes: () => ['a'], estimate: () => 1 }),
      SkipRateLimit('api'),
    ],
  };
  it.each(Object.keys(unrouted))('%s', async (what) => {
    const Service = controllerWith(RateLimit('login'), ...(unrouted[what] ?? []));
    const error = await boot({ providers: [Service] });
    expect(error).toBeInstanceOf(SyncGuardConfigError);
    expect(error).toMatchObject({
      code: 'RATE_LIMIT_NO_ROUTE',
      message: expect.stringMatching(
        /Logins\.login.*Move the decorator to the route, or call AbuseLimiterService/,
      ) as unknown,
    });
  });

  it('@SkipRateLimit alike', async () => {
    @Injectable()
    class Service {
      @SkipRateLimit()
      work(): void {}
    }
    expect(await boot({ providers: [Service] })).toMatchObject({
      code: 'RATE_LIMIT_NO_ROUTE',
      message: expect.stringContaining('@SkipRateLimit on Service.work has no effect.') as unknown,
    });
  });

  it('on a class without a handler: a service, a handler of commands, a gateway that only connects', async () => {
    @RateLimit('login')
    @Injectable()
    class LoginHandler {
      execute(): void {}
    }
    @RateLimit('api')
    @WebSocketGateway()
    class Gateway {
      handleConnection(): void {}
    }
    for (const provider of [LoginHandler, Gateway])
      expect(await boot({ providers: [provider] })).toMatchObject({
        code: 'RATE_LIMIT_NO_ROUTE',
        message: expect.stringContaining(`@RateLimit on ${provider.name} has no effect.`) as unknown,
      });
  });

  it('on an instance that the app made, or a subclass', async () => {
    class Service {
      @RateLimit('login')
      work(): void {}
    }
    class Heir extends Service {}
    for (const provider of [
      { provide: 'a', useValue: new Service() },
      { provide: 'a', useFactory: () => new Service() },
      { provide: 'a', useClass: Heir },
    ])
      expect(await boot({ providers: [provider] })).toMatchObject({ code: 'RATE_LIMIT_NO_ROUTE' });
  });

  it('on a static method, where it stands', () => {
    expect(() => {
      class Static {
        @RateLimit('login')
        static login(): void {}
      }
      return Static;
    }).toThrow(/@RateLimit\(\) is on \w+\.login, which is not a method of an instance/);
  });
});

describe('with strictBoot: false', () => {
  it('both are warnings, with their codes', async () => {
    @Controller()
    class Lost {
      @Get()
      @InTransaction()
      @RateLimit(TWO)
      get(): void {}
    }
    @Injectable()
    class Service {
      @RateLimit(TWO)
      work(): void {}
    }
    const metadata = { controllers: [Lost], providers: [Service] };
    expect(await boot(metadata, { limit: { strictBoot: false } })).toBeUndefined();
    expect(warned()).toEqual(
      expect.arrayContaining([
        expect.stringMatching(/^RATE_LIMIT_LOST: @RateLimit on Lost\.get /),
        expect.stringMatching(/^RATE_LIMIT_NO_ROUTE: @RateLimit on Service\.work has no effect/),
      ]),
    );
    expect(() => SyncGuardModule.forRoot({ limit: { strictBoot: 'no' as never } })).toThrow(
      /limit\.strictBoot must be true or false/,
    );
  });
});

describe('what may be on purpose is a warning', () => {
  it('an override without the decorator', async () => {
    class Base {
      @RateLimit(TWO)
      @Get()
      get(): void {}
      @SkipRateLimit()
      @Get('health')
      health(): void {}
    }
    @Controller()
    class Heir extends Base {
      @Get()
      override get(): void {}
      @Get('health')
      override health(): void {}
    }
    expect(await boot({ controllers: [Heir] })).toBeUndefined();
    expect(warned()).toEqual([
      expect.stringMatching(
        /^RATE_LIMIT_LOST: Heir\.get overrides Base\.get, but does not have its @RateLimit\./,
      ),
      expect.stringMatching(
        /^RATE_LIMIT_LOST: Heir\.health overrides Base\.health, but does not have its @SkipRateLimit/,
      ),
    ]);
  });

  it('what another framework may call: one warning for all, which says what to look at', async () => {
    const Roles = Reflector.createDecorator<string[]>();
    @Injectable()
    class Jobs {
      @RateLimit(TWO)
      @Cron('0 0 1 1 *')
      nightly(): void {}
      @RateLimit(TWO)
      @Interval(1e6)
      hourly(): void {}
      @SkipRateLimit()
      @OnEvent('login')
      onLogin(): void {}
      @RateLimit(TWO)
      @SetMetadata('bullmq:worker_events_metadata', { eventName: 'x' })
      ofAQueue(): void {}
      @RateLimit(TWO)
      @ApiOperation({ summary: 'logs in' })
      described(): void {}
      @RateLimit(TWO)
      @Roles(['admin'])
      ofTheApp(): void {}
    }
    @Injectable()
    class Bot {
      @RateLimit(TWO)
      @SetMetadata('necord:slash', { name: 'play' })
      play(): void {}
    }
    @RateLimit(TWO)
    @Injectable()
    class Options {
      @SetMetadata(Symbol('Command:Option'), '-v')
      verbose(): void {}
    }
    expect(await boot({ providers: [Jobs, Bot, Options] })).toBeUndefined();
    const [warning, ...others] = warned();
    expect(others).toEqual([]);
    expect(warning).toMatch(
      /^RATE_LIMIT_NO_ROUTE: These may have no effect: .*Look whether what calls these methods asks guards first\./,
    );
    for (const place of [
      '@RateLimit on Jobs.nightly',
      '@RateLimit on Jobs.hourly',
      '@SkipRateLimit on Jobs.onLogin',
    ])
      expect(warning).toContain(place);
    for (const place of ['Jobs.ofAQueue', 'Jobs.described', 'Jobs.ofTheApp', 'Bot.play', 'on Options,'])
      expect(`${warning},`.replace('. Nest asks', ', Nest asks')).toContain(place);
  });
});

describe('an app that is protected boots, without a word', () => {
  afterEach(() => expect(warned()).toEqual([]));

  it('with wrappers above, below, and such as carry all over', async () => {
    const innocent: MethodDecorator[][] = [
      [RateLimit('login'), Post(), InTransaction()],
      [Post(), RateLimit('login'), InTransaction()],
      [Post(), Copying(), RateLimit('login')],
      [Copying(), Post(), RateLimit('login'), RateLimit('api')],
      [
        Post(),
        replacing((original) => Object.setPrototypeOf(call(original), original) as unknown),
        RateLimit('login'),
      ],
      [Post(), WithLock('x'), RateLimit('login')],
      [RateLimit('login'), WithLock('x'), Post()],
      [Version('2'), Post(), SetMetadata('roles', []), RateLimit('login'), SkipRateLimit('api')],
    ];
    for (const decorators of innocent)
      expect(await boot({ controllers: [controllerWith(...decorators)] })).toBeUndefined();
  });

  it('with every kind of handler', async () => {
    @RateLimit('api')
    @Controller({ path: 'all', version: '1' })
    class Routes {
      constructor(readonly limiter: AbuseLimiterService) {}
      @RateLimit('login')
      @Get()
      get(): void {}
      @RateLimit(TWO)
      @Sse('events')
      events(): Observable<never> {
        return NEVER;
      }
      @RateLimit(BY_TENANT)
      @MessagePattern('message')
      @EventPattern('event')
      message(_data: unknown): void {}
      helper(): void {}
    }
    @RateLimit('api')
    @WebSocketGateway()
    class Gateway {
      @SubscribeMessage('say')
      @RateLimit(TWO)
      say(_text: string): void {}
      handleConnection(): void {}
    }
    @RateLimit('api')
    @Resolver('Dish')
    class Fields {
      @Mutation(() => String)
      @RateLimit('login')
      cook(@Args('name') name: string): string {
        return name;
      }
      @ResolveField(() => String)
      @SkipRateLimit()
      price(): string {
        return '1';
      }
    }
    // A class that several modules have, as a provider of its own kind too.
    @Module({ controllers: [Routes], providers: [Fields, Routes] })
    class One {}
    @Module({ controllers: [Routes], providers: [Gateway] })
    class Two {}
    const imports = [One, Two, RouterModule.register([{ path: 'one', module: One }])];
    const withoutMessages = { limits: { api: { ...TWO, keyBy: ['ip', 'body.tenant'] } } };
    expect(await boot({ imports }, withoutMessages)).toBeUndefined();
  });

  it('with bases, mixins and overrides that are decorated themselves', async () => {
    class Base {
      @RateLimit(TWO)
      @Get('kept')
      kept(): void {}
      @RateLimit(TWO)
      @Get('again')
      again(): void {}
      @RateLimit(TWO)
      @Get('left')
      left(): void {}
      @RateLimit(TWO)
      gone(): void {}
    }
    @Controller()
    class Heir extends Base {
      @RateLimit(TWO)
      @Get('again')
      override again(): void {}
      @SkipRateLimit()
      @Get('left')
      override left(): void {}
      // No route any more: nothing to limit.
      override gone(): void {}
    }
    expect(await boot({ controllers: [Heir] })).toBeUndefined();
  });

  it('with instances of the app, mocks, proxies, and classes that it has imported and does not use', async () => {
    class Unused {
      @RateLimit(TWO)
      work(): void {}
    }
    const unreachable = new Proxy(
      {},
      {
        getPrototypeOf(): never {
          throw new Error('Only within a request.');
        },
      },
    );
    const providers = [
      { provide: Unused, useValue: { work: jest.fn() } },
      { provide: 'proxy', useFactory: () => unreachable },
      { provide: 'nothing', useValue: undefined },
      { provide: 'null', useValue: null },
      { provide: 'text', useValue: 'x' },
      { provide: 'bare', useValue: Object.create(null) as object },
      {
        provide: 'mock',
        useValue: new Proxy({}, { get: (_target, key) => (key === 'then' ? undefined : jest.fn()) }),
      },
    ];
    expect(await boot({ providers })).toBeUndefined();
  });
});
