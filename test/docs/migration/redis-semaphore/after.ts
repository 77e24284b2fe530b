// after.ts
import { Controller, Module, Param, Post } from '@nestjs/common';
import { Lock, type LockContext, SyncGuardModule, WithLock } from 'nestjs-syncguard';

@Controller('orders')
export class OrdersController {
  private readonly paid = new Set<string>(); // stands for your database

  @Post(':id/pay')
  @WithLock('order:{0}', { ttlMs: 5_000, timeoutMs: 5_000 })
  async pay(@Param('id') id: string, @Lock() lock?: LockContext) {
    const charged = !this.paid.has(id);
    await new Promise((resolve) => setTimeout(resolve, 100)); // your payment provider
    lock?.assertHeld(); // throws LockLost, and costs no I/O
    this.paid.add(id); // write `lock.fence` beside it, and refuse a lower one
    return { id, charged };
  }
}

@Module({
  imports: [SyncGuardModule.forRoot({ redis: process.env.REDIS_URL })],
  controllers: [OrdersController],
})
export class AppModule {}
