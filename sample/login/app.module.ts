import { Body, Controller, HttpCode, Module, Post, UnauthorizedException } from '@nestjs/common';
import { APP_GUARD } from '@nestjs/core';
import { RateLimit, RateLimitGuard, seconds, SyncGuardModule } from 'nestjs-syncguard';

const PASSWORD = 'correct'; // stands for a table of users with salted hashes

@Controller('login')
export class LoginController {
  /** A preset. The 5th wrong password in a minute, by address and `body.email`, is itself answered 429. */
  @Post()
  @HttpCode(200)
  @RateLimit('login')
  login(@Body() { email, password }: { email: string; password: string }) {
    if (password !== PASSWORD) throw new UnauthorizedException('Wrong e-mail or password.');
    return { welcome: email };
  }
}

@Module({
  imports: [
    SyncGuardModule.forRoot({
      redis: process.env.REDIS_URL, // without it: in the memory of this process
      limits: { default: { limit: 100, windowMs: seconds(10) } }, // each address, over all routes
    }),
  ],
  controllers: [LoginController],
  providers: [{ provide: APP_GUARD, useClass: RateLimitGuard }],
})
export class AppModule {}
