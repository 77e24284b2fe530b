// payments.ts
import { Injectable, Module } from '@nestjs/common';
import { BudgetService, days, SyncGuardModule } from 'nestjs-syncguard';

const period = { every: 'month' as const };

@Injectable()
export class Payments {
  constructor(private readonly budgets: BudgetService) {}

  private scopesOf = (user: string) => [`user:${user}`];

  /** An order. Its id is known for 25 days, so refunds reach it. */
  async buy(user: string, order: string, cents: number) {
    const charge = { scopes: this.scopesOf(user), amount: cents, id: order, idTtlMs: days(25) };
    return (await this.budgets.charge(charge)).ok;
  }

  /** A webhook of the payment provider, which may come again. */
  async refunded(user: string, order: string, cents: number, refund: string) {
    const result = await this.budgets.refund({ id: order }, cents, refund);
    if (result.ok || result.reason !== 'not_found') return result.ok;
    return this.topUp(user, cents, `refund:${refund}`); // The order is forgotten by now.
  }

  /** What was paid is there at once, and once, however often the webhook comes in this month. */
  async topUp(user: string, cents: number, payment: string) {
    const credit = { scope: `user:${user}`, period, amount: cents, id: payment };
    return (await this.budgets.credit(credit)).ok;
  }

  /** An invoice says more than was counted, or a payment was charged back: it counts anyway. */
  async correct(user: string, cents: number, invoice: string) {
    const correction = { scopes: this.scopesOf(user), amount: cents, id: invoice };
    return this.budgets.charge({ ...correction, mode: 'record' });
  }
}

const limits = [{ scope: 'user', period, limit: 10_000 }];

@Module({
  // Once, in your root module, with the options of all features.
  imports: [SyncGuardModule.forRoot({ redis: process.env.REDIS_URL, budget: { limits } })],
  providers: [Payments],
})
export class PaymentsModule {}
