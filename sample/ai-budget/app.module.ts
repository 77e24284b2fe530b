import { Body, Controller, Get, Injectable, Module, Param, Post } from '@nestjs/common';
import { BudgetService, SyncGuardModule, WithBudget } from 'nestjs-syncguard';

interface Answer {
  text: string;
  tokens: number;
}

/** Stands for the client of your provider. */
@Injectable()
export class Model {
  @WithBudget({
    scopes: (user: string) => [`user:${user}`, 'org'], // both must have room
    estimate: (_user: string, _prompt: string, maxTokens: number) => maxTokens, // reserved before it runs
    actual: (answer: Answer) => answer.tokens, // counted after it; the rest goes back
  })
  async ask(_user: string, prompt: string, maxTokens: number): Promise<Answer> {
    return { text: `You said: ${prompt}`, tokens: Math.min(maxTokens, prompt.length) };
  }
}

@Controller('ai')
export class AiController {
  constructor(
    private readonly model: Model,
    private readonly budgets: BudgetService,
  ) {}

  /** 429 with Retry-After where a limit is used up; 402 where waiting does not help. */
  @Post()
  ask(@Body() { user, prompt, maxTokens }: { user: string; prompt: string; maxTokens: number }) {
    return this.model.ask(user, prompt, maxTokens);
  }

  @Get(':user')
  left(@Param('user') user: string) {
    return this.budgets.balance({ scope: `user:${user}` });
  }
}

@Module({
  imports: [
    SyncGuardModule.forRoot({
      redis: process.env.REDIS_URL, // without it: in the memory of this process
      budget: {
        limits: [
          { scope: 'user', period: { every: 'day' }, limit: 1_000 }, // each user
          { scope: 'org', period: { every: 'month', tz: 'Europe/Berlin' }, limit: 100_000 }, // all together
        ],
      },
    }),
  ],
  controllers: [AiController],
  providers: [Model],
})
export class AppModule {}
