import { setTimeout as sleep } from 'node:timers/promises';
import { Controller, Injectable, Module, Param, Post } from '@nestjs/common';
import { Lock, type LockContext, SyncGuardModule, WithLock } from 'nestjs-syncguard';

/** Stands for a table of charges, which refuses a fence that is lower than the last. */
@Injectable()
export class Charges {
  private readonly fences = new Map<string, string>();

  fenceOf(orderId: string): string | undefined {
    return this.fences.get(orderId);
  }

  record(orderId: string, fence: string): void {
    if (fence < (this.fences.get(orderId) ?? '')) throw new Error('A later holder has written already.');
    this.fences.set(orderId, fence);
  }
}

@Controller('orders')
export class OrdersController {
  constructor(private readonly charges: Charges) {}

  /** Two calls for one order: the second waits, and finds it paid. In all processes that share a Redis. */
  @Post(':id/pay')
  @WithLock('order:{0}')
  async pay(@Param('id') id: string, @Lock() lock?: LockContext) {
    const charged = !this.charges.fenceOf(id);
    if (charged) {
      await sleep(200); // your payment provider
      lock!.assertHeld(); // throws if the lock was lost meanwhile
      this.charges.record(id, lock!.fence);
    }
    return { id, charged, fence: this.charges.fenceOf(id) };
  }
}

@Module({
  imports: [SyncGuardModule.forRoot({ redis: process.env.REDIS_URL })], // without it: in the memory of this process
  controllers: [OrdersController],
  providers: [Charges],
})
export class AppModule {}
