import { Injectable } from '@nestjs/common';
import { type Balance, BudgetService, WithBudget } from 'nestjs-syncguard';
import { scopesOf } from './ai.budget.js';
import { type Completion, countTokens, FakeModel } from './fake-model.js';

@Injectable()
export class AiService {
  constructor(
    private readonly model: FakeModel,
    private readonly budgets: BudgetService,
  ) {}

  /** Reserves the highest possible cost before the model runs. Unused tokens become free after the answer. */
  @WithBudget({
    scopes: scopesOf,
    estimate: (_user: string, prompt: string, maxTokens: number) => countTokens(prompt) + maxTokens,
    actual: ({ usage }: Completion) => usage.total,
  })
  complete(_user: string, prompt: string, maxTokens: number): Promise<Completion> {
    return this.model.complete(prompt, maxTokens);
  }

  /** Returns the balances of the user, of their team and of the org, one for each period. */
  async budgetOf(user: string): Promise<Balance[]> {
    const balances = await Promise.all(scopesOf(user).map((scope) => this.budgets.balance({ scope })));
    return balances.flat();
  }
}
