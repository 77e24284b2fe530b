// after.ts
import { Body, Controller, Get, HttpCode, Module, Post, UnauthorizedException } from '@nestjs/common';
import { hours, type LimitPolicy, minutes, RateLimit, SyncGuardModule } from 'nestjs-syncguard';

const SEARCH = { name: 'search', limit: 5, windowMs: minutes(1) } satisfies LimitPolicy;

@Controller()
export class AppController {
  @Get('search')
  @RateLimit(SEARCH)
  find() {
    return [];
  }

  @Get('export')
  @RateLimit({ ...SEARCH, cost: 3 }) // of one name: they count together
  export() {
    return [];
  }

  @Post('login')
  @HttpCode(200)
  @RateLimit({
    name: 'failures',
    keyBy: ['ip', 'body.email'],
    count: 'failure',
    temp: { windowMs: hours(1), limit: 3, blockMs: minutes(15) },
    resetOnSuccess: true,
  })
  login(@Body('password') password: string) {
    if (password === 'right') return 'welcome';
    throw new UnauthorizedException();
  }
}

@Module({
  imports: [SyncGuardModule.forRoot({ redis: process.env.REDIS_URL })],
  controllers: [AppController],
})
export class AppModule {}
