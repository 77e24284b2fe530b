// after.ts
import { Controller, Get, Module } from '@nestjs/common';
import { APP_GUARD } from '@nestjs/core';
import { minutes, seconds, SkipThrottle, Throttle, ThrottlerGuard, ThrottlerModule } from '@nestjs/throttler';
import { AbuseLimiterService, SyncGuardModule } from 'nestjs-syncguard';
import { SyncGuardThrottlerStorage } from 'nestjs-syncguard/throttler';

type Request = { ip: string; headers: Record<string, string | undefined> };
const apiKeyOf = ({ headers, ip }: Request) => headers['x-api-key'] ?? ip;

@Controller('items')
export class ItemsController {
  @Get()
  list() {
    return [];
  }

  @Get('search')
  @Throttle({ short: { limit: 1, blockDuration: seconds(30) } })
  search() {
    return [];
  }

  @Get('feed')
  @SkipThrottle({ short: true })
  feed() {
    return [];
  }
}

@Module({
  imports: [
    SyncGuardModule.forRoot({ redis: process.env.REDIS_URL }),
    ThrottlerModule.forRootAsync({
      inject: [AbuseLimiterService],
      useFactory: (limiter: AbuseLimiterService) => ({
        throttlers: [
          { name: 'short', limit: 3, ttl: seconds(10) },
          { name: 'long', limit: 6, ttl: minutes(1) },
        ],
        getTracker: (request) => apiKeyOf(request as Request),
        storage: new SyncGuardThrottlerStorage(limiter),
      }),
    }),
  ],
  controllers: [ItemsController],
  providers: [{ provide: APP_GUARD, useClass: ThrottlerGuard }],
})
export class AppModule {}
