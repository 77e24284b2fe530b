import { type BudgetService } from 'nestjs-syncguard';

export async function spend(budgets: BudgetService, jobId: string) {
  const hold = await budgets.reserve({ scopes: ['user:ada', 'org'], amount: 900, id: jobId }); // an id makes retries safe
  if (!hold.ok) return hold.reason; // 'exceeded', with violations and retryAtMs
  await budgets.finalize(hold, 345); // or abort(hold); both may be repeated
  return hold.status;
}
