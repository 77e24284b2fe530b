import 'reflect-metadata';
import { Controller, Get, Inject, Injectable, Scope } from '@nestjs/common';
import { ModuleRef } from '@nestjs/core';
import { Test, type TestingModule } from '@nestjs/testing';
import {
  BudgetService,
  currentLock,
  Lock,
  type LockContext,
  LockService,
  SyncGuardConfigError,
  SyncGuardModule,
  WithBudget,
  WithLock,
} from 'nestjs-syncguard';
import { SyncGuardTesting, SyncGuardTestingModule } from 'nestjs-syncguard/testing';
import { once } from 'node:events';
import { eventually } from '../support/eventually.js';
import { listen } from '../support/adapters.js';
import { Work } from './jobs.js';

const budget = { scopes: () => ['team'], estimate: () => 40, actual: () => 7 };
const LIMITS = [{ scope: 'team', period: 'lifetime' as const, limit: 100 }];

@Injectable()
class Plain {
  static made = 0;
  readonly number = ++Plain.made;
  @Inject(Work) readonly work!: Work;

  @WithLock('work', { ttlMs: 10_000 })
  async locked(@Lock() lock?: LockContext): Promise<string> {
    return this.work.run(lock);
  }

  @WithBudget(budget)
  async budgeted(): Promise<string> {
    return this.work.run();
  }
}

@Injectable({ scope: Scope.TRANSIENT })
class Transient extends Plain {}

@Injectable({ scope: Scope.REQUEST })
class PerRequest extends Plain {}

/** Both guards at once, and calls of one's own methods. */
@Injectable()
class Orders {
  constructor(private readonly work: Work) {}

  @WithLock('order:{0}')
  @WithBudget(budget)
  async lockOutside(_id: string): Promise<string> {
    return this.work.run();
  }

  @WithBudget(budget)
  @WithLock('order:{0}')
  async lockInside(_id: string): Promise<string> {
    return this.work.run();
  }

  @WithLock('order:{0}')
  async *streamed(_id: string): AsyncGenerator<string | undefined, void, undefined> {
    yield* this.budgetedStream();
  }

  @WithBudget({ ...budget, actual: () => 9 })
  async *budgetedStream(): AsyncGenerator<string | undefined, void, undefined> {
    yield currentLock()?.key;
  }

  @WithLock('order:{0}')
  async ship(id: string): Promise<unknown> {
    return this.bill(id);
  }

  @WithLock('bill:{0}')
  async bill(_id: string): Promise<unknown> {
    return currentLock()?.key;
  }

  @WithLock('order:{0}')
  async shipTwice(id: string): Promise<unknown> {
    return this.ship(id);
  }

  @WithLock('order:{0}')
  async shipAgain(id: string): Promise<unknown> {
    return this.shipWithin(id);
  }

  @WithLock('order:{0}', { reentrant: true })
  async shipWithin(_id: string): Promise<unknown> {
    return currentLock()?.fence;
  }

  /** What a PubSub gives: its items come later than the promise of them. */
  @WithLock('order:{0}')
  async promised(_id: string): Promise<AsyncIterable<string | undefined>> {
    return this.keys();
  }

  private keys(): AsyncIterable<string | undefined> {
    let left = 1;
    const next = async (): Promise<IteratorResult<string | undefined>> =>
      left-- > 0 ? { done: false, value: currentLock()?.key } : { done: true, value: undefined };
    return { [Symbol.asyncIterator]: () => ({ next }) };
  }

  @WithLock('order:{0}')
  async *waiting(_id: string, signal: AbortSignal): AsyncGenerator<string, void, undefined> {
    yield 'first';
    await once(signal, 'abort');
  }

  @WithBudget(budget)
  async outer(): Promise<string> {
    return this.inner();
  }

  @WithBudget(budget)
  async inner(): Promise<string> {
    return this.work.run();
  }
}

abstract class Base {
  abstract key(): unknown;

  @WithLock('base:{0}')
  async run(_id: string, @Lock() lock?: LockContext): Promise<unknown> {
    return [this.key(), lock?.key];
  }

  @WithLock('base:{0}')
  async kept(_id: string): Promise<unknown> {
    return currentLock()?.key;
  }
}

@Injectable()
class Inheriting extends Base {
  constructor(readonly locks: LockService) {
    super();
  }

  key(): unknown {
    return currentLock()?.key;
  }
}

@Injectable()
class Overriding extends Base {
  @Inject(BudgetService) readonly budgets!: BudgetService;

  key(): unknown {
    return 'overriding';
  }

  /** Without a decorator of its own: nothing guards what does not call super. */
  override async run(id: string): Promise<unknown> {
    return [currentLock()?.key, await super.run(id)];
  }

  /** With one of its own, outside of the base's. */
  @WithLock('sub:{0}')
  override async kept(id: string, @Lock() lock?: LockContext): Promise<unknown> {
    return [lock?.key, await super.kept(id)];
  }
}

@Injectable()
class SameKey extends Base {
  key(): unknown {
    return 'same';
  }

  @WithLock('base:{0}')
  override async kept(id: string): Promise<unknown> {
    return super.kept(id);
  }
}

class BaseController {
  @Get('inherited')
  @WithLock('inherited')
  async inherited(): Promise<unknown> {
    return { key: currentLock()?.key };
  }
}

@Controller('sub')
class SubController extends BaseController {}

/** Two calls at the same time, the second while the first is inside: none overlap, and the fence rises. */
async function excludeEachOther(work: Work, calls: readonly (() => Promise<unknown>)[]): Promise<void> {
  const letOut = work.keepInside();
  const running = calls.map((call) => call());
  await eventually(() => expect(work.inside).toBe(1));
  letOut();
  const fences = await Promise.all(running);
  expect(work.most).toBe(1);
  expect(new Set(fences).size).toBe(calls.length);
  expect(work.done.map(({ fence }) => fence)).toEqual([...fences].sort());
}

describe('@WithLock and @WithBudget on classes', () => {
  let module: TestingModule;
  let work: Work;
  let budgets: BudgetService;
  beforeEach(async () => {
    module = await Test.createTestingModule({
      imports: [SyncGuardModule.forRoot({ lock: { retryDelayMs: 5 }, budget: { limits: LIMITS } })],
      providers: [Work, Plain, Transient, PerRequest, Orders, Inheriting, Overriding, SameKey],
    }).compile();
    await module.init();
    work = module.get(Work);
    budgets = module.get(BudgetService);
  });
  afterEach(() => module.close());

  const spent = async (): Promise<unknown[]> => {
    const [balance] = await budgets.balance({ scope: 'team' });
    return [balance?.committed, balance?.reserved];
  };

  describe.each([
    ['transient', Transient],
    ['request-scoped', PerRequest],
  ])('%s', (_, Kind) => {
    it('instances exclude each other: the lock is the key, not the instance', async () => {
      const [one, other] = [await module.resolve(Kind), await module.resolve(Kind)];
      expect(one.number).not.toBe(other.number);
      await excludeEachOther(work, [() => one.locked(), () => other.locked(), () => one.locked()]);
    });

    it('instances spend from one budget', async () => {
      const [one, other] = [await module.resolve(Kind), await module.resolve(Kind)];
      const letOut = work.keepInside();
      const both = Promise.all([one.budgeted(), other.budgeted()]);
      await eventually(() => expect(work.inside).toBe(2));
      expect(await spent()).toEqual([0, 80]);
      await expect(one.budgeted()).rejects.toMatchObject({ code: 'BudgetExceeded' });
      letOut();
      await both;
      expect(await spent()).toEqual([14, 0]);
    });
  });

  describe('calls of its own', () => {
    it('are guarded as calls from outside are', async () => {
      const orders = module.get(Orders);
      expect(await orders.ship('7')).toBe('bill:7');
      await orders.outer();
      expect(await spent()).toEqual([14, 0]); // each of the two has settled
    });

    it('for the lock that is held are refused at once, at any depth, unless they are reentrant', async () => {
      const orders = module.get(Orders);
      await expect(orders.shipTwice('7')).rejects.toMatchObject({ code: 'AlreadyHeld' });
      expect(await orders.shipAgain('7')).toMatch(/^\d{15}$/);
    });
  });

  it.each([
    ['lockOutside', 40],
    ['lockInside', 80],
  ] as const)('stand both on one method, the upper one outside: %s', async (method, reserved) => {
    const orders = module.get(Orders);
    const letOut = work.keepInside();
    const both = [orders[method]('7'), orders[method]('7')];
    await eventually(async () => {
      expect(work.inside).toBe(1);
      expect(await spent()).toEqual([0, reserved]);
    });
    letOut();
    await Promise.all(both);
    expect(work.most).toBe(1);
    expect(await spent()).toEqual([14, 0]);
  });

  it('guard an async generator within another', async () => {
    const items: unknown[] = [];
    for await (const item of module.get(Orders).streamed('7')) items.push(item);
    expect(items).toEqual(['order:7']);
    expect(await spent()).toEqual([9, 0]);
  });

  it('guard a promised AsyncIterable until the promise settles, and no longer', async () => {
    for await (const key of await module.get(Orders).promised('7')) expect(key).toBeUndefined();
    expect(await module.get(LockService).isLocked({ key: 'order:7' })).toBe(false);
  });

  it('guard a generator whose reader has left until it stops waiting', async () => {
    const locks = module.get(LockService);
    const stop = new AbortController();
    const items = module.get(Orders).waiting('7', stop.signal);
    await items.next();
    const next = items.next();
    const left = items.return();
    expect(await locks.isLocked({ key: 'order:7' })).toBe(true);
    stop.abort();
    await Promise.all([next, left]);
    expect(await locks.isLocked({ key: 'order:7' })).toBe(false);
  });

  describe('a subclass', () => {
    it('inherits the guard, with services of its own beside it', async () => {
      const inheriting = module.get(Inheriting);
      expect(await inheriting.run('7')).toEqual(['base:7', 'base:7']);
      expect(inheriting.locks).toBe(module.get(LockService));
    });

    it('that overrides is guarded where it calls super, and where it is decorated itself', async () => {
      const overriding = module.get(Overriding);
      expect(await overriding.run('7')).toEqual([undefined, ['overriding', 'base:7']]);
      expect(await overriding.kept('7')).toEqual(['sub:7', 'base:7']);
      expect(overriding.budgets).toBe(budgets);
    });

    it('that takes the lock which super takes as well is told so, rather than wait for itself', async () => {
      await expect(module.get(SameKey).kept('7')).rejects.toMatchObject({ code: 'AlreadyHeld' });
    });

    it.each(['express', 'fastify'] as const)(
      'of a controller inherits its routes, on %s',
      async (adapter) => {
        const { app, url } = await listen(adapter, {
          imports: [SyncGuardModule.forRoot()],
          controllers: [SubController],
        });
        expect(await (await fetch(`${url}/sub/inherited`)).json()).toEqual({ key: 'inherited' });
        await app.close();
      },
    );
  });
});

describe('an instance that Nest did not build', () => {
  let module: TestingModule;
  let work: Work;
  const byHand = new Plain(); // before there is an app

  @Injectable()
  class Factory {
    constructor(readonly modules: ModuleRef) {}
  }

  beforeAll(async () => {
    module = await Test.createTestingModule({
      imports: [SyncGuardTestingModule.forRoot({ budget: { limits: LIMITS } })],
      providers: [
        Work,
        Factory,
        Plain,
        { provide: 'useValue', useValue: new Plain() },
        { provide: 'useFactory', useFactory: () => new Plain() },
        { provide: 'useClass', useClass: Plain },
        { provide: 'useExisting', useExisting: Plain },
      ],
    }).compile();
    await module.init();
    work = module.get(Work);
  });
  afterAll(() => module.close());

  it.each([
    ['made by `new` before the app', () => byHand],
    ['made by `new` after it', () => new Plain()],
    ['given to Nest as a value', () => module.get<Plain>('useValue')],
    ['made by a factory of your own', () => module.get<Plain>('useFactory')],
  ])('%s never runs unguarded: it says what to do', async (_, make) => {
    const instance = make();
    for (const [decorator, call] of [
      ['@WithLock', instance.locked()],
      ['@WithBudget', instance.budgeted()],
    ] as const) {
      const error = await call.then(String, (reason: unknown) => reason);
      expect(error).toBeInstanceOf(SyncGuardConfigError);
      expect(error).toMatchObject({
        message: expect.stringContaining(`${decorator}() on `) as unknown,
        hint: expect.stringMatching(/ModuleRef\.create\(.*nestjs-syncguard\/testing/) as unknown,
      });
    }
    expect(work.done).toEqual([]);
  });

  it('is what a method has that lost its `this`', async () => {
    const { locked } = module.get(Plain);
    await expect(locked()).rejects.toThrow(/@WithLock\(\) on locked\(\) has no service.*`this` was lost/);
  });

  it.each([
    ['useClass', () => module.get<Plain>('useClass')],
    ['useExisting', () => module.get<Plain>('useExisting')],
    ['ModuleRef.create()', () => module.get(Factory).modules.create(Plain)],
    ['bind() of a test', () => module.get(SyncGuardTesting).bind(Object.assign(new Plain(), { work }))],
  ])('is not what comes of %s', async (_, make) => {
    const instance = await make();
    expect(await instance.locked()).toMatch(/^\d{15}$/);
    expect(await instance.budgeted()).toBe('');
  });
});
