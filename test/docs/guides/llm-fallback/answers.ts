// answers.ts
import { Inject, Injectable, Module } from '@nestjs/common';
import { currentHold, SyncGuardModule, WithBudget } from 'nestjs-syncguard';

type Answer = { text: string; usd: number };
type Provider = (prompt: string) => Promise<Answer>;

/** Millionths of a dollar. `usd * 1e6` is no whole number for 2% of all prices. */
export const microUsd = (usd: number): number => Math.round(usd * 1e6);

@Injectable()
export class Answers {
  constructor(@Inject('PROVIDERS') private readonly providers: Provider[]) {}

  @WithBudget({
    scopes: (user: string) => [`user:${user}`],
    estimate: () => microUsd(0.05), // Of all providers together, at the most.
    actual: ({ usd }: Answer) => (currentHold()?.noted ?? 0) + microUsd(usd),
  })
  async ask(_user: string, prompt: string): Promise<Answer> {
    for (const provider of this.providers) {
      const answer = await provider(prompt);
      if (answer.text) return answer;
      currentHold()?.spent(microUsd(answer.usd)); // It was paid, and said nothing.
    }
    throw new Error('No provider has an answer.');
  }
}

/** Stand for yours. The first one is paid 1.2 cents for nothing, and the second one 2 cents. */
const providers: Provider[] = [
  async () => ({ text: '', usd: 0.012 }),
  async () => ({ text: 'an answer', usd: 0.02 }),
];

const limits = [{ scope: 'user', period: { every: 'month' as const }, limit: microUsd(0.1) }];

@Module({
  // Once, in your root module, with the options of all features.
  imports: [SyncGuardModule.forRoot({ redis: process.env.REDIS_URL, budget: { limits } })],
  providers: [Answers, { provide: 'PROVIDERS', useValue: providers }],
})
export class AnswersModule {}
