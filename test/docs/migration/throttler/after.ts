// after.ts
import { Controller, Get, Module } from '@nestjs/common';
import { APP_GUARD } from '@nestjs/core';
import {
  type KeyBy,
  minutes,
  RateLimit,
  RateLimitGuard,
  seconds,
  SkipRateLimit,
  SyncGuardModule,
} from 'nestjs-syncguard';

// By key, without one by address; each route counts apart, as it did.
const keyBy = ['headers.x-api-key', 'route'] satisfies KeyBy;
const short = { name: 'short', limit: 3, windowMs: seconds(10), blockMs: seconds(10), keyBy };
const long = { name: 'long', limit: 6, windowMs: minutes(1), blockMs: minutes(1), keyBy };

@Controller('items')
export class ItemsController {
  @Get()
  list() {
    return [];
  }

  @Get('search')
  @RateLimit({ limit: 1, windowMs: seconds(10), blockMs: seconds(10), keyBy }) // stricter: limits add up
  search() {
    return [];
  }

  @Get('export')
  @RateLimit([{ ...short, name: 'export', limit: 5 }, long], { override: true }) // more: replaces `default`
  export() {
    return [];
  }

  @Get('feed')
  @SkipRateLimit('short') // `long` stays
  feed() {
    return [];
  }

  @Get('health')
  @SkipRateLimit()
  health() {
    return 'ok';
  }
}

@Module({
  imports: [SyncGuardModule.forRoot({ redis: process.env.REDIS_URL, limits: { default: [short, long] } })],
  controllers: [ItemsController],
  providers: [{ provide: APP_GUARD, useClass: RateLimitGuard }],
})
export class AppModule {}
