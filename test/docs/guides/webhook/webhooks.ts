// webhooks.ts
import { createHmac, timingSafeEqual } from 'node:crypto';
import type { IncomingMessage } from 'node:http';
import { Body, Controller, HttpCode, Injectable, Module, Post, UseGuards } from '@nestjs/common';
import type { CanActivate, ExecutionContext, RawBodyRequest } from '@nestjs/common';
import { days, Once, SyncGuardModule } from 'nestjs-syncguard';

/** What `stripe.webhooks.constructEvent()` checks, without its package. If false: 403. */
export class StripeGuard implements CanActivate {
  canActivate(context: ExecutionContext): boolean {
    const request = context.switchToHttp().getRequest<RawBodyRequest<IncomingMessage>>();
    const sent = String(request.headers['stripe-signature']);
    const time = /\bt=(\d+)/.exec(sent)?.[1] ?? '0';
    const hmac = createHmac('sha256', process.env.STRIPE_WEBHOOK_SECRET as string);
    hmac.update(`${time}.`);
    const right = hmac.update(request.rawBody ?? '').digest();
    const signatures = [...sent.matchAll(/\bv1=([0-9a-f]{64})/g)].map(([, v1 = '']) => v1);
    const isRight = signatures.some((v1) => timingSafeEqual(Buffer.from(v1, 'hex'), right));
    return isRight && Math.abs(Date.now() / 1000 - Number(time)) < 300; // At most 5 minutes old.
  }
}

type StripeEvent = { id: string; type: string; data: { object: { id: string } } };

@Injectable()
export class Shipping {
  readonly shipped: string[] = []; // Stands for your database.
  async ship(checkout: string) {
    this.shipped.push(checkout);
  }
}

@Controller('webhooks')
export class WebhooksController {
  constructor(private readonly shipping: Shipping) {}

  @Post('stripe')
  @HttpCode(200)
  @UseGuards(StripeGuard) // Asked first: what is not signed takes no key, and gets no answer.
  @Once({
    key: 'body.id',
    payload: ({ body }: { body: StripeEvent }) => body.type, // `pending_webhooks` may change.
    keepMs: days(4), // Stripe goes on sending for 3 days.
  })
  async received(@Body() { type, data }: StripeEvent) {
    if (type === 'checkout.session.completed') await this.shipping.ship(data.object.id);
    return { received: true };
  }
}

@Module({
  // Once, in your root module, with the options of all features.
  imports: [SyncGuardModule.forRoot({ redis: process.env.REDIS_URL })],
  controllers: [WebhooksController],
  providers: [Shipping],
})
export class WebhooksModule {}
