import 'reflect-metadata';
import { Controller, type INestApplicationContext, UseFilters } from '@nestjs/common';
import { MessagePattern } from '@nestjs/microservices';
import { SubscribeMessage, WebSocketGateway } from '@nestjs/websockets';
import {
  BudgetService,
  currentLock,
  LockService,
  SyncGuardExceptionFilter,
  SyncGuardModule,
  WithBudget,
  WithLock,
} from 'nestjs-syncguard';
import { concat, defer, map, NEVER, type Observable, of, throwError } from 'rxjs';
import { eventually } from '../support/eventually.js';
import { type RpcApp, rpcApp } from './apps/rpc-app.js';
import { type SocketApp, socketApp } from './apps/socket-app.js';

const budget = {
  scopes: () => ['team'],
  estimate: () => 60,
  actual: (last?: Item) => last?.data.tokens ?? 0,
};

/** In the shape that a gateway sends as an event, on both adapters. */
interface Item {
  readonly event: string;
  readonly data: { readonly tokens: number; readonly key: string | undefined };
}
const items = (): Observable<Item> =>
  of(3, 7).pipe(map((tokens) => ({ event: 'item', data: { tokens, key: currentLock()?.key } })));
const endless = (): Observable<Item> => concat(items(), NEVER);
const failing = (): Observable<Item> =>
  concat(
    items(),
    throwError(() => new Error('broken')),
  );

@Controller()
@WebSocketGateway()
@UseFilters(SyncGuardExceptionFilter)
class Streams {
  @WithLock('stream')
  @WithBudget(budget)
  @MessagePattern('above')
  @SubscribeMessage('above')
  async above(): Promise<Observable<Item>> {
    return defer(items);
  }

  @MessagePattern('below')
  @SubscribeMessage('below')
  @WithLock('stream')
  @WithBudget(budget)
  async below(): Promise<Observable<Item>> {
    return defer(items);
  }

  @MessagePattern('endless')
  @SubscribeMessage('endless')
  @WithLock('stream')
  @WithBudget(budget)
  async endless(): Promise<Observable<Item>> {
    return defer(endless);
  }

  @MessagePattern('failing')
  @SubscribeMessage('failing')
  @WithLock('stream')
  @WithBudget(budget)
  async failing(): Promise<Observable<Item>> {
    return defer(failing);
  }
}

const imports = () => [
  SyncGuardModule.forRoot({
    lock: { retryDelayMs: 5, timeoutMs: 100 },
    budget: { limits: [{ scope: 'team', period: 'lifetime', limit: 100 }] },
  }),
];
const stateOf = async (app: INestApplicationContext): Promise<unknown> => {
  const [balance] = await app.get(BudgetService).balance({ scope: 'team' });
  const locked = await app.get(LockService).isLocked({ key: 'stream' });
  return { locked, committed: balance?.committed, reserved: balance?.reserved };
};
const both = [3, 7].map((tokens) => ({ event: 'item', data: { tokens, key: 'stream' } }));

describe.each(['socket.io', 'ws'] as const)('a promised Observable of a gateway, on %s', (kind) => {
  let app: SocketApp;
  beforeEach(async () => {
    app = await socketApp(kind, { imports: imports(), providers: [Streams] });
  });
  afterEach(() => app.close());

  it.each(['above', 'below'])('is sent item by item, and settles at its end: ours %s', async (message) => {
    const client = await app.connect();
    await client.send(message);
    await eventually(() => expect(client.received).toEqual(both.map((answer) => ({ answer }))));
    await eventually(async () =>
      expect(await stateOf(app.app)).toEqual({ locked: false, committed: 7, reserved: 0 }),
    );
  });

  it('is guarded until the client leaves', async () => {
    const client = await app.connect();
    await client.send('endless');
    await eventually(() => expect(client.received).toHaveLength(2));
    expect(await stateOf(app.app)).toEqual({ locked: true, committed: 0, reserved: 60 });
    expect(await app.send('below')).toMatchObject({ exception: { code: 'AcquisitionTimeout' } });
    client.close();
    await eventually(async () =>
      expect(await stateOf(app.app)).toEqual({ locked: false, committed: 7, reserved: 0 }),
    );
  });
});

describe('a promised Observable of a message handler', () => {
  let app: RpcApp;
  beforeEach(async () => {
    app = await rpcApp({ imports: imports(), controllers: [Streams] });
    app.app.useLogger(false);
  });
  afterEach(() => app.close());

  it.each(['above', 'below'])('is sent item by item, and settles at its end: ours %s', async (pattern) => {
    expect(await app.sendForAll(pattern)).toEqual(both.map((answer) => ({ answer })));
    await eventually(async () =>
      expect(await stateOf(app.app)).toEqual({ locked: false, committed: 7, reserved: 0 }),
    );
  });

  it('that fails gives its lock back, pays for what has left, and gives its error to the client', async () => {
    expect(await app.sendForAll('failing')).toEqual([
      ...both.map((answer) => ({ answer })),
      { exception: { status: 'error', message: 'Internal server error' } },
    ]);
    await eventually(async () =>
      expect(await stateOf(app.app)).toEqual({ locked: false, committed: 7, reserved: 0 }),
    );
  });
});
