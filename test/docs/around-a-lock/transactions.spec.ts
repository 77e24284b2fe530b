// transactions.spec.ts
import { Injectable } from '@nestjs/common';
import { Test } from '@nestjs/testing';
import { SyncGuardModule, WithLock } from 'nestjs-syncguard';
import { AsyncLocalStorage } from 'node:async_hooks';
import { setTimeout as sleep } from 'node:timers/promises';

// Stands for a database that reads what is committed, and for the @Transactional() of its library.
let committed = 0;
const transaction = new AsyncLocalStorage<{ value: number }>();

const Transactional = (): MethodDecorator => (_target, _key, descriptor: PropertyDescriptor) => {
  const method = descriptor.value as (...args: unknown[]) => Promise<unknown>;
  descriptor.value = function (...args: unknown[]) {
    return transaction.run({ value: committed }, async () => {
      const result = await method.apply(this, args);
      await sleep(2); // COMMIT is a round trip.
      committed = transaction.getStore()?.value ?? committed;
      return result;
    });
  };
};

async function increment(): Promise<void> {
  const open = transaction.getStore();
  if (!open) throw new Error('no transaction');
  open.value = committed; // SELECT
  await sleep(1);
  open.value++; // UPDATE
}

@Injectable()
class Stock {
  @WithLock('stock')
  @Transactional()
  async right(): Promise<void> {
    await increment();
  }

  @Transactional()
  @WithLock('stock')
  async wrong(): Promise<void> {
    await increment();
  }
}

describe('20 increments at once', () => {
  it.each([
    ['right', 20],
    ['wrong', expect.any(Number)],
  ] as const)('%s', async (order, expected) => {
    const module = await Test.createTestingModule({
      imports: [SyncGuardModule.forRoot({ lock: { timeoutMs: 30_000 } })],
      providers: [Stock],
    }).compile();
    committed = 0;
    const stock = module.get(Stock);
    await Promise.all(Array.from({ length: 20 }, () => stock[order]()));
    expect(committed).toEqual(expected);
    expect(committed < 20).toBe(order === 'wrong');
    await module.close();
  });
});
