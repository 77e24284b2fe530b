import { Controller, Module, Param, Post } from '@nestjs/common';
import { Lock, type LockContext, SyncGuardModule, WithLock } from 'nestjs-syncguard';

@Controller('orders')
export class OrdersController {
  private readonly paid = new Set<string>(); // stands for your database

  @Post(':id/pay')
  @WithLock('order:{0}') // one call an order at a time; {0} is the first argument
  async pay(@Param('id') id: string, @Lock() lock?: LockContext) {
    const charged = !this.paid.has(id);
    await new Promise((resolve) => setTimeout(resolve, 300)); // your payment provider
    this.paid.add(id);
    return { id, charged, fence: lock?.fence };
  }
}

@Module({
  imports: [SyncGuardModule.forRoot({ redis: process.env.REDIS_URL })], // no URL: in memory, for one process
  controllers: [OrdersController],
})
export class AppModule {}
