// login.ts
import { Body, Controller, HttpCode, Module, Post, UnauthorizedException } from '@nestjs/common';
import { RateLimit, SyncGuardModule } from 'nestjs-syncguard';

@Controller()
export class LoginController {
  @Post('login')
  @HttpCode(200)
  @RateLimit('login') // A preset, by address and `body.email`.
  login(@Body() { email, password }: { email: string; password: string }) {
    // Your own check. Give the same answer for an unknown account.
    if (password !== 'correct') throw new UnauthorizedException();
    return { welcome: email };
  }
}

@Module({
  // Once, in your root module, with the options of all features.
  imports: [SyncGuardModule.forRoot({ redis: process.env.REDIS_URL })],
  controllers: [LoginController],
})
export class LoginModule {}
