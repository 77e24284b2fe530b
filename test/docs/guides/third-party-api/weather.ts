// weather.ts
import { Injectable, Module, ServiceUnavailableException } from '@nestjs/common';
import { AbuseLimiterService, seconds, SyncGuardModule } from 'nestjs-syncguard';
import { setTimeout as sleep } from 'node:timers/promises';

@Injectable()
export class WeatherApi {
  readonly asked: string[] = [];

  constructor(private readonly limiter: AbuseLimiterService) {}

  async forecast(city: string, patienceMs = seconds(30)): Promise<string> {
    const untilMs = Date.now() + patienceMs;
    for (;;) {
      const decision = await this.limiter.check('weather.example', 'weather');
      if (decision.allowed) return this.fetch(city);
      const waitMs = seconds(decision.retryAfterSecs);
      if (Date.now() + waitMs > untilMs)
        throw new ServiceUnavailableException('The weather service is busy.');
      await sleep(waitMs);
    }
  }

  private async fetch(city: string): Promise<string> {
    this.asked.push(city); // Stands for the call of the provider.
    return `It rains in ${city}.`;
  }
}

@Module({
  imports: [
    // Once, in your root module, with the options of all features.
    SyncGuardModule.forRoot({
      redis: process.env.REDIS_URL,
      limits: {
        weather: {
          limit: 4, // What the contract says, a little less.
          windowMs: seconds(1), // Any second, as the window slides.
          onError: 'closed', // Redis is away: rather no call than one too many.
        },
      },
    }),
  ],
  providers: [WeatherApi],
})
export class WeatherModule {}
