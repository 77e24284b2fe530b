// weather.ts
import { Injectable, Module, ServiceUnavailableException } from '@nestjs/common';
import { AbuseLimiterService, seconds, SyncGuardModule } from 'nestjs-syncguard';
import { setTimeout as sleep } from 'node:timers/promises';

@Injectable()
export class WeatherApi {
  readonly asked: string[] = []; // Stands for the provider.

  constructor(private readonly limiter: AbuseLimiterService) {}

  async forecast(city: string, patienceMs = seconds(30)): Promise<string> {
    await this.room(patienceMs);
    this.asked.push(city);
    return `It rains in ${city}.`;
  }

  async room(patienceMs: number): Promise<void> {
    const untilMs = Date.now() + patienceMs;
    for (;;) {
      const decision = await this.limiter.check('weather.example', 'weather'); // Key, limit.
      if (decision.allowed) return;
      const { retryAfterMs } = decision; // For a header: `retryAfterSecs`.
      if (Date.now() + retryAfterMs > untilMs)
        throw new ServiceUnavailableException('Ask again later.');
      await sleep(retryAfterMs);
    }
  }
}

const weather = {
  limit: 4, // As the contract says.
  windowMs: seconds(3), // The 2 s of the contract, and 1 s for the way: see below.
  onError: 'closed' as const, // Redis is away: rather no call than one too many.
};

@Module({
  // Once, in your root module, with the options of all features.
  imports: [SyncGuardModule.forRoot({ redis: process.env.REDIS_URL, limits: { weather } })],
  providers: [WeatherApi],
})
export class WeatherModule {}
