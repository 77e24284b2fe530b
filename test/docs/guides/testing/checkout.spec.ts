// checkout.spec.ts
import { Injectable } from '@nestjs/common';
import { Test, type TestingModule } from '@nestjs/testing';
import { minutes, WithBudget, WithLock } from 'nestjs-syncguard';
import { SyncGuardTesting, SyncGuardTestingModule } from 'nestjs-syncguard/testing';

@Injectable()
class Checkout {
  @WithLock('order:{0}', { timeoutMs: 0 })
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

  it('refuses an order that another instance is paying', async () => {
    testing.contend('order:7');
    await expect(checkout.pay('7')).rejects.toMatchObject({ code: 'AcquisitionTimeout' });
    expect(await checkout.pay('8')).toBe('paid');
  });

  it('has a budget again when the window is over', async () => {
    await checkout.pay('7');
    await expect(checkout.pay('7')).rejects.toMatchObject({ code: 'BudgetExceeded' });
    testing.clock.advance(minutes(20));
    expect(await checkout.pay('7')).toBe('paid');
  });

  it('pays nothing without Redis', async () => {
    testing.makeUnreachable();
    await expect(checkout.pay('7')).rejects.toMatchObject({ code: 'ServiceUnavailable' });
    testing.restore();
    expect(await checkout.pay('7')).toBe('paid');
  });
});
