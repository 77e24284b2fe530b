import { BudgetService, days } from 'nestjs-syncguard';
import { stage } from './instances.js';

describe('docs/guides/refunds.md', () => {
  const on = stage();

  it('goes back and forth in the figures of the page', async () => {
    on.redis.clock.set(Date.parse('2027-03-02T12:00:00Z'));
    const { Payments, PaymentsModule } = await import('./refunds/payments.js');
    const { app } = await on.start(PaymentsModule);
    const payments = app.get(Payments);
    const sums = async (): Promise<unknown[]> => {
      await app.get(BudgetService).reap();
      const [balance] = await app.get(BudgetService).balance({ scope: 'user:ann' });
      return [balance?.committed, balance?.credits, balance?.available];
    };

    expect(await payments.buy('ann', 'order-1', 6_000)).toBe(true);
    expect(await sums()).toEqual([6_000, 0, 4_000]);
    on.redis.clock.advance(days(14));
    for (let i = 0; i < 2; i++) expect(await payments.refunded('ann', 'order-1', 2_500, 're-1')).toBe(true);
    expect(await sums()).toEqual([3_500, 0, 6_500]);
    for (let i = 0; i < 3; i++) {
      on.redis.clock.advance(days(1));
      expect(await payments.topUp('ann', 5_000, 'pay-1')).toBe(true);
    }
    expect(await sums()).toEqual([3_500, 5_000, 11_500]);
    expect(await payments.correct('ann', 700, 'invoice-7')).toMatchObject({ ok: true, uncovered: 0 });
    expect(await sums()).toEqual([4_200, 5_000, 10_800]);
    await payments.correct('ann', 5_000, 'back:pay-1');
    expect(await sums()).toEqual([9_200, 5_000, 5_800]);
    on.redis.clock.advance(days(30));
    expect(await payments.refunded('ann', 'order-1', 1_000, 're-2')).toBe(true);
    expect(await sums()).toEqual([0, 1_000, 11_000]);
  });
});
