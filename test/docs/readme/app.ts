import { Body, Controller, HttpCode, Module, Param, Post, UnauthorizedException } from '@nestjs/common';
import {
  hours,
  Lock,
  type LockContext,
  RateLimit,
  SecretService,
  SyncGuardModule,
  WithBudget,
  WithLock,
} from 'nestjs-syncguard';

@Controller('orders')
export class OrdersController {
  @Post(':id/pay')
  @WithLock('order:{0}') // one call an order at a time, in all processes; {0} is the first argument
  async pay(@Param('id') id: string, @Lock() lock?: LockContext) {
    return { id, fence: lock?.fence }; // let what you write to refuse a lower fence than it has seen
  }
}

@Controller('login')
export class LoginController {
  @Post()
  @HttpCode(200)
  @RateLimit('login') // a preset: the 5th failed login in a minute, by address and `body.email`, is itself a 429
  login(@Body() { email, password }: { email: string; password: string }) {
    if (password !== 'correct') throw new UnauthorizedException(); // your own check
    return { welcome: email };
  }
}

@Controller('ai')
export class AiController {
  @Post()
  @WithBudget({
    scopes: ({ user }: Ask) => [`user:${user}`], // each user has the budget that the module says
    estimate: ({ maxTokens }: Ask) => maxTokens, // reserved before it runs
    actual: (answer: { tokens: number }) => answer.tokens, // counted after it ran; the rest goes back
  })
  async complete(@Body() { prompt, maxTokens }: Ask) {
    return { text: `You said: ${prompt}`, tokens: Math.min(prompt.length, maxTokens) }; // your provider
  }
}

interface Ask {
  user: string;
  prompt: string;
  maxTokens: number;
}

@Controller('secrets')
export class SecretsController {
  constructor(private readonly secrets: SecretService) {}

  @Post()
  create(@Body('sealed') payload: string) {
    return this.secrets.create({ payload, views: 1, ttlMs: hours(1) }); // { id, receipt, ... }; encrypt before
  }

  @Post(':id/reveal')
  reveal(@Param('id') id: string) {
    return this.secrets.view(id); // once { ok: true, payload, ... }, then { ok: false, reason: 'burned' }
  }
}

@Module({
  imports: [
    SyncGuardModule.forRoot({
      redis: process.env.REDIS_URL, // without it: in the memory of this process
      budget: { limits: [{ scope: 'user', period: { every: 'month' }, limit: 1_000 }] },
    }),
  ],
  controllers: [OrdersController, LoginController, AiController, SecretsController],
})
export class AppModule {}
