import { type ExecutionContext, Injectable, type ModuleMetadata, UseGuards } from '@nestjs/common';
import { APP_GUARD } from '@nestjs/core';
import { GqlExecutionContext, Query, Resolver } from '@nestjs/graphql';
import {
  seconds,
  ThrottlerException,
  ThrottlerGuard,
  ThrottlerModule,
  type ThrottlerRequest,
} from '@nestjs/throttler';
import { MessageBody, SubscribeMessage, WebSocketGateway } from '@nestjs/websockets';
import { AbuseLimiterService, SyncGuardModule } from 'nestjs-syncguard';
import { SyncGuardThrottlerStorage } from 'nestjs-syncguard/throttler';
import { graphqlApp } from '../contexts/apps/graphql-app.js';
import { socketApp } from '../contexts/apps/socket-app.js';
import { freshRedis } from '../support/redis.js';

// The guards that throttler's README tells people to write for other contexts, on our storage.

@Injectable()
class GraphQLThrottlerGuard extends ThrottlerGuard {
  override getRequestResponse(context: ExecutionContext) {
    const { req } = GqlExecutionContext.create(context).getContext<{
      req: Record<string, unknown> & { res: Record<string, unknown> };
    }>();
    return { req, res: req.res };
  }
}

@Injectable()
class SocketThrottlerGuard extends ThrottlerGuard {
  override async handleRequest({
    context,
    limit,
    ttl,
    throttler,
    blockDuration,
    generateKey,
  }: ThrottlerRequest) {
    const key = generateKey(context, 'one', throttler.name as string);
    const { isBlocked } = await this.storageService.increment(
      key,
      ttl,
      limit,
      blockDuration,
      throttler.name as string,
    );
    if (isBlocked) throw new ThrottlerException();
    return true;
  }
}

@Resolver()
class GreetingsResolver {
  @Query(() => String)
  hello() {
    return 'hello';
  }
}

@WebSocketGateway()
class EchoGateway {
  @SubscribeMessage('say')
  @UseGuards(SocketThrottlerGuard)
  say(@MessageBody() text: string) {
    return text;
  }
}

const storageOn = (redis: string): NonNullable<ModuleMetadata['imports']> => [
  SyncGuardModule.forRoot({ redis }),
  ThrottlerModule.forRootAsync({
    inject: [AbuseLimiterService],
    useFactory: (limiter: AbuseLimiterService) => ({
      throttlers: [{ limit: 2, ttl: seconds(10) }],
      storage: new SyncGuardThrottlerStorage(limiter),
    }),
  }),
];

it('limits queries of GraphQL', async () => {
  const app = await graphqlApp('express', {
    imports: storageOn((await freshRedis()).url),
    providers: [GreetingsResolver, { provide: APP_GUARD, useClass: GraphQLThrottlerGuard }],
  });
  try {
    for (let i = 0; i < 2; i++) expect(await app.query('{ hello }')).toEqual({ data: { hello: 'hello' } });
    expect(await app.query('{ hello }')).toMatchObject({
      errors: [{ message: 'ThrottlerException: Too Many Requests' }],
    });
  } finally {
    await app.close();
  }
});

it.each(['ws', 'socket.io'] as const)('limits messages of %s', async (kind) => {
  const app = await socketApp(kind, {
    imports: storageOn((await freshRedis()).url),
    providers: [EchoGateway],
  });
  try {
    const answers: string[] = [];
    for (let i = 0; i < 3; i++) answers.push(JSON.stringify(await app.send('say', 'hello')));
    expect(answers.slice(0, 2).every((answer) => answer.includes('hello'))).toBe(true);
    expect(answers[2]).not.toContain('"answer":"hello"');
    expect(answers[2]).toMatch(/exception|error/i);
  } finally {
    await app.close();
  }
});
