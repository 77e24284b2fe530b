// completions.ts
import { Injectable, Module } from '@nestjs/common';
import { DelayedError, type Job, UnrecoverableError, Worker } from 'bullmq';
import { BudgetConflictError, BudgetExceededError } from 'nestjs-syncguard';
import { BudgetService, days, SyncGuardModule } from 'nestjs-syncguard';

export type Ask = { user: string; prompt: string; maxTokens: number };

@Injectable()
export class Llm {
  /** Stands for your provider. */
  async complete({ prompt, maxTokens }: Ask) {
    return { text: `You said: ${prompt}`, tokens: Math.min(prompt.length, maxTokens) };
  }
}

@Injectable()
export class Completions {
  #worker?: Worker<Ask>;

  constructor(
    private readonly budgets: BudgetService,
    private readonly llm: Llm,
  ) {}

  onModuleInit() {
    const connection = { url: process.env.REDIS_URL, maxRetriesPerRequest: null };
    this.#worker = new Worker('answers', (job, token) => this.#run(job, token), { connection });
  }

  async onModuleDestroy() {
    await this.#worker?.close(); // Waits for the jobs that run.
  }

  async #run(job: Job<Ask>, token?: string) {
    try {
      return await this.budgets.run(() => this.llm.complete(job.data), {
        id: `${job.queueName}:${job.id}`, // One run at a time, and none after it was paid for.
        scopes: [`user:${job.data.user}`],
        amount: job.data.maxTokens,
        actual: ({ tokens }) => tokens,
      });
    } catch (error) {
      const isNo = error instanceof BudgetExceededError || error instanceof BudgetConflictError;
      if (!isNo) throw error;
      if (!error.retryAtMs) throw new UnrecoverableError(error.message); // Waiting does not help.
      await job.moveToDelayed(error.retryAtMs, token);
      throw new DelayedError(); // No attempt is used up.
    }
  }
}

const limits = [{ scope: 'user', period: { every: 'month' as const }, limit: 1_000 }];
const budget = { limits, retentionMs: days(1) }; // For so long an id that was paid for is known.

@Module({
  // Once, in your root module, with the options of all features.
  imports: [SyncGuardModule.forRoot({ redis: process.env.REDIS_URL, budget })],
  providers: [Completions, Llm],
})
export class CompletionsModule {}
