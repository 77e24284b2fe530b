import 'reflect-metadata';
import { Controller, type INestApplicationContext, Injectable, type Type } from '@nestjs/common';
import { Args, Field, InputType, Int, Mutation, Query, Resolver } from '@nestjs/graphql';
import { MessagePattern, Payload } from '@nestjs/microservices';
import { Test } from '@nestjs/testing';
import { type Job, Queue, Worker } from 'bullmq';
import { currentOnce, Once, type OnceError, OnceService, SyncGuardModule } from 'nestjs-syncguard';
import { graphqlApp } from '../contexts/apps/graphql-app.js';
import { rpcApp } from '../contexts/apps/rpc-app.js';
import { eventually } from '../support/eventually.js';
import { freshRedis } from '../support/redis.js';

/** What the methods do: it counts their runs, keeps them inside, and throws, as it is told. */
@Injectable()
class Work {
  runs = 0;
  failures = 0;
  open: Promise<void> | undefined;
  release = (): void => {};

  hold(): void {
    this.open = new Promise((resolve) => (this.release = resolve));
  }

  async run(): Promise<string> {
    const once = currentOnce();
    const text = `run ${++this.runs}, attempt ${once?.attempt}, key ${once?.key}`;
    await this.open;
    if (this.failures-- > 0) throw new Error('the bank is away');
    return text;
  }
}

@InputType()
class Order {
  @Field() id!: string;
  @Field(() => Int) amount!: number;
}

type Name = 'byPath' | 'byFunction' | 'waits' | 'optional';
type Decorate = (name: Name) => MethodDecorator;

/** The same methods in any context. */
function methods(
  onClass: ClassDecorator,
  onMethod: Decorate,
  onParameter: () => ParameterDecorator,
): Type<unknown> {
  @onClass
  class Shop {
    constructor(private readonly work: Work) {}

    @Once({ key: '0.id' })
    @onMethod('byPath')
    async byPath(@onParameter() _order: Order): Promise<string> {
      return this.work.run();
    }

    @onMethod('byFunction')
    @Once({ key: ({ id }: Order) => `charge:${id}`, payload: ({ amount }: Order) => amount })
    async byFunction(@onParameter() _order: Order): Promise<string> {
      return this.work.run();
    }

    @Once({ key: '0.id', waitMs: 10_000 })
    @onMethod('waits')
    async waits(@onParameter() _order: Order): Promise<string> {
      return this.work.run();
    }

    @onMethod('optional')
    @Once({ key: ({ id }: Order) => (id === '' ? undefined : id), required: false })
    async optional(@onParameter() _order: Order): Promise<string> {
      return this.work.run();
    }
  }
  return Shop;
}

interface Place {
  readonly app: INestApplicationContext;
  /** Resolves to what is answered: the result of the method, or the code (else the message) of its error. */
  call(name: Name, order?: Partial<Order>): Promise<unknown>;
  close(): Promise<void>;
}
type Imports = NonNullable<Parameters<typeof Test.createTestingModule>[0]['imports']>;

const answerOf = ({ code, message }: Partial<OnceError>): unknown => code ?? message;
const orderOf = (order: Partial<Order>): Order => ({ id: '7', amount: 5, ...order });

async function provider(imports: Imports): Promise<Place> {
  const Shop = methods(
    Injectable(),
    () => () => {},
    () => () => {},
  );
  const app = await Test.createTestingModule({ imports, providers: [Shop, Work] }).compile();
  await app.init();
  const shop = app.get<Record<Name, (order: Order) => Promise<string>>>(Shop);
  return {
    app,
    close: () => app.close(),
    call: (name, order = {}) => shop[name](orderOf(order)).catch(answerOf),
  };
}

@Resolver()
class Nothing {
  @Query(() => String)
  nothing(): string {
    return '';
  }
}

const mutation =
  (adapter: 'express' | 'fastify') =>
  async (imports: Imports): Promise<Place> => {
    const onMethod: Decorate = (name) => Mutation(() => String, { name });
    const Shop = methods(Resolver(), onMethod, () => Args('order', { type: () => Order }));
    const { app, query, close } = await graphqlApp(adapter, { imports, providers: [Shop, Work, Nothing] });
    return {
      app,
      close,
      async call(name, order = {}) {
        const variables = { order: orderOf(order) };
        const text = `mutation ($order: Order!) { ${name}(order: $order) }`;
        const { data, errors: [error] = [] } = await query(text, { variables });
        if (!error) return data?.[name];
        const code = error.extensions?.['code'] as string;
        return code === 'INTERNAL_SERVER_ERROR' ? error.message : code;
      },
    };
  };

async function messages(imports: Imports): Promise<Place> {
  const Shop = methods(
    Controller(),
    (name) => MessagePattern(name),
    () => Payload(),
  );
  const { app, send, close } = await rpcApp({ imports, controllers: [Shop], providers: [Work] });
  return {
    app,
    close,
    async call(name, order = {}) {
      const reply = await send(name, orderOf(order));
      return 'answer' in reply ? reply.answer : answerOf(reply.exception as Partial<OnceError>);
    },
  };
}

const redisOf = async (backend: 'memory' | 'Redis'): Promise<{ redis?: string }> =>
  backend === 'Redis' ? { redis: (await freshRedis()).url } : {};

describe.each([
  ['a method of a provider', provider, 'the bank is away'],
  ['a GraphQL mutation on Express', mutation('express'), 'the bank is away'],
  ['a GraphQL mutation on Fastify', mutation('fastify'), 'the bank is away'],
  // Nest tells clients of messages no message of an error that it does not know.
  ['a message handler', messages, 'Internal server error'],
] as const)('@Once() on %s', (_, start, away) => {
  describe.each(['memory', 'Redis'] as const)('with %s', (backend) => {
    let place: Place;
    let work: Work;
    beforeEach(async () => {
      place = await start([SyncGuardModule.forRoot(await redisOf(backend))]);
      place.app.useLogger(false);
      work = place.app.get(Work);
    });
    afterEach(() => place.close());

    it.each<[Name, string]>([
      ['byPath', '7'],
      ['byFunction', 'charge:7'],
    ])('%s: answers the repeated call with the result of the first', async (name, key) => {
      const first = await place.call(name);
      expect(first).toBe(`run 1, attempt 1, key ${key}`);
      expect(await place.call(name)).toBe(first);
      expect(await place.call(name, { id: '8' })).toMatch(/^run 2, attempt 1/);
      expect(await place.app.get(OnceService).get(key)).toMatchObject({ key, state: 'done', attempt: 1 });
      expect(work.runs).toBe(2);
    });

    it('has one result for one key, whichever method or `run()` has it', async () => {
      const first = await place.call('byPath');
      expect(await place.call('waits')).toBe(first);
      const again = await place.app.get(OnceService).run(() => work.run(), { key: '7' });
      expect(again).toMatchObject({ value: first, replayed: true });
      expect(work.runs).toBe(1);
    });

    it('refuses a call while the first runs, and the first gets its own', async () => {
      work.hold();
      const first = place.call('byPath');
      await eventually(() => expect(work.runs).toBe(1));
      expect(await place.call('byPath')).toBe('OnceInProgress');
      work.release();
      expect(await first).toMatch(/^run 1/);
      expect(work.runs).toBe(1);
    });

    it('lets the others wait where `waitMs` says so', async () => {
      work.hold();
      const calls = [place.call('waits'), place.call('waits'), place.call('waits')];
      await eventually(() => expect(work.runs).toBe(1));
      work.release();
      expect(new Set(await Promise.all(calls))).toStrictEqual(new Set(['run 1, attempt 1, key 7']));
    });

    it('runs again what has thrown, as attempt 2', async () => {
      work.failures = 1;
      expect(await place.call('byFunction')).toBe(away);
      expect(await place.call('byFunction')).toBe('run 2, attempt 2, key charge:7');
      expect(await place.call('byFunction')).toBe('run 2, attempt 2, key charge:7');
    });

    it('refuses another payload, and compares nothing where there is none', async () => {
      await place.call('byFunction');
      expect(await place.call('byFunction', { amount: 6 })).toBe('OncePayloadMismatch');
      await place.call('byPath');
      expect(await place.call('byPath', { amount: 6 })).toMatch(/^run 2/);
    });

    it('refuses a call without a key, or lets it pass where none is required', async () => {
      expect(await place.call('optional', { id: '' })).toBe('run 1, attempt undefined, key undefined');
      expect(await place.call('optional', { id: '' })).toMatch(/^run 2/);
      expect(await place.call('byPath', { id: '' })).toBe('OnceKeyInvalid');
      expect(await place.call('byFunction', { id: 'x'.repeat(513) })).toBe('InvalidArgument');
      expect(work.runs).toBe(2);
    });
  });
});

type Charge = { event: string };

@Injectable()
class Charges {
  constructor(private readonly work: Work) {}

  @Once({ key: '0.data.event' })
  async process(_job: Job<Charge>): Promise<string> {
    return this.work.run();
  }
}

describe.each(['memory', 'Redis'] as const)('@Once() on a processor of BullMQ, with %s', (backend) => {
  let app: INestApplicationContext & { close(): Promise<void> };
  let work: Work;
  let queue: Queue<Charge>;
  let worker: Worker<Charge>;
  beforeEach(async () => {
    const { url } = await freshRedis();
    const imports = [SyncGuardModule.forRoot(backend === 'Redis' ? { redis: url } : {})];
    app = await (await Test.createTestingModule({ imports, providers: [Charges, Work] }).compile()).init();
    work = app.get(Work);
    const charges = app.get(Charges);
    queue = new Queue('charges', { connection: { url } });
    const connection = { url, maxRetriesPerRequest: null };
    worker = new Worker<Charge>('charges', (job) => charges.process(job), { connection, concurrency: 2 });
  });
  afterEach(async () => {
    await worker.close();
    await queue.close();
    await app.close();
  });

  const add = (attempts = 1): Promise<Job<Charge>> =>
    queue.add('charge', { event: 'evt_1' }, { attempts, backoff: 20 });
  const until = (job: Job<Charge>, state: string): Promise<unknown> =>
    eventually(async () => expect(await job.getState()).toBe(state));
  const resultOf = async ({ id }: Job<Charge>): Promise<unknown> =>
    ((await queue.getJob(id as string)) as Job).returnvalue;

  it('a job that comes twice is done once, and both have its result', async () => {
    const first = await add();
    await until(first, 'completed');
    const second = await add();
    await until(second, 'completed');
    expect([await resultOf(first), await resultOf(second)]).toStrictEqual(
      Array(2).fill('run 1, attempt 1, key evt_1'),
    );
  });

  it('one that comes while the other runs is refused, and its retry gets the result', async () => {
    work.hold();
    const first = await add();
    await eventually(() => expect(work.runs).toBe(1));
    const refused = await add();
    await until(refused, 'failed');
    expect((await queue.getJob(refused.id as string))?.failedReason).toMatch(/same key is running/);
    const retried = await add(1_000);
    await eventually(async () =>
      expect((await queue.getJob(retried.id as string))?.attemptsMade).toBeGreaterThan(0),
    );
    work.release();
    await until(first, 'completed');
    await until(retried, 'completed');
    expect(await resultOf(retried)).toBe(await resultOf(first));
    expect(work.runs).toBe(1);
  });

  it('one that threw runs again, as attempt 2', async () => {
    work.failures = 1;
    const job = await add(3);
    await until(job, 'completed');
    expect(await resultOf(job)).toBe('run 2, attempt 2, key evt_1');
  });
});
