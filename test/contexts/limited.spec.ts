import { Logger } from '@nestjs/common';
import { Args, Query, Resolver } from '@nestjs/graphql';
import { SubscribeMessage, WebSocketGateway } from '@nestjs/websockets';
import { Limited, type LimitedDecision, minutes, RateLimit, SyncGuardModule } from 'nestjs-syncguard';
import { graphqlApp } from './apps/graphql-app.js';
import { socketApp } from './apps/socket-app.js';

// `@Limited()` and `message` outside of HTTP; test/limit/rate-limit-told.http.spec.ts has them over HTTP.

Logger.overrideLogger(['error']);

const TWO = { limit: 2, windowMs: minutes(1) };

it('holds in GraphQL: the decision of the field, a text, and a body as extensions', async () => {
  @Resolver()
  class Fields {
    @Query(() => Number)
    @RateLimit({ ...TWO, name: 'field', message: 'Later.' })
    left(@Limited() limited: LimitedDecision) {
      return limited.remaining;
    }

    @Query(() => Boolean)
    @RateLimit({ ...TWO, limit: 1, name: 'whole', message: () => ({ code: 'SLOW', days: 1 }) })
    whole(@Args('n') _n: number) {
      return true;
    }
  }
  const app = await graphqlApp('express', { imports: [SyncGuardModule.forRoot()], providers: [Fields] });
  try {
    expect(await app.query('{ left }')).toEqual({ data: { left: 1 } });
    expect(await app.query('{ left }')).toEqual({ data: { left: 0 } });
    expect(await app.query('{ left }')).toMatchObject({
      errors: [{ message: 'Later.', extensions: { statusCode: 429, code: 'RateLimited' } }],
    });
    await app.query('{ whole(n: 1) }');
    const { errors } = await app.query('{ whole(n: 1) }');
    expect(errors?.[0]).toMatchObject({ extensions: { code: 'SLOW', days: 1 } });
  } finally {
    await app.close();
  }
});

it('says that a handler of messages gets no decision', async () => {
  @WebSocketGateway()
  class Gateway {
    @SubscribeMessage('say')
    @RateLimit({ ...TWO, name: 'message' })
    say(@Limited() limited: LimitedDecision) {
      return limited.remaining;
    }
  }
  const logged = jest.spyOn(Logger.prototype, 'error').mockImplementation(() => undefined);
  const app = await socketApp('socket.io', { imports: [SyncGuardModule.forRoot()], providers: [Gateway] });
  try {
    expect(JSON.stringify(await app.send('say'))).toMatch(/error/);
    expect(String(logged.mock.calls[0]?.[0])).toContain(
      '@Limited() is on a parameter of Gateway.say, which handles messages.',
    );
  } finally {
    logged.mockRestore();
    await app.close();
  }
});
