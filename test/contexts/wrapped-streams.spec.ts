import 'reflect-metadata';
import { Injectable } from '@nestjs/common';
import { Test, type TestingModule } from '@nestjs/testing';
import {
  BudgetService,
  currentLock,
  LockService,
  SyncGuardModule,
  WithBudget,
  WithLock,
} from 'nestjs-syncguard';
import { eventually } from '../support/eventually.js';

type Wrap = (original: (...args: unknown[]) => unknown) => unknown;

/** As tracers and ORMs write theirs: a plain function, or an async one, in the place of the method. */
const Wrapped =
  (wrap: Wrap): MethodDecorator =>
  (_target, _key, descriptor) => {
    descriptor.value = wrap(descriptor.value as never) as never;
  };
const plainly: Wrap = (original) =>
  function (this: unknown, ...args: unknown[]) {
    return original.apply(this, args);
  };
const asynchronously: Wrap = (original) =>
  async function (this: unknown, ...args: unknown[]) {
    await Promise.resolve();
    return original.apply(this, args);
  };
/** What compilers make of `async *` for targets that lack it. */
const compiled: Wrap = (original) =>
  function (this: unknown, ...args: unknown[]) {
    const items = original.apply(this, args) as AsyncGenerator;
    return {
      next: (value: unknown) => items.next(value),
      throw: (error: unknown) => items.throw(error),
      return: (value: unknown) => items.return(value),
      [Symbol.asyncIterator]() {
        return this;
      },
    };
  };

/** The compiler knows the method alone, not what its wrapper makes of it. */
const promised = (items: AsyncGenerator<number>): Promise<AsyncGenerator<number>> => items as never;

const BUDGET = { scopes: () => ['team'], estimate: () => 10, actual: (last: unknown) => Number(last) };

@Injectable()
class Streams {
  left = 0;

  async *#count(): AsyncGenerator<number> {
    try {
      for (let n = 1; n <= 3; n++) {
        expect(currentLock()?.key).toBe('stream');
        yield n;
      }
    } finally {
      this.left++;
    }
  }

  @WithLock('stream')
  @Wrapped(plainly)
  async *plain(): AsyncGenerator<number> {
    yield* this.#count();
  }

  @WithLock('stream')
  @Wrapped(compiled)
  async *compiled(): AsyncGenerator<number> {
    yield* this.#count();
  }

  @WithLock('stream')
  @Wrapped(plainly)
  @WithBudget(BUDGET)
  @Wrapped(plainly)
  async *both(): AsyncGenerator<number> {
    yield* this.#count();
  }

  @WithLock('stream')
  @Wrapped(asynchronously)
  async *promised(): AsyncGenerator<number> {
    yield* this.#count();
  }

  @WithLock('stream')
  @Wrapped(plainly)
  async *failing(): AsyncGenerator<number> {
    yield 1;
    throw new Error('It broke.');
  }

  @WithLock('stream', { ttlMs: 100 })
  @Wrapped(plainly)
  async *unread(): AsyncGenerator<number> {
    yield 1;
  }

  @WithLock('stream')
  @Wrapped(plainly)
  async value(): Promise<number> {
    return 7;
  }
}

describe('an async generator behind a wrapper, below @WithLock and @WithBudget', () => {
  let module: TestingModule;
  let streams: Streams;
  beforeAll(async () => {
    const limits = [{ scope: 'team', period: 'lifetime' as const, limit: 1_000 }];
    module = await Test.createTestingModule({
      imports: [SyncGuardModule.forRoot({ budget: { limits } })],
      providers: [Streams],
    }).compile();
    await module.init();
    streams = module.get(Streams);
  });
  afterAll(() => module.close());
  beforeEach(() => (streams.left = 0));

  const isLocked = (): Promise<boolean> => module.get(LockService).isLocked({ key: 'stream' });
  const committed = async (): Promise<unknown> =>
    (await module.get(BudgetService).balance({ scope: 'team' }))[0]?.committed;

  it.each(['plain', 'compiled', 'both'] as const)(
    'is guarded from its call until its end (%s)',
    async (name) => {
      const before = Number(await committed());
      const seen: unknown[] = [];
      for await (const item of streams[name]()) seen.push([item, await isLocked()]);
      expect(seen).toEqual([
        [1, true],
        [2, true],
        [3, true],
      ]);
      expect([await isLocked(), streams.left]).toEqual([false, 1]);
      expect(Number(await committed()) - before).toBe(name === 'both' ? 3 : 0);
    },
  );

  it('is guarded until its reader stops', async () => {
    for await (const item of streams.plain()) {
      expect([item, await isLocked()]).toEqual([1, true]);
      break;
    }
    expect([await isLocked(), streams.left]).toEqual([false, 1]);
  });

  it('fails as the method does, and leaves its guard', async () => {
    const items = streams.failing();
    expect(await items.next()).toEqual({ done: false, value: 1 });
    await expect(items.next()).rejects.toThrow('It broke.');
    expect(await isLocked()).toBe(false);
  });

  it('is read with `await` where the wrapper is async', async () => {
    const seen: unknown[] = [];
    for await (const item of await promised(streams.promised())) seen.push([item, await isLocked()]);
    expect(seen).toHaveLength(3);
    expect(seen[0]).toEqual([1, true]);
    expect(await isLocked()).toBe(false);
  });

  it('that nobody reads leaves its guard after the TTL, and cannot be read any more', async () => {
    const items = await promised(streams.unread());
    expect(await isLocked()).toBe(true);
    // Timers of one duration fire in the order in which they were set: the guard's was first.
    await new Promise((resolve) => setTimeout(resolve, 100));
    await eventually(async () => expect(await isLocked()).toBe(false));
    await expect(items.next()).rejects.toThrow(/Nobody read this generator within 100 ms/);
  });

  it('leaves other methods as they are', async () => {
    const result = streams.value();
    await expect(result).resolves.toBe(7);
    await expect((result as unknown as AsyncGenerator).next()).rejects.toThrow(
      /something other than a generator/,
    );
  });
});
