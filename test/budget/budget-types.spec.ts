import { BudgetService, WithBudget } from 'nestjs-syncguard';

// These lines must not compile. `npm run typecheck` fails where one of them does.

async function unchecked(budgets: BudgetService): Promise<void> {
  const hold = await budgets.reserve({ scopes: ['user'], amount: 1 });
  // @ts-expect-error an unchecked result may be a denial
  void hold.balances;
  // @ts-expect-error amounts are numbers
  if (hold.ok) await budgets.finalize(hold, 1n);
  // @ts-expect-error a charge is retried by its id
  await budgets.charge({ scopes: ['user'], amount: 1 });
}

class Methods {
  @WithBudget({
    scopes: (user: string) => [user],
    estimate: (_user: string, n: number) => n,
    actual: (answer: { n: number }) => answer.n,
  })
  async complete(
    user: string,
    n: number,
    more?: string,
  ): Promise<{ n: number; user: string; more?: string }> {
    return { n, user, more };
  }

  // @ts-expect-error the first argument is a number
  @WithBudget({ scopes: (user: string) => [user], estimate: () => 1 })
  async wrongArgument(user: number): Promise<number> {
    return user;
  }

  // @ts-expect-error the result has no n
  @WithBudget({ scopes: () => ['org'], estimate: () => 1, actual: (answer: { n: number }) => answer.n })
  async wrongResult(): Promise<number> {
    return 1;
  }

  // @ts-expect-error the method is not async
  @WithBudget({ scopes: () => ['org'], estimate: () => 1 })
  notAsync(): number {
    return 1;
  }
}

it('the types of budgets hold', () => {
  expect([unchecked, Methods]).toHaveLength(2);
});
