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

  /** Reserves the most it can cost before the model runs; what was not used goes back when it has answered. */
  @WithBudget({
    scopes: scopesOf,
    estimate: (_user: string, prompt: string, maxTokens: number) => countTokens(prompt) + maxTokens,
    actual: ({ usage }: Completion) => usage.total,
  })
  complete(_user: string, prompt: string, maxTokens: number): Promise<Completion> {
    return this.model.complete(prompt, maxTokens);
  }

  /** Of the user, their team and the org: one balance a period. */
  async budgetOf(user: string): Promise<Balance[]> {
    const balances = await Promise.all(scopesOf(user).map((scope) => this.budgets.balance({ scope })));
    return balances.flat();
  }
}
