// mailer.ts
import { Injectable, Module } from '@nestjs/common';
import { AbuseLimiterService, seconds, SyncGuardModule } from 'nestjs-syncguard';

/** The part of BullMQ's worker that the processor needs. */
interface Queue {
  rateLimit(ms: number): Promise<void>;
  rateLimitError(): Error;
}

@Injectable()
export class Mailer {
  readonly sent: string[] = []; // stands for the provider

  constructor(private readonly limiter: AbuseLimiterService) {}

  /** In the processor: `process: (job) => mailer.send(job.data.to, { rateLimit: (ms) => worker.rateLimit(ms), rateLimitError: Worker.RateLimitError })`. */
  async send(to: string, queue: Queue): Promise<void> {
    const decision = await this.limiter.check('mail.example', 'mails');
    if (!decision.allowed) {
      await queue.rateLimit(decision.retryAfterMs); // the queue stands still, and the job goes back without a failed attempt
      throw queue.rateLimitError();
    }
    this.sent.push(to);
  }
}

@Module({
  imports: [
    SyncGuardModule.forRoot({
      redis: process.env.REDIS_URL,
      limits: { mails: { limit: 2, windowMs: seconds(1), onError: 'closed' } },
    }),
  ],
  providers: [Mailer],
})
export class MailModule {}
