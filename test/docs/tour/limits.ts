import { Body, Controller, Get, HttpCode, Module, Post, UnauthorizedException } from '@nestjs/common';
import { APP_GUARD } from '@nestjs/core';
import { RateLimit, RateLimitGuard, seconds, SkipRateLimit, SyncGuardModule } from 'nestjs-syncguard';

@Controller()
class AppController {
  @Post('login')
  @HttpCode(200)
  @RateLimit('login') // a preset: counts failed logins by address and `body.email`; the 5th in a minute is itself a 429
  login(@Body() { email, password }: { email: string; password: string }) {
    if (password !== 'correct') throw new UnauthorizedException(); // your own check
    return { welcome: email };
  }

  @Get('search')
  @RateLimit({ limit: 5, windowMs: seconds(10) }) // 5 in any 10 seconds, by address
  search() {
    return [];
  }

  @Get('health')
  @SkipRateLimit() // never limited
  health() {
    return { status: 'ok' };
  }
}

@Module({
  imports: [
    SyncGuardModule.forRoot({
      redis: process.env.REDIS_URL, // without it: this process's memory
      limits: { default: { limit: 100, windowMs: seconds(10) } }, // by address, over all routes together
    }),
  ],
  controllers: [AppController],
  providers: [{ provide: APP_GUARD, useClass: RateLimitGuard }],
})
export class AppModule {}
