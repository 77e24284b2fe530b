// accounts.ts
import { Body, Controller, HttpCode, Module, Post, UnauthorizedException } from '@nestjs/common';
import {
  AbuseLimiterService,
  hours,
  type LimitPolicies,
  RateLimit,
  SyncGuardModule,
} from 'nestjs-syncguard';

/** Mails that one account gets, and that one address asks for. Every call counts. */
const limits: LimitPolicies = {
  mail: [
    { keyBy: 'body.email', limit: 3, windowMs: hours(1) },
    { keyBy: 'ip', limit: 10, windowMs: hours(1) },
  ],
};

/** Stands for your users and your mails. */
export const store = {
  passwords: new Map([['ann@example.org', 'old']]),
  code: '493027',
  mails: 0,
};

@Controller()
export class AccountsController {
  constructor(private readonly limiter: AbuseLimiterService) {}

  @Post('login')
  @RateLimit('login')
  login(@Body() { email, password }: { email: string; password: string }) {
    if (store.passwords.get(email) !== password) throw new UnauthorizedException();
  }

  @Post('forgot')
  @HttpCode(202) // The same answer, whether there is such an account or not.
  @RateLimit('mail')
  forgot(@Body('email') email: string) {
    if (store.passwords.has(email)) store.mails++;
  }

  @Post('reset')
  @RateLimit('otp') // A code of six digits can be guessed, too.
  async reset(
    @Body() { email, code, password }: { email: string; code: string; password: string },
  ) {
    if (!store.passwords.has(email) || code !== store.code) throw new UnauthorizedException();
    store.passwords.set(email, password);
    return this.limiter.lift('login', { 'body.email': email });
  }
}

@Module({
  imports: [SyncGuardModule.forRoot({ redis: process.env.REDIS_URL, limits })],
  controllers: [AccountsController],
})
export class AccountsModule {}
