import 'reflect-metadata';
import {
  applyDecorators,
  Controller,
  Get,
  Header,
  HttpCode,
  Injectable,
  Param,
  ParseIntPipe,
  type Type,
} from '@nestjs/common';
import { EventEmitter2, EventEmitterModule, OnEvent } from '@nestjs/event-emitter';
import { Cron, Interval, ScheduleModule, SchedulerRegistry, Timeout } from '@nestjs/schedule';
import { ApiOperation, ApiResponse, DocumentBuilder, SwaggerModule } from '@nestjs/swagger';
import { Test, type TestingModule } from '@nestjs/testing';
import {
  BudgetService,
  Lock,
  type LockContext,
  LockService,
  SyncGuardModule,
  WithBudget,
  WithLock,
} from 'nestjs-syncguard';
import { listen } from '../support/adapters.js';
import { eventually } from '../support/eventually.js';
import { Work } from './jobs.js';

const limits = [{ scope: 'team', period: 'lifetime' as const, limit: 100 }];
const ours = (): MethodDecorator =>
  applyDecorators(
    WithLock('dish:{0}') as MethodDecorator,
    WithBudget({ scopes: () => ['team'], estimate: () => 1 }),
  );
const nests = (path: string): MethodDecorator =>
  applyDecorators(
    Get(`${path}/:id`),
    HttpCode(202),
    Header('x-dish', path),
    ApiOperation({ summary: `Cooks ${path}`, operationId: path }),
    ApiResponse({ status: 202, description: 'It is on the stove' }),
  );

@Controller()
class Kitchen {
  @ours()
  @nests('above')
  async above(@Param('id', ParseIntPipe) id: number, @Lock() lock?: LockContext): Promise<unknown> {
    return [id, lock?.key];
  }

  @nests('below')
  @ours()
  async below(@Param('id', ParseIntPipe) id: number, @Lock() lock?: LockContext): Promise<unknown> {
    return [id, lock?.key];
  }

  @HttpCode(202)
  @Get('between/:id')
  @ours()
  @Header('x-dish', 'between')
  @ApiOperation({ summary: 'Cooks between', operationId: 'between' })
  @ApiResponse({ status: 202, description: 'It is on the stove' })
  async between(@Param('id', ParseIntPipe) id: number, @Lock() lock?: LockContext): Promise<unknown> {
    return [id, lock?.key];
  }
}

describe.each(['express', 'fastify'] as const)("beside Nest's decorators of a route, on %s", (server) => {
  it.each(['above', 'below', 'between'])('all do what they say, ours being %s', async (place) => {
    const { app, url } = await listen(server, {
      imports: [SyncGuardModule.forRoot({ budget: { limits } })],
      controllers: [Kitchen],
    });
    const response = await fetch(`${url}/${place}/7`);
    expect([response.status, response.headers.get('x-dish')]).toEqual([202, place]);
    expect(await response.json()).toEqual([7, 'dish:7']);
    expect((await fetch(`${url}/${place}/seven`)).status).toBe(400);
    expect(await app.get(BudgetService).balance({ scope: 'team' })).toMatchObject([{ committed: 1 }]);

    const { paths } = SwaggerModule.createDocument(app, new DocumentBuilder().build());
    expect(paths[`/${place}/{id}`]?.get).toMatchObject({
      operationId: place,
      summary: `Cooks ${place}`,
      parameters: [{ name: 'id', in: 'path', required: true, schema: { type: 'number' } }],
      responses: { '202': { description: 'It is on the stove' } },
    });
    await app.close();
  });
});

@Injectable()
class Polling {
  constructor(private readonly work: Work) {}

  @WithLock('poll')
  @Interval('poll', 2)
  async poll(@Lock() lock?: LockContext): Promise<void> {
    await this.work.run(lock);
  }

  @Timeout(2)
  @WithLock('poll')
  async once(@Lock() lock?: LockContext): Promise<void> {
    await this.work.run(lock);
  }
}

/** Runs in all processes, and is to be done by one of them. */
@Injectable()
class Report {
  constructor(private readonly work: Work) {}

  @Cron('0 0 1 1 *', { name: 'report' })
  @WithLock('report', { onContention: 'skip' })
  async write(@Lock() lock?: LockContext): Promise<void> {
    await this.work.run(lock);
  }
}

describe('beside the decorators of @nestjs/schedule', () => {
  const start = (provider: Type<unknown>): Promise<TestingModule> =>
    Test.createTestingModule({
      imports: [ScheduleModule.forRoot(), SyncGuardModule.forRoot({ lock: { retryDelayMs: 1 } })],
      providers: [provider, Work],
    })
      .compile()
      .then((module) => module.init());

  it('an interval that is shorter than its work never overlaps itself, nor a timeout beside it', async () => {
    const module = await start(Polling);
    const work = module.get(Work);
    const letOut = work.keepInside();
    const calls = jest.spyOn(module.get(LockService), 'lock');
    await eventually(() => expect(calls.mock.calls.length).toBeGreaterThan(5));
    expect(work.inside).toBe(1);
    module.get(SchedulerRegistry).deleteInterval('poll');
    letOut();
    await Promise.all(calls.mock.results.map(({ value }) => value as Promise<void>));
    expect(work.most).toBe(1);
    expect(work.done).toHaveLength(calls.mock.calls.length);
    const fences = work.done.map(({ fence }) => fence);
    expect(fences).toEqual([...fences].sort());
    await module.close();
  });

  it('a cron job that is busy elsewhere is skipped', async () => {
    const module = await start(Report);
    const { done } = module.get(Work);
    const calls = jest.spyOn(module.get(LockService), 'lock');
    const fire = async (): Promise<void> => {
      void module.get(SchedulerRegistry).getCronJob('report').fireOnTick();
      await calls.mock.results.at(-1)?.value;
    };
    const elsewhere = await module.get(LockService).acquire({ key: 'report', ttlMs: 10_000 });
    await fire();
    expect([calls.mock.calls.length, done]).toEqual([1, []]);
    if (elsewhere.ok) await elsewhere.release();
    await fire();
    expect(done).toHaveLength(1);
    await module.close();
  });
});

@Injectable()
class Listener {
  readonly heard: (string | undefined)[] = [];

  @OnEvent('order.paid')
  @WithLock('order:{0}')
  @OnEvent('order.refunded')
  async listen(_id: string, @Lock() lock?: LockContext): Promise<void> {
    this.heard.push(lock?.key);
  }

  @OnEvent('order.shipped', { suppressErrors: false })
  @WithLock('order:{0}', { reentrant: true })
  async within(_id: string, @Lock() lock?: LockContext): Promise<void> {
    this.heard.push(lock?.fence);
  }
}

@Injectable()
class Orders {
  constructor(private readonly emitter: EventEmitter2) {}

  @WithLock('order:{0}')
  async tell(id: string, event: string, @Lock() lock?: LockContext): Promise<string | undefined> {
    await this.emitter.emitAsync(event, id);
    return lock?.fence;
  }
}

describe('beside @OnEvent', () => {
  it('a method hears all its events, whichever decorators stand above and below', async () => {
    const module = await Test.createTestingModule({
      imports: [EventEmitterModule.forRoot(), SyncGuardModule.forRoot()],
      providers: [Listener, Orders],
    }).compile();
    await module.init();
    module.useLogger(false);
    const { heard } = module.get(Listener);
    const emitter = module.get(EventEmitter2);
    await emitter.emitAsync('order.paid', '7');
    await emitter.emitAsync('order.refunded', '8');
    expect(heard.splice(0)).toEqual(['order:7', 'order:8']);

    // A listener runs within the lock of who emits: another lock waits as ever, that one is refused or reentered.
    const orders = module.get(Orders);
    await orders.tell('7', 'order.paid');
    expect(heard).toEqual([]);
    const fence = await orders.tell('7', 'order.shipped');
    expect(heard).toEqual([fence]);
    await module.close();
  });
});
