import 'reflect-metadata';
import { Injectable } from '@nestjs/common';
import { Test } from '@nestjs/testing';
import { setTimeout as sleep } from 'node:timers/promises';
import { BudgetService, SyncGuardModule, WithBudget } from 'nestjs-syncguard';

interface Chunk {
  readonly tokens: number;
}

const budgeted = {
  scopes: (user: string) => [`user:${user}`],
  estimate: () => 100,
  actual: (chunk: Chunk) => chunk.tokens,
};

@Injectable()
class Llm {
  @WithBudget(budgeted)
  async *generate(_user: string, chunks: number): AsyncGenerator<Chunk, void, undefined> {
    for (let i = 1; i <= chunks; i++) {
      if (i === 4) throw new Error('the model has gone');
      yield { tokens: 10 * i };
    }
  }

  /** Its usage comes with the last item. A fault ends it early, and so does its reader. */
  @WithBudget({ ...budgeted, actual: (chunk?: Chunk) => chunk?.tokens ?? 0 })
  async *patient(
    _user: string,
    before: number,
    signal?: AbortSignal,
  ): AsyncGenerator<Chunk, void, undefined> {
    try {
      for (let i = 0; i < before; i++) yield { tokens: 0 };
      await sleep(60_000, undefined, { signal, ref: false });
      yield { tokens: 80 };
    } catch {
      return;
    }
  }
}

describe('@WithBudget() on streams', () => {
  let llm: Llm;
  let budgets: BudgetService;
  const spent = async (): Promise<[committed: unknown, reserved: unknown]> => {
    const [balance] = await budgets.balance({ scope: 'user:ada' });
    return [balance?.committed, balance?.reserved];
  };
  beforeEach(async () => {
    const limits = [{ scope: 'user', period: 'lifetime' as const, limit: 1_000 }];
    const module = await Test.createTestingModule({
      imports: [SyncGuardModule.forRoot({ budget: { limits } })],
      providers: [Llm],
    }).compile();
    llm = module.get(Llm);
    budgets = module.get(BudgetService);
  });

  it('a generator is reserved for while it runs, and finalized by its last item', async () => {
    const chunks = llm.generate('ada', 3);
    await chunks.next();
    expect(await spent()).toStrictEqual([0, 100]);
    for await (const _ of chunks);
    expect(await spent()).toStrictEqual([30, 0]);
  });

  it('a reader that leaves settles it by the last item that it read', async () => {
    for await (const { tokens } of llm.generate('ada', 3)) if (tokens === 20) break;
    expect(await spent()).toStrictEqual([20, 0]);
  });

  it('a reader that throws into a generator that catches it has left', async () => {
    const chunks = llm.patient('ada', 2);
    await chunks.next();
    expect(await chunks.throw(new Error('ERR_STREAM_PREMATURE_CLOSE'))).toEqual({
      done: true,
      value: undefined,
    });
    expect(await spent()).toStrictEqual([100, 0]);
  });

  it.each([0, 2])(
    'a generator that ends quietly when it is aborted after %p items is paid',
    async (items) => {
      const gone = new AbortController();
      const chunks = llm.patient('ada', items, gone.signal);
      for (let i = 0; i < items; i++) await chunks.next();
      setTimeout(() => gone.abort(), 10);
      expect(await chunks.next()).toEqual({ done: true, value: undefined });
      expect(await spent()).toStrictEqual([100, 0]);
    },
  );

  it('a generator that throws after an item is paid by its last one', async () => {
    const read = async (): Promise<void> => {
      for await (const _ of llm.generate('ada', 5));
    };
    await expect(read()).rejects.toThrow('the model has gone');
    expect(await spent()).toStrictEqual([30, 0]);
  });
});
