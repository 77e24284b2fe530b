import 'reflect-metadata';
import {
  BadRequestException,
  type CanActivate,
  Controller,
  type ExecutionContext,
  Logger,
  type Type,
  UnauthorizedException,
  UseGuards,
} from '@nestjs/common';
import { Args, ArgsType, Field, Mutation, Query, Resolver } from '@nestjs/graphql';
import { MessagePattern, Payload, RpcException } from '@nestjs/microservices';
import { MessageBody, SubscribeMessage, WebSocketGateway, WsException } from '@nestjs/websockets';
import { type LimitPolicy, minutes, RateLimit, SyncGuardModule } from 'nestjs-syncguard';
import { freshRedis } from '../support/redis.js';
import { graphqlApp } from './apps/graphql-app.js';
import { rpcApp } from './apps/rpc-app.js';
import { socketApp } from './apps/socket-app.js';

Logger.overrideLogger(['error']);

@ArgsType()
class Data {
  @Field() readonly user!: string;
  @Field() readonly says!: string;
}
type Result = 'ok' | 'denied' | 'failed';
type Operation = 'before' | 'after' | 'made' | 'mine' | 'planned';

const TWO = { limit: 2, windowMs: minutes(1), keyBy: 'body.user' } satisfies LimitPolicy;

function dataOf(context: ExecutionContext): Data {
  if (context.getType<string>() === 'graphql') return context.getArgs<[unknown, Data]>()[1];
  return context.getType() === 'ws'
    ? context.switchToWs().getData<Data>()
    : context.switchToRpc().getData<Data>();
}

const refusal = (context: ExecutionContext): Error => {
  if (context.getType() === 'ws') return new WsException({ status: 401, message: 'no' });
  return context.getType() === 'rpc'
    ? new RpcException({ statusCode: 401, message: 'no' })
    : new UnauthorizedException();
};

class Password implements CanActivate {
  canActivate(context: ExecutionContext): boolean {
    if (dataOf(context).says === 'wrong') throw refusal(context);
    return true;
  }
}

const PLANS: Readonly<Record<string, number | 'unlimited'>> = { suspended: 0, paid: 'unlimited', free: 2 };

/** The policy of each operation, the same in every context. */
const POLICIES: Readonly<Record<Operation, LimitPolicy>> = {
  before: { ...TWO, cost: () => 1, ask: 'before' },
  after: { ...TWO, cost: () => 1, ask: 'after' },
  made: { ...TWO, count: 'success' },
  mine: { ...TWO, keyBy: 'user' },
  planned: { ...TWO, limit: (context: ExecutionContext) => PLANS[dataOf(context).says] ?? 2 },
};

/** The operations as handlers of a context. */
function operationsUnder(
  onClass: ClassDecorator,
  handles: (name: Operation) => MethodDecorator,
  takes: ParameterDecorator,
  no: () => Error,
): Type {
  @onClass
  class Operations {
    @RateLimit(POLICIES.before)
    @UseGuards(Password)
    @handles('before')
    before(@takes { user }: Data): string {
      return user;
    }

    @UseGuards(Password)
    @RateLimit(POLICIES.after)
    @handles('after')
    after(@takes { user }: Data): string {
      return user;
    }

    @RateLimit(POLICIES.made)
    @handles('made')
    made(@takes { user, says }: Data): string {
      if (says === 'wrong') throw no();
      return user;
    }

    @RateLimit(POLICIES.mine)
    @handles('mine')
    mine(@takes { user }: Data): string {
      return user;
    }

    @RateLimit(POLICIES.planned)
    @handles('planned')
    planned(@takes { user }: Data): string {
      return user;
    }
  }
  return Operations;
}

const Resolvers = operationsUnder(
  Resolver(),
  (name) => (name === 'made' ? Mutation(() => String, { name }) : Query(() => String, { name })),
  Args(),
  () => new BadRequestException(),
);
const Gateway = operationsUnder(
  WebSocketGateway(),
  (name) => SubscribeMessage(name),
  MessageBody(),
  () => new WsException({ status: 400, message: 'no' }),
);
const Handlers = operationsUnder(
  Controller(),
  (name) => MessagePattern(name),
  Payload(),
  () => new RpcException({ statusCode: 400, message: 'no' }),
);

interface App {
  call(operation: Operation, data: Data): Promise<Result>;
  close(): Promise<void>;
}

const resultOf = (code: unknown, failed: boolean): Result =>
  code === 'RateLimited' ? 'denied' : failed ? 'failed' : 'ok';

const messages = (app: {
  send(event: Operation, data: Data): Promise<object>;
  close(): Promise<void>;
}): App => ({
  async call(operation, data) {
    const reply = (await app.send(operation, data)) as { exception?: { code?: unknown } };
    return resultOf(reply.exception?.code, 'exception' in reply);
  },
  close: () => app.close(),
});

const graphql =
  (adapter: 'express' | 'fastify') =>
  async (imports: ReturnType<typeof SyncGuardModule.forRoot>[]): Promise<App> => {
    const app = await graphqlApp(adapter, { imports, providers: [Resolvers] });
    return {
      async call(operation, { user, says }) {
        const kind = operation === 'made' ? 'mutation' : 'query';
        const { errors = [] } = await app.query(`${kind} { ${operation}(user: "${user}", says: "${says}") }`);
        return resultOf(errors[0]?.extensions?.['code'], errors.length > 0);
      },
      close: () => app.close(),
    };
  };

const CONTEXTS: Readonly<
  Record<string, (imports: ReturnType<typeof SyncGuardModule.forRoot>[]) => Promise<App>>
> = {
  'GraphQL on Express': graphql('express'),
  'GraphQL on Fastify': graphql('fastify'),
  'a gateway': async (imports) => messages(await socketApp('socket.io', { imports, providers: [Gateway] })),
  'a message handler': async (imports) => messages(await rpcApp({ imports, controllers: [Handlers] })),
};

const CELLS = Object.keys(CONTEXTS).flatMap((context) =>
  (['memory', 'redis'] as const).map((backend) => [context, backend] as const),
);

describe.each(CELLS)('policies on %s with %s', (context, backend) => {
  let app: App;
  beforeEach(async () => {
    const redis = backend === 'redis' ? { redis: (await freshRedis()).url } : {};
    // What limits decide is tested here, not their deadline, which a busy machine may miss.
    const limit = { commandTimeoutMs: 10_000, user: (of: ExecutionContext) => dataOf(of).user };
    app = await (CONTEXTS[context] as (typeof CONTEXTS)[string])([
      SyncGuardModule.forRoot({ ...redis, limit }),
    ]);
  });
  afterEach(() => app.close());

  const calls = async (n: number, operation: Operation, says: string, user = 'ann'): Promise<Result[]> => {
    const results: Result[] = [];
    for (let i = 0; i < n; i++) results.push(await app.call(operation, { user, says }));
    return results;
  };

  it("`ask: 'before'` counts the calls that a guard refuses", async () => {
    expect(await calls(3, 'before', 'wrong')).toEqual(['failed', 'failed', 'denied']);
    expect(await calls(1, 'before', 'right')).toEqual(['denied']);
    expect(await calls(1, 'before', 'right', 'bob')).toEqual(['ok']);
  });

  it("`ask: 'after'` counts the calls that the guards let pass", async () => {
    expect(await calls(3, 'after', 'wrong')).toEqual(['failed', 'failed', 'failed']);
    expect(await calls(3, 'after', 'right')).toEqual(['ok', 'ok', 'denied']);
  });

  it("`count: 'success'` counts successes, and takes failures back", async () => {
    expect(await calls(3, 'made', 'wrong')).toEqual(['failed', 'failed', 'failed']);
    expect(await calls(3, 'made', 'right')).toEqual(['ok', 'ok', 'denied']);
  });

  it('`limit.user` finds the user', async () => {
    expect(await calls(3, 'mine', '', 'ann')).toEqual(['ok', 'ok', 'denied']);
    expect(await calls(1, 'mine', '', 'bob')).toEqual(['ok']);
  });

  it('a function sets the limit of a call', async () => {
    expect(await calls(1, 'planned', 'suspended', 'eve')).toEqual(['denied']);
    expect(await calls(4, 'planned', 'paid', 'bob')).toEqual(['ok', 'ok', 'ok', 'ok']);
    expect(await calls(3, 'planned', 'free', 'ann')).toEqual(['ok', 'ok', 'denied']);
  });
});
