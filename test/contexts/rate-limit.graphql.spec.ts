import 'reflect-metadata';
import {
  type CanActivate,
  type ExecutionContext,
  ForbiddenException,
  Injectable,
  Logger,
  Module,
  type ModuleMetadata,
  type Type,
  UnauthorizedException,
  UseGuards,
} from '@nestjs/common';
import { APP_GUARD } from '@nestjs/core';
import {
  Args,
  Field,
  InputType,
  Mutation,
  ObjectType,
  Parent,
  Query,
  ResolveField,
  ResolveReference,
  Resolver,
  Subscription,
} from '@nestjs/graphql';
import { Test } from '@nestjs/testing';
import { GraphQLError } from 'graphql';
import {
  minutes,
  RateLimit,
  RateLimitGuard,
  seconds,
  SkipRateLimit,
  SyncGuardModule,
  type SyncGuardOptions,
} from 'nestjs-syncguard';
import { graphqlApp, type GraphQLAnswer, type GraphQLApp } from './apps/graphql-app.js';
import { upTo } from '../support/up-to.js';

const TWO = { limit: 2, windowMs: minutes(1) };

@InputType()
class Credentials {
  @Field() email!: string;
  @Field() password!: string;
}

@ObjectType()
class User {
  @Field() id!: string;
}

@Injectable()
class Forbidding implements CanActivate {
  canActivate(): boolean {
    throw new ForbiddenException();
  }
}

/** Finds out who the user is, as an AuthGuard does. */
@Injectable()
class WhoAmI implements CanActivate {
  canActivate(context: ExecutionContext): boolean {
    const [, { user }, { req }] =
      context.getArgs<
        [unknown, { user?: string }, { req: { headers?: Record<string, string>; user?: object } }]
      >();
    req.user = { id: user ?? req.headers?.['x-user'] };
    return true;
  }
}

@Resolver(() => User)
class Users {
  @RateLimit(TWO)
  @Query(() => String)
  search(): string {
    return 'found';
  }

  @Query(() => String)
  @RateLimit(TWO)
  other(): string {
    return 'found';
  }

  @Query(() => String, { nullable: true })
  @RateLimit({ limit: 49, windowMs: minutes(1) })
  wide(): string {
    return 'found';
  }

  @Query(() => String)
  free(): string {
    return 'free';
  }

  @Query(() => String)
  @SkipRateLimit()
  skipped(): string {
    return 'skipped';
  }

  /** Nullable, so that the failure of one does not end the operation before the others were tried. */
  @Mutation(() => String, { nullable: true })
  @RateLimit('login')
  login(@Args('input') { password }: Credentials): string {
    if (password !== 'correct') throw new UnauthorizedException();
    return 'token';
  }

  /** What does not have to be sent must not decide by whom a call is counted. */
  @Mutation(() => String)
  @RateLimit({ ...TWO, name: 'with-captcha', keyBy: 'body.email' })
  withCaptcha(
    @Args('input') { email }: Credentials,
    @Args('captcha', { nullable: true }) _captcha?: string,
  ): string {
    return email;
  }

  /** graphql-js takes an error that is returned for one that is thrown. */
  @Mutation(() => String)
  @RateLimit({ ...TWO, count: 'failure', resetOnSuccess: true, blockMs: minutes(1) })
  returning(): Error {
    return new UnauthorizedException();
  }

  /** Two limits: one that waits for the end of the call, and one that may deny it after that was let in. */
  @Query(() => String)
  @UseGuards(WhoAmI)
  @RateLimit([
    { ...TWO, name: 'failures', count: 'failure', blockMs: minutes(1) },
    { ...TWO, name: 'calls', keyBy: 'user' },
  ])
  twice(): string {
    return 'fine';
  }

  @Query(() => String)
  @RateLimit({ limit: () => 100, windowMs: minutes(1) })
  dynamic(): string {
    return 'found';
  }

  /** With an error of GraphQL's own. */
  @Mutation(() => String)
  @RateLimit({ ...TWO, count: 'failure', blockMs: minutes(1) })
  enter(@Args('password') password: string): string {
    if (password !== 'correct') throw new GraphQLError('no', { extensions: { code: 'UNAUTHENTICATED' } });
    return 'token';
  }

  @Mutation(() => String)
  @UseGuards(Forbidding)
  @RateLimit({ ...TWO, name: 'forbidden', count: 'failure', blockMs: minutes(1) })
  forbidden(): string {
    return 'never';
  }

  @Query(() => User)
  me(): User {
    return { id: '7' };
  }

  @ResolveField(() => String)
  @RateLimit(TWO)
  avatar(@Parent() { id }: User): string {
    return `avatar of ${id}`;
  }

  @UseGuards(WhoAmI)
  @RateLimit({ ...TWO, keyBy: 'user' })
  @Subscription(() => String)
  async *ticksOfUser(@Args('user') _user: string): AsyncGenerator<{ ticksOfUser: string }, void, undefined> {
    yield await Promise.resolve({ ticksOfUser: 'tick' });
  }

  @RateLimit(TWO)
  @Subscription(() => String)
  async *ticks(): AsyncGenerator<{ ticks: string }, void, undefined> {
    yield await Promise.resolve({ ticks: 'tick' });
  }
}

const codes = ({ errors = [] }: GraphQLAnswer): unknown[] => errors.map(({ extensions }) => extensions?.code);

const attempt = (email: string, password = 'wrong'): string =>
  `login(input: { email: "${email}", password: "${password}" })`;

/** So many times the same field in one operation. */
const aliased = (times: number, field: string): string =>
  Array.from({ length: times }, (_, i) => `a${i}: ${field}`).join('\n');

const apps: GraphQLApp[] = [];
afterEach(async () => {
  await Promise.all(apps.splice(0).map((app) => app.close()));
});

async function start(
  adapter: 'express' | 'fastify',
  options: SyncGuardOptions = {},
  metadata: ModuleMetadata = {},
  config: Parameters<typeof graphqlApp>[2] = {},
): Promise<GraphQLApp> {
  const app = await graphqlApp(
    adapter,
    {
      imports: [SyncGuardModule.forRoot(options)],
      providers: [Users, Forbidding, WhoAmI, ...(metadata.providers ?? [])],
    },
    { fieldResolverEnhancers: ['guards', 'interceptors'], ...config },
  );
  apps.push(app);
  return app;
}

describe.each(['express', 'fastify'] as const)('@RateLimit in GraphQL on %s', (adapter) => {
  it('counts each field by itself, also where several are asked at once', async () => {
    const app = await start(adapter);
    expect(await app.query('{ search other a: search }')).toEqual({
      data: { search: 'found', other: 'found', a: 'found' },
    });
    expect(codes(await app.query('{ search }'))).toEqual(['RateLimited']);
    expect(codes(await app.query('{ other }'))).toEqual([]);
    expect(codes(await app.query('{ other }'))).toEqual(['RateLimited']);
  });

  it('counts 50 aliased logins as 50', async () => {
    const app = await start(adapter);
    const attempts = await app.query(`mutation { ${aliased(50, attempt('ann@example.org'))} }`);
    const [first, second, third, fourth, ...others] = codes(attempts);
    expect([first, second, third, fourth]).toEqual(Array(4).fill('UNAUTHENTICATED'));
    // The fifth failure blocks and is itself answered so, and the block answers the rest: nobody gets a sixth guess.
    expect(others).toEqual(Array(46).fill('TooManyAttempts'));
    expect(codes(await app.query(`mutation { ${attempt('ann@example.org', 'correct')} }`))).toEqual([
      'TooManyAttempts',
    ]);
  });

  it('counts 50 aliased queries, which run at once, as 50', async () => {
    const app = await start(adapter);
    const { data, errors } = await app.query(`{ ${aliased(50, 'wide')} }`);
    expect(Object.values(data ?? {}).filter((value) => value === 'found')).toHaveLength(49);
    expect(errors).toMatchObject([{ extensions: { code: 'RateLimited' } }]);
  });

  it('knows a failure by the code of a GraphQLError', async () => {
    const app = await start(adapter);
    const enter = async (password: string): Promise<unknown[]> =>
      codes(await app.query(`mutation { enter(password: "${password}") }`));
    expect(await enter('wrong')).toEqual(['UNAUTHENTICATED']);
    expect(await enter('wrong')).toEqual(['UNAUTHENTICATED']);
    expect(await enter('correct')).toEqual([]);
    expect(await enter('wrong')).toEqual(['TooManyAttempts']);
    expect(await enter('correct')).toEqual(['TooManyAttempts']);
  });

  it('counts a subscription by the user that other guards have found', async () => {
    const app = await start(adapter);
    const subscribe = async (user: string): Promise<unknown[]> => {
      for await (const answer of app.subscribe(`subscription { ticksOfUser(user: "${user}") }`))
        return codes(answer);
      return ['nothing'];
    };
    for (const user of ['ann', 'bob']) for (let i = 0; i < 2; i++) expect(await subscribe(user)).toEqual([]);
    for (const user of ['ann', 'bob']) expect(await subscribe(user)).toEqual(['RateLimited']);
  });

  it('exempts a subscription by its path', async () => {
    const app = await start(adapter, { limit: { allow: ['/graphql'] } });
    for (let i = 0; i < 3; i++)
      for await (const answer of app.subscribe('subscription { ticks }'))
        expect(answer).toEqual({ data: { ticks: 'tick' } });
  });

  it('counts by an input object also where another argument, that nobody has to send, stands beside it', async () => {
    const app = await start(adapter);
    const send = async (others: string): Promise<unknown[]> =>
      codes(
        await app.query(
          `mutation { withCaptcha(input: { email: "ann@example.org", password: "" }${others}) }`,
        ),
      );
    expect([await send(''), await send(', captcha: "x"')]).toEqual([[], []]);
    expect([await send(', captcha: "x"'), await send(', captcha: null'), await send('')]).toEqual(
      Array(3).fill(['RateLimited']),
    );
  });

  it('takes an error that is returned for a failure, as GraphQL does', async () => {
    const app = await start(adapter);
    const answers: unknown[] = [];
    for (let i = 0; i < 4; i++) answers.push(...codes(await app.query('mutation { returning }')));
    expect(answers).toEqual(['UNAUTHENTICATED', 'UNAUTHENTICATED', 'TooManyAttempts', 'TooManyAttempts']);
  });

  it('takes no call that another limit has denied for a failure, nor for one in flight', async () => {
    const app = await start(adapter);
    for (let i = 0; i < 2; i++) expect(codes(await app.query('{ twice }'))).toEqual([]);
    for (let i = 0; i < 4; i++) expect(codes(await app.query('{ twice }'))).toEqual(['RateLimited']);
  });

  it('lets calls pass that a global limit of failures could not see the end of, with one warning', async () => {
    const warn = jest.spyOn(Logger.prototype, 'warn').mockImplementation();
    const app = await start(
      adapter,
      { limits: { default: { ...TWO, count: 'failure' } } },
      { providers: [{ provide: APP_GUARD, useClass: RateLimitGuard }] },
    );
    for (let i = 0; i < 4; i++) expect(await app.query('{ free }')).toEqual({ data: { free: 'free' } });
    const told = warn.mock.calls
      .map(([message]) => String(message))
      .filter((text) => /RATE_LIMIT/.test(text));
    expect(told).toEqual([expect.stringMatching(/RATE_LIMIT_NO_OUTCOME: .*`default`.*'graphql'/)]);
    warn.mockRestore();
  });

  it('names a limit that comes with each call once in the headers, however often it was asked', async () => {
    const config =
      adapter === 'express' ? {} : { context: (request: object, reply: object) => ({ req: request, reply }) };
    const app = await start(adapter, { limit: { headers: 'draft-10' } }, {}, config);
    const response = await fetch(`${app.url}/graphql`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ query: `{ ${aliased(50, 'dynamic')} }` }),
    });
    expect(response.headers.get('ratelimit')).toEqual(
      upTo(60, (left) => `"GraphQL Query.dynamic";r=50;t=${left}`),
    );
  });

  it('applies the global guard to every field of a query, and leaves alone what is to be skipped', async () => {
    const app = await start(
      adapter,
      { limits: { default: TWO } },
      { providers: [{ provide: APP_GUARD, useClass: RateLimitGuard }] },
    );
    expect(codes(await app.query('{ a: free b: free c: free s: skipped }'))).toEqual(['RateLimited']);
    expect(codes(await app.query('{ skipped }'))).toEqual([]);
  });

  it('exempts a path, as everywhere', async () => {
    const app = await start(
      adapter,
      { limits: { default: TWO }, limit: { allow: ['/graphql'] } },
      { providers: [{ provide: APP_GUARD, useClass: RateLimitGuard }] },
    );
    for (let i = 0; i < 3; i++) expect(await app.query('{ free }')).toEqual({ data: { free: 'free' } });
  });

  it('writes the headers of all fields to the response, where the context has one', async () => {
    // On Express Nest's own context leads to it, by its request.
    const config =
      adapter === 'express' ? {} : { context: (request: object, reply: object) => ({ req: request, reply }) };
    const app = await start(adapter, { limit: { headers: 'draft-10' } }, {}, config);
    const ask = (query: string): Promise<Response> =>
      fetch(`${app.url}/graphql`, {
        method: 'POST',
        headers: { 'content-type': 'application/json' },
        body: JSON.stringify({ query }),
      });
    const response = await ask('{ search a: search other }');
    expect(response.headers.get('ratelimit')).toEqual(
      upTo(60, (left) => `"GraphQL Query.search";r=0;t=${left}, "GraphQL Query.other";r=1;t=60`),
    );
    expect((await ask('{ search }')).headers.get('retry-after')).toEqual(upTo(60));
  });
});

describe('the boot check of field resolvers', () => {
  /** No schema is built of them: what counts is what the check says of the options. */
  const boot = async (resolver: Type, ...options: object[]): Promise<void> => {
    @Module({ providers: [resolver] })
    class Resolvers {}
    const modules = options.map((option, i) => ({
      module: { [`GraphQL${i}`]: class {} }[`GraphQL${i}`] as Type,
      providers: [{ provide: 'GqlModuleOptions', useValue: option }],
    }));
    const module = await Test.createTestingModule({
      imports: [SyncGuardModule.forRoot(), Resolvers, ...modules],
    }).compile();
    await module.init();
    await module.close();
  };
  const both = { fieldResolverEnhancers: ['guards', 'interceptors'] };
  const unguarded = /RATE_LIMIT_UNGUARDED_FIELD/;

  @Resolver(() => User)
  class Fields {
    @ResolveField(() => String)
    @RateLimit(TWO)
    avatar(): string {
      return '';
    }
  }

  it('asks every GraphQLModule', async () => {
    await expect(boot(Fields, both, both)).resolves.toBeUndefined();
    await expect(boot(Fields, both, {})).rejects.toThrow(unguarded);
    await expect(boot(Fields, {}, both)).rejects.toThrow(unguarded);
    await expect(boot(Fields)).resolves.toBeUndefined();
  });

  it('knows what resolves references', async () => {
    @Resolver(() => User)
    class References {
      @ResolveReference()
      @RateLimit(TWO)
      resolve(): User {
        return { id: '7' };
      }
    }
    await expect(boot(References, {})).rejects.toThrow(unguarded);
    await expect(boot(References, both)).resolves.toBeUndefined();
  });

  it('lets a class have limits for its queries alone, but none that are half asked', async () => {
    @RateLimit({ ...TWO, count: 'failure' })
    @Resolver(() => User)
    class Both {
      @ResolveField(() => String)
      avatar(): string {
        return '';
      }
    }
    await expect(boot(Both, {})).resolves.toBeUndefined();
    await expect(boot(Both, both)).resolves.toBeUndefined();
    await expect(boot(Both, { fieldResolverEnhancers: ['guards'] })).rejects.toThrow(
      /UNGUARDED_FIELD: .*class of the field resolver Both\.avatar .* Nest asks no interceptors/,
    );
  });

  it('passes over fields that a class inherits and puts others in place of', async () => {
    @Resolver(() => User)
    class Plain extends Fields {
      @ResolveField(() => String)
      override avatar(): string {
        return 'plain';
      }
    }
    await expect(boot(Plain, {})).resolves.toBeUndefined();
  });
});

describe('a guard of GraphQL that refuses a call in flight', () => {
  it('makes a failure of it, though nobody tells', async () => {
    jest.useFakeTimers({ doNotFake: ['nextTick', 'setImmediate', 'queueMicrotask', 'Date', 'performance'] });
    try {
      const app = await start('express');
      const ask = async (): Promise<unknown[]> => codes(await app.query('mutation { forbidden }'));
      for (let i = 0; i < 3; i++) expect(await ask()).toEqual(['FORBIDDEN']);
      // The three may still turn out well: a fourth has to wait, but for no longer than a second.
      const busy = await app.query('mutation { forbidden }');
      expect(busy.errors?.[0]).toMatchObject({ extensions: { context: { retryAfter: 1 } } });
      await jest.advanceTimersByTimeAsync(seconds(30));
      const { errors } = await app.query('mutation { forbidden }');
      expect(errors?.[0]).toMatchObject({
        extensions: { code: 'TooManyAttempts', context: { retryAfter: 60 } },
      });
    } finally {
      jest.useRealTimers();
    }
  });
});
