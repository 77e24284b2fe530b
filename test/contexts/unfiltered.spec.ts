import 'reflect-metadata';
import { Args, Field, ObjectType, Parent, Query, ResolveField, Resolver } from '@nestjs/graphql';
import { SubscribeMessage, WebSocketGateway } from '@nestjs/websockets';
import { LockService, SyncGuardModule, WithLock } from 'nestjs-syncguard';
import { eventually } from '../support/eventually.js';
import { setTimeout as sleep } from 'node:timers/promises';
import { graphqlApp } from './apps/graphql-app.js';
import { NEST_VERSION } from './apps/nest-version.js';
import { socketApp } from './apps/socket-app.js';

let runs = 0;
beforeEach(() => (runs = 0));

@WebSocketGateway()
class Unfiltered {
  @SubscribeMessage('run')
  @WithLock('held', { timeoutMs: 0 })
  async run(): Promise<void> {
    runs++;
  }
}

@ObjectType()
class Order {
  @Field() id!: string;
}

@Resolver(() => Order)
class Orders {
  @Query(() => Order)
  order(@Args('id') id: string): Order {
    return { id };
  }

  @ResolveField(() => String)
  @WithLock('held', { timeoutMs: 0 })
  async state(@Parent() _order: Order): Promise<string> {
    runs++;
    return 'paid';
  }
}

/** What Nest does by itself, where it knows nothing of our filter; the method does not run in any case. */
describe('where Nest applies no global filter', () => {
  it.each(['socket.io', 'ws'] as const)(
    'a client of a gateway on %s is not told why, unless the gateway names the filter',
    async (kind) => {
      const { app, connect, close } = await socketApp(kind, {
        imports: [SyncGuardModule.forRoot({ shutdown: { drainMs: 0 } })],
        providers: [Unfiltered],
      });
      app.useLogger(false);
      await app.get(LockService).acquire({ key: 'held', ttlMs: 10_000 });
      const client = await connect();
      void client.send('run');
      if (kind === 'ws' && NEST_VERSION === 11) await sleep(100);
      else await eventually(() => expect(client.received).toHaveLength(1));
      expect(client.received).toMatchObject(
        kind === 'ws' && NEST_VERSION === 11
          ? []
          : [{ exception: { status: 'error', message: 'Internal server error' } }],
      );
      expect(runs).toBe(0);
      await close();
    },
  );

  it.each([
    [['filters' as const], { statusCode: 423, code: 'AcquisitionTimeout' }],
    [[], { code: 'INTERNAL_SERVER_ERROR' }],
  ])(
    'a field of an object tells why with fieldResolverEnhancers: %j',
    async (fieldResolverEnhancers, expected) => {
      const { app, query, close } = await graphqlApp(
        'express',
        { imports: [SyncGuardModule.forRoot({ shutdown: { drainMs: 0 } })], providers: [Orders] },
        { fieldResolverEnhancers },
      );
      app.useLogger(false);
      await app.get(LockService).acquire({ key: 'held', ttlMs: 10_000 });
      const { errors } = await query('{ order(id: "7") { state } }');
      expect(errors).toMatchObject([{ path: ['order', 'state'], extensions: expected }]);
      expect(runs).toBe(0);
      await close();
    },
  );
});
