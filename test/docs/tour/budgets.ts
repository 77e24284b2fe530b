import { Body, Controller, Injectable, Module, Post } from '@nestjs/common';
import { BudgetService, SyncGuardModule, WithBudget } from 'nestjs-syncguard';

interface Answer {
  text: string;
  tokens: number;
}

@Injectable()
export class Llm {
  @WithBudget({
    scopes: (user: string) => [`user:${user}`, 'org'], // both must have room
    estimate: (_user: string, _prompt: string, maxTokens: number) => maxTokens, // reserved before it runs
    actual: (answer: Answer) => answer.tokens, // counted after it ran; the rest goes back
  })
  async complete(user: string, prompt: string, maxTokens: number): Promise<Answer> {
    return { text: `Hello ${user}, you said: ${prompt}`, tokens: Math.min(maxTokens, prompt.length) }; // your provider
  }
}

@Controller('ai')
export class AiController {
  constructor(
    private readonly llm: Llm,
    private readonly budgets: BudgetService,
  ) {}

  @Post()
  async complete(@Body() { user, prompt, maxTokens }: { user: string; prompt: string; maxTokens: number }) {
    const { text } = await this.llm.complete(user, prompt, maxTokens);
    return { text, budget: await this.budgets.balance({ scope: `user:${user}` }) };
  }
}

@Module({
  imports: [
    SyncGuardModule.forRoot({
      redis: process.env.REDIS_URL, // no URL: in memory, for one process
      budget: {
        limits: [
          { scope: 'user', period: { every: 'month', tz: 'Europe/Berlin' }, limit: 1_000 }, // each user
          { scope: 'user:vip', period: { every: 'month', tz: 'Europe/Berlin' }, limit: 50_000 }, // but this one
          { scope: 'org', period: { every: 'day' }, limit: 20_000, thresholds: [80, 100] }, // all together
        ],
      },
    }),
  ],
  controllers: [AiController],
  providers: [Llm],
})
export class AppModule {}
