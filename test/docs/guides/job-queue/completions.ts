// completions.ts
import { Inject, Injectable, Module, type OnModuleDestroy, type OnModuleInit } from '@nestjs/common';
import { type Job, DelayedError, UnrecoverableError, Worker } from 'bullmq';
import { BudgetConflictError, BudgetExceededError, BudgetService, SyncGuardModule } from 'nestjs-syncguard';

export interface Ask {
  user: string;
  prompt: string;
  maxTokens: number;
}
export interface Answer {
  text: string;
  tokens: number;
}
export const COMPLETE = Symbol('What asks your provider.');
export type Complete = (ask: Ask) => Promise<Answer>;

@Injectable()
export class CompletionsWorker implements OnModuleInit, OnModuleDestroy {
  #worker: Worker<Ask, Answer> | undefined;

  constructor(
    private readonly budgets: BudgetService,
    @Inject(COMPLETE) private readonly complete: Complete,
  ) {}

  onModuleInit(): void {
    const connection = { url: process.env.REDIS_URL, maxRetriesPerRequest: null };
    this.#worker = new Worker('completions', (job, token) => this.#run(job, token), { connection });
  }

  async onModuleDestroy(): Promise<void> {
    await this.#worker?.close(); // Waits for the jobs that run.
  }

  async #run(job: Job<Ask, Answer>, token?: string): Promise<Answer> {
    try {
      return await this.budgets.run(() => this.complete(job.data), {
        id: `completion:${job.id}`, // One run at a time, and none after it was paid for.
        scopes: [`user:${job.data.user}`],
        amount: job.data.maxTokens,
        actual: ({ tokens }) => tokens,
      });
    } catch (error) {
      const isFull = error instanceof BudgetExceededError;
      const retryAtMs = isFull || error instanceof BudgetConflictError ? error.retryAtMs : null;
      if (retryAtMs) {
        await job.moveToDelayed(retryAtMs, token);
        throw new DelayedError(); // No attempt is used up.
      }
      throw isFull ? new UnrecoverableError(error.message) : error; // More than a whole month has.
    }
  }
}

@Module({
  imports: [
    // Once, in your root module, with the options of all features.
    SyncGuardModule.forRoot({
      redis: process.env.REDIS_URL,
      budget: { limits: [{ scope: 'user', period: { every: 'month' }, limit: 1_000 }] },
    }),
  ],
  providers: [
    CompletionsWorker,
    { provide: COMPLETE, useValue: (): Promise<Answer> => Promise.reject(new Error()) },
  ],
})
export class CompletionsModule {}
