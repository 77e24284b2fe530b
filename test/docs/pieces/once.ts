import { Body, type CanActivate, Controller, Param, Post, UseGuards } from '@nestjs/common';
import { Once, OnceService } from 'nestjs-syncguard';

class AuthGuard implements CanActivate {
  canActivate = () => true;
}
interface StripeEvent {
  readonly id: string;
}
class Payments {
  charge = async (order: unknown) => order;
  settle = async (event: StripeEvent) => event.id;
}

@Controller()
export class PaymentsController {
  constructor(
    private readonly payments: Payments,
    private readonly once: OnceService,
  ) {}

  @Post('orders/:id/pay')
  @UseGuards(AuthGuard)
  @Once() // the header Idempotency-Key, for each route and user apart
  pay(@Param('id') id: string) {
    return this.payments.charge(id);
  }

  @Post('webhooks/stripe')
  @Once({ key: 'body.id' }) // the sender's event id
  received(@Body() event: StripeEvent) {
    return this.payments.settle(event);
  }

  async run(order: { id: string; amount: number }) {
    const { value, replayed } = await this.once.run(() => this.payments.charge(order), {
      key: `charge:${order.id}`,
      payload: { amount: order.amount },
    });
    return { value, replayed };
  }
}
