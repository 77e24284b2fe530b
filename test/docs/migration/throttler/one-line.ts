// one-line.ts
import { Controller, Get, Module } from '@nestjs/common';
import { APP_GUARD } from '@nestjs/core';
import { seconds, Throttle, ThrottlerGuard, ThrottlerModule } from '@nestjs/throttler';
import { AbuseLimiterService, SyncGuardModule } from 'nestjs-syncguard';
import { SyncGuardThrottlerStorage } from 'nestjs-syncguard/throttler';

@Controller('items')
export class ItemsController {
  @Get()
  list() {
    return [];
  }

  @Get('search')
  @Throttle({ default: { limit: 1, blockDuration: seconds(30) } })
  search() {
    return [];
  }
}

@Module({
  imports: [
    SyncGuardModule.forRoot({ redis: process.env.REDIS_URL }),
    ThrottlerModule.forRootAsync({
      inject: [AbuseLimiterService],
      useFactory: (limiter: AbuseLimiterService) => ({
        throttlers: [{ limit: 3, ttl: seconds(10) }],
        storage: new SyncGuardThrottlerStorage(limiter), // the line
      }),
    }),
  ],
  controllers: [ItemsController],
  providers: [{ provide: APP_GUARD, useClass: ThrottlerGuard }],
})
export class AppModule {}
