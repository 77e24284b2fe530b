// login.ts
import { Body, Controller, HttpCode, Module, Post, UnauthorizedException } from '@nestjs/common';
import { RateLimit, SyncGuardModule } from 'nestjs-syncguard';

@Controller()
export class LoginController {
  @Post('login')
  @HttpCode(200)
  @RateLimit('login') // A preset. It expects the account in `body.email`.
  login(@Body() { email, password }: { email: string; password: string }) {
    if (password !== 'correct') throw new UnauthorizedException(); // Your own check. The same answer for an unknown account.
    return { welcome: email };
  }
}

@Module({
  imports: [SyncGuardModule.forRoot({ redis: process.env.REDIS_URL })],
  controllers: [LoginController],
})
export class LoginModule {}
