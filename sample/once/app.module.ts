import { setTimeout as sleep } from 'node:timers/promises';
import { Body, Controller, Get, HttpCode, Injectable, Module, Post } from '@nestjs/common';
import { Once, SyncGuardModule } from 'nestjs-syncguard';

/** Stands for a table of orders. */
@Injectable()
export class Orders {
  readonly all: { number: number; item: string; paid: boolean }[] = [];
}

@Controller()
export class OrdersController {
  constructor(private readonly orders: Orders) {}

  /** By the header Idempotency-Key: pressed twice, it is one order, and both get its number. */
  @Post('orders')
  @Once()
  async order(@Body('item') item: string) {
    await sleep(200); // a stock, a price
    const number = this.orders.all.push({ number: this.orders.all.length + 1, item, paid: false });
    return { number, item };
  }

  /** By the sender's id of the event. Check its signature in a guard: docs/guides/webhook.md. */
  @Post('webhooks')
  @HttpCode(200)
  @Once({ key: 'body.id' })
  paid(@Body() { number }: { id: string; number: number }) {
    for (const order of this.orders.all) if (order.number === number) order.paid = true;
    return { received: true };
  }

  @Get('orders')
  list() {
    return this.orders.all;
  }
}

@Module({
  imports: [
    SyncGuardModule.forRoot({
      redis: process.env.REDIS_URL, // without it: in the memory of this process
      once: {
        // Whose key it is. Stands for your authentication: without it the id of `request.user` is taken.
        user: (context) => context.switchToHttp().getRequest<Request>().headers['x-user'],
      },
    }),
  ],
  controllers: [OrdersController],
  providers: [Orders],
})
export class AppModule {}

interface Request {
  headers: Record<string, string | undefined>;
}
