import { Injectable } from '@nestjs/common';
import { AbuseLimiterService, hours, minutes, type SyncGuardOptions } from 'nestjs-syncguard';

export const options: SyncGuardOptions = {
  limits: {
    export: { limit: 10, windowMs: hours(1), keyBy: 'user' }, // 10 let in, no block: wait for the oldest to be an hour old
    pin: {
      keyBy: ['ip', 'body.email'], // together; also 'headers.x-api-key', (context) => ..., or an injected provider
      count: 'failure', // successes do not count
      onError: 'closed', // Redis is away: 503. 'memory' (default) counts in this process, 'open' lets in
      temp: { windowMs: minutes(1), threshold: 5, blockMs: minutes(1) }, // the 5th in a minute blocks for a minute
      long: { windowMs: hours(1), threshold: 20, blockMs: hours(1) }, // who keeps coming back: for an hour
    },
  },
};

@Injectable()
export class Exports {
  constructor(private readonly limiter: AbuseLimiterService) {}

  async run(userId: string) {
    const decision = await this.limiter.check(userId, 'export');
    if (!decision.allowed) return `Try again in ${decision.retryAfterSecs} s`;
    return 'exported';
  }
}
