import 'reflect-metadata';
import {
  type CanActivate,
  type ExecutionContext,
  ForbiddenException,
  Injectable,
  type ModuleMetadata,
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
  Resolver,
  Subscription,
} from '@nestjs/graphql';
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
    const { req } = context.getArgByIndex<{ req: { headers: Record<string, string>; user?: object } }>(2);
    req.user = { id: req.headers['x-user'] };
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

  @Query(() => String)
  @RateLimit({ ...TWO, name: 'by-account', keyBy: 'body.email' })
  byAccount(@Args('email') email: string): string {
    return email;
  }

  @Query(() => String)
  @UseGuards(WhoAmI)
  @RateLimit({ ...TWO, keyBy: 'user' })
  mine(): string {
    return 'mine';
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
  it('denies a query with code, status and the seconds to wait', async () => {
    const app = await start(adapter);
    for (let i = 0; i < 2; i++) expect(await app.query('{ search }')).toEqual({ data: { search: 'found' } });
    expect(await app.query('{ search }')).toEqual({
      data: null,
      errors: [
        {
          message: 'Too many attempts. Try again in 60 seconds.',
          path: ['search'],
          locations: [{ line: 1, column: 3 }],
          extensions: { statusCode: 429, code: 'RateLimited', context: { retryAfter: 60 } },
        },
      ],
    });
  });

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

  it('lets the right password in among wrong ones, and forgets them', async () => {
    const app = await start(adapter);
    const login = (password: string): Promise<GraphQLAnswer> =>
      app.query(`mutation { ${attempt('ann@example.org', password)} }`);
    for (let round = 0; round < 2; round++) {
      for (let i = 0; i < 4; i++) expect(codes(await login('wrong'))).toEqual(['UNAUTHENTICATED']);
      expect(await login('correct')).toEqual({ data: { login: 'token' } });
    }
    for (let i = 0; i < 4; i++) await login('wrong');
    expect(codes(await login('wrong'))).toEqual(['TooManyAttempts']);
    expect(codes(await login('correct'))).toEqual(['TooManyAttempts']);
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

  it('counts by what the arguments say, and by the user that other guards have found', async () => {
    const app = await start(adapter);
    const by = async (email: string): Promise<unknown[]> =>
      codes(await app.query(`{ byAccount(email: "${email}") }`));
    expect([await by('ann@example.org'), await by('ANN@example.org ')]).toEqual([[], []]);
    expect(await by('ann@example.org')).toEqual(['RateLimited']);
    expect(await by('bob@example.org')).toEqual([]);

    const mine = async (user: string): Promise<unknown[]> =>
      codes(await app.query('{ mine }', { headers: { 'x-user': user } }));
    expect([await mine('ann'), await mine('ann'), await mine('ann')]).toEqual([[], [], ['RateLimited']]);
    expect(await mine('bob')).toEqual([]);
  });

  it('guards fields of objects where Nest is told to', async () => {
    const app = await start(adapter);
    expect(await app.query('{ me { avatar } b: me { avatar } }')).toEqual({
      data: { me: { avatar: 'avatar of 7' }, b: { avatar: 'avatar of 7' } },
    });
    expect(codes(await app.query('{ me { avatar } }'))).toEqual(['RateLimited']);
  });

  it('refuses to boot where a limit on a field would never be asked', async () => {
    await expect(start(adapter, {}, {}, { fieldResolverEnhancers: ['guards'] })).rejects.toThrow(
      /RATE_LIMIT_UNGUARDED_FIELD: .*`avatar`.*fieldResolverEnhancers: \['guards', 'interceptors'\]/,
    );
  });

  it('denies a subscription on its socket', async () => {
    const app = await start(adapter);
    const subscribe = async (): Promise<GraphQLAnswer[]> => {
      const answers: GraphQLAnswer[] = [];
      for await (const answer of app.subscribe('subscription { ticks }')) answers.push(answer);
      return answers;
    };
    for (let i = 0; i < 2; i++) expect(await subscribe()).toEqual([{ data: { ticks: 'tick' } }]);
    expect(await subscribe()).toMatchObject([
      { errors: [{ extensions: { statusCode: 429, code: 'RateLimited', context: { retryAfter: 60 } } }] },
    ]);
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
    expect(response.headers.get('ratelimit')).toBe(
      '"GraphQL Query.search";r=0;t=60, "GraphQL Query.other";r=1;t=60',
    );
    expect((await ask('{ search }')).headers.get('retry-after')).toBe('60');
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
