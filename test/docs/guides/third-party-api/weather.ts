// weather.ts
import { Injectable, Module, ServiceUnavailableException } from '@nestjs/common';
import { AbuseLimiterService, seconds, SyncGuardModule } from 'nestjs-syncguard';
import { setTimeout as sleep } from 'node:timers/promises';

@Injectable()
export class WeatherApi {
  readonly asked: string[] = []; // Stands for the provider.

  constructor(private readonly limiter: AbuseLimiterService) {}

  async forecast(city: string, patienceMs = seconds(30)): Promise<string> {
    const untilMs = Date.now() + patienceMs;
    for (;;) {
      const decision = await this.limiter.check('weather.example', 'weather'); // Key, limit.
      if (decision.allowed) break;
      const waitMs = seconds(decision.retryAfterSecs);
      if (Date.now() + waitMs > untilMs)
        throw new ServiceUnavailableException('Ask again later.');
      await sleep(waitMs);
    }
    this.asked.push(city);
    return `It rains in ${city}.`;
  }
}

const weather = {
  limit: 4, // What the contract says, a little less: calls travel for different times.
  windowMs: seconds(1), // Any second, as the window slides.
  onError: 'closed' as const, // Redis is away: rather no call than one too many.
};

@Module({
  // Once, in your root module, with the options of all features.
  imports: [SyncGuardModule.forRoot({ redis: process.env.REDIS_URL, limits: { weather } })],
  providers: [WeatherApi],
})
export class WeatherModule {}
