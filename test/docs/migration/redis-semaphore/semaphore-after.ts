// semaphore-after.ts
import type { BudgetService } from 'nestjs-syncguard';

/** In forRoot: as many permits as may be out at once. */
export const limits = [{ scope: 'partner', period: 'lifetime', limit: 2 }] as const;

/** Runs at most two at once in all processes; a third is a BudgetExceededError at once: 429 over HTTP. */
export const callPartner = <T>(budgets: BudgetService, call: () => Promise<T>): Promise<T> =>
  budgets.run(call, {
    scopes: ['partner'],
    amount: 1, // held while the body runs, and extended
    actual: () => 0, // nothing is spent: the permit goes back
    onThrow: 'abort',
  });
