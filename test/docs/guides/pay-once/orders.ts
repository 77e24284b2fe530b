// orders.ts
import { Controller, Injectable, Module, Param, Post } from '@nestjs/common';
import { seconds, SyncGuardModule, WithLock } from 'nestjs-syncguard';

/** Stands for your provider, and for your database: all servers have to see the receipts. */
@Injectable()
export class Shop {
  readonly receipts = new Map<string, string>();
  readonly charges: string[] = [];

  async charge(order: string, { idempotencyKey }: { idempotencyKey: string }) {
    this.charges.push(idempotencyKey);
    return `receipt of ${order}`;
  }
}

@Controller('orders')
export class OrdersController {
  constructor(private readonly shop: Shop) {}

  @Post(':id/pay')
  @WithLock('order:{0}', { timeoutMs: seconds(2) }) // Of one order. {0}: the first argument.
  async pay(@Param('id') id: string) {
    const before = this.shop.receipts.get(id);
    if (before) return { receipt: before, charged: false };
    const receipt = await this.shop.charge(id, { idempotencyKey: `order:${id}` });
    this.shop.receipts.set(id, receipt);
    return { receipt, charged: true };
  }
}

@Module({
  // Once, in your root module, with the options of all features.
  imports: [SyncGuardModule.forRoot({ redis: process.env.REDIS_URL })],
  controllers: [OrdersController],
  providers: [Shop],
})
export class OrdersModule {}
