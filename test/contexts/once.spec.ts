import 'reflect-metadata';
import { applyDecorators, Injectable, type Type, UseFilters } from '@nestjs/common';
import { EventEmitter2, EventEmitterModule, OnEvent } from '@nestjs/event-emitter';
import { Cron, ScheduleModule, SchedulerRegistry } from '@nestjs/schedule';
import { Test, type TestingModule } from '@nestjs/testing';
import { MessageBody, SubscribeMessage, WebSocketGateway } from '@nestjs/websockets';
import {
  currentOnce,
  Once,
  OnceService,
  type SyncGuardEvent,
  SyncGuardExceptionFilter,
  SyncGuardModule,
} from 'nestjs-syncguard';
import { eventually } from '../support/eventually.js';
import { socketApp, type SocketApp } from './apps/socket-app.js';

/** What the methods do: it counts their runs, and keeps them inside while it is told to. */
@Injectable()
class Work {
  runs = 0;
  open: Promise<void> | undefined;
  release = (): void => {};

  hold(): void {
    this.open = new Promise((resolve) => (this.release = resolve));
  }

  async run(): Promise<string> {
    const text = `run ${++this.runs} of ${currentOnce()?.key}`;
    await this.open;
    return text;
  }
}

const events: SyncGuardEvent[] = [];
const syncGuard = () =>
  SyncGuardModule.forRoot({ telemetry: { onEvent: (event) => void events.push(event) } });
const times = (type: string): number => events.filter((event) => event.type === type).length;
beforeEach(() => void (events.length = 0));

const keyOf = (id = 'none'): string => `pay:${id}`;

/** Our decorator above that of Nest, and below. */
function payments(
  onClass: ClassDecorator,
  onMethod: (name: string) => MethodDecorator,
  onParameter: () => ParameterDecorator = () => () => {},
): Type<unknown> {
  @onClass
  class Payments {
    constructor(private readonly work: Work) {}

    @Once({ key: keyOf })
    @onMethod('above')
    async above(@onParameter() _id?: string): Promise<string> {
      return this.work.run();
    }

    @onMethod('below')
    @Once({ key: keyOf })
    async below(@onParameter() _id?: string): Promise<string> {
      return this.work.run();
    }
  }
  return Payments;
}

describe.each(['socket.io', 'ws'] as const)('@Once() on a gateway of %s', (kind) => {
  let sockets: SocketApp;
  let work: Work;
  beforeEach(async () => {
    const onClass = applyDecorators(WebSocketGateway(), UseFilters(SyncGuardExceptionFilter));
    const Gateway = payments(
      onClass,
      (name) => SubscribeMessage(name),
      () => MessageBody(),
    );
    sockets = await socketApp(kind, { imports: [syncGuard()], providers: [Gateway, Work] });
    work = sockets.app.get(Work);
  });
  afterEach(async () => {
    work.release();
    await sockets.close();
  });

  it.each(['above', 'below'])('%s: a message that comes again gets the answer of the first', async (name) => {
    const first = await sockets.send(name, '7');
    expect(first).toStrictEqual({ answer: 'run 1 of pay:7' });
    expect(await sockets.send(name, '7')).toStrictEqual(first);
    expect(await sockets.send(name, '8')).toStrictEqual({ answer: 'run 2 of pay:8' });
    expect(work.runs).toBe(2);
  });

  it.each(['above', 'below'])('%s: a message that comes while the first runs is refused', async (name) => {
    work.hold();
    const first = sockets.send(name, '7');
    await eventually(() => expect(work.runs).toBe(1));
    expect(await sockets.send(name, '7')).toMatchObject({
      exception: { status: 'error', statusCode: 409, code: 'OnceInProgress', context: { retryAfter: 1 } },
    });
    work.release();
    expect(await first).toStrictEqual({ answer: 'run 1 of pay:7' });
  });
});

describe.each<
  [
    string,
    string,
    () => object,
    (name: string) => MethodDecorator,
    (app: TestingModule, name: string) => unknown,
  ]
>([
  [
    '@OnEvent',
    'pay:7',
    () => EventEmitterModule.forRoot(),
    (name) => OnEvent(name),
    (app, name) => app.get(EventEmitter2).emit(name, '7'),
  ],
  [
    '@Cron',
    'pay:none',
    () => ScheduleModule.forRoot(),
    (name) => Cron('0 0 1 1 *', { name }),
    (app, name) => app.get(SchedulerRegistry).getCronJob(name).fireOnTick(),
  ],
])('@Once() with %s', (_, key, module, onMethod, trigger) => {
  let app: TestingModule;
  let work: Work;
  beforeEach(async () => {
    app = await Test.createTestingModule({
      imports: [syncGuard(), module() as Type<unknown>],
      providers: [payments(Injectable(), onMethod), Work],
    }).compile();
    app.useLogger(false); // Where nobody is answered Nest logs the refusals.
    await app.init();
    work = app.get(Work);
  });
  afterEach(async () => {
    work.release();
    await app.close();
  });

  it.each(['above', 'below'])('%s: runs once, while it runs and afterwards', async (name) => {
    work.hold();
    void trigger(app, name);
    await eventually(() => expect(work.runs).toBe(1));
    void trigger(app, name);
    await eventually(() => expect(times('claim')).toBe(2));
    work.release();
    await eventually(async () =>
      expect(await app.get(OnceService).get(key)).toMatchObject({ state: 'done' }),
    );
    void trigger(app, name);
    await eventually(() => expect(times('replay')).toBe(1));
    expect(work.runs).toBe(1);
  });
});
