// after.ts
import { Controller, Injectable, Module, Param, Post } from '@nestjs/common';
import { Lock, type LockContext, SyncGuardModule, WithLock } from 'nestjs-syncguard';

@Injectable()
export class Payments {
  private readonly paid = new Set<string>(); // stands for your database

  @WithLock('Payments:pay:{0}') // {0} is the first argument; any text will do in front of it
  async pay(id: string, @Lock() lock?: LockContext) {
    const charged = !this.paid.has(id);
    await new Promise((resolve) => setTimeout(resolve, 100)); // your payment provider
    lock?.assertHeld();
    this.paid.add(id); // write `lock.fence` beside it, and refuse a lower one
    return { id, charged };
  }
}

@Controller('orders')
export class OrdersController {
  constructor(private readonly payments: Payments) {}

  @Post(':id/pay')
  pay(@Param('id') id: string) {
    return this.payments.pay(id);
  }
}

@Module({
  imports: [SyncGuardModule.forRoot({ redis: process.env.REDIS_URL, lock: { ttlMs: 5_000 } })],
  controllers: [OrdersController],
  providers: [Payments],
})
export class AppModule {}
