// orders.ts
import { Controller, Injectable, Module, NotFoundException, Param, Post } from '@nestjs/common';
import { Once, onceKey, OnceService, seconds, SyncGuardModule } from 'nestjs-syncguard';

@Injectable()
export class Provider {
  readonly receipts = new Map<string, string>(); // Stands for your payment provider.

  async charge(order: string, { idempotencyKey }: { idempotencyKey: string }) {
    this.receipts.set(idempotencyKey, `receipt of ${order}`);
    return `receipt of ${order}`;
  }
}

@Controller('orders')
export class OrdersController {
  constructor(
    private readonly provider: Provider,
    private readonly once: OnceService,
  ) {}

  @Post(':id/pay') // Behind a guard that asks whose order it is.
  @Once({ key: 'params.id', afterCrash: 'refuse', waitMs: seconds(2) })
  async pay(@Param('id') id: string) {
    return { receipt: await this.provider.charge(id, { idempotencyKey: `order:${id}` }) };
  }

  @Post(':id/decide') // For your staff, or a job: what has a call done that was cut off?
  async decide(@Param('id') id: string) {
    const key = onceKey({ route: 'POST /orders/:id/pay', key: id });
    const record = await this.once.get(key);
    if (record?.state !== 'unknown') throw new NotFoundException('Nothing is to be decided.');
    const receipt = this.provider.receipts.get(`order:${id}`);
    return receipt ? this.once.settle(key, { value: { receipt } }) : this.once.forget(key);
  }
}

@Module({
  // Once, in your root module, with the options of all features.
  imports: [SyncGuardModule.forRoot({ redis: process.env.REDIS_URL })],
  controllers: [OrdersController],
  providers: [Provider],
})
export class OrdersModule {}
