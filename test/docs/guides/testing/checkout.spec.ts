// checkout.spec.ts
import { Injectable } from '@nestjs/common';
import { Test, type TestingModule } from '@nestjs/testing';
import { LockService, minutes, WithBudget, WithLock } from 'nestjs-syncguard';
import { SyncGuardTesting, SyncGuardTestingModule } from 'nestjs-syncguard/testing';
import { setTimeout } from 'node:timers/promises';

@Injectable()
class Checkout {
  @WithLock('order:{0}', { timeoutMs: 1_000 })
  @WithBudget({ scopes: () => ['org'], estimate: () => 60 })
  async pay(_order: string): Promise<string> {
    return 'paid';
  }
}

describe('Checkout', () => {
  let module: TestingModule;
  let testing: SyncGuardTesting;
  let checkout: Checkout;

  beforeEach(async () => {
    const limits = [{ scope: 'org', period: { windowMs: minutes(10) }, limit: 100 }];
    module = await Test.createTestingModule({
      imports: [SyncGuardTestingModule.forRoot({ budget: { limits } })],
      providers: [Checkout],
    }).compile();
    testing = module.get(SyncGuardTesting);
    checkout = module.get(Checkout);
  });
  afterEach(() => module.close());

  it('waits until the call before it has ended', async () => {
    const ended: string[] = [];
    const first = module.get(LockService).lock(() => setTimeout(50), { key: 'order:7' });
    await Promise.all([
      first.then(() => ended.push('first')),
      checkout.pay('7').then(() => ended.push('second')),
    ]);
    expect(ended).toEqual(['first', 'second']);
  });

  it('refuses an order that another instance is paying', async () => {
    testing.contend('order:7');
    await expect(checkout.pay('7')).rejects.toMatchObject({ code: 'AcquisitionTimeout' });
    expect(await checkout.pay('8')).toBe('paid');
  });

  it('has a budget again when the window is over', async () => {
    await checkout.pay('7');
    await expect(checkout.pay('7')).rejects.toMatchObject({ code: 'BudgetExceeded' });
    testing.clock.advance(minutes(10));
    expect(await checkout.pay('7')).toBe('paid');
  });

  it('pays nothing without Redis', async () => {
    testing.makeUnreachable();
    await expect(checkout.pay('7')).rejects.toMatchObject({ code: 'ServiceUnavailable' });
    testing.restore();
    expect(await checkout.pay('7')).toBe('paid');
  });
});
