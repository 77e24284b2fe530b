// after.ts
import { Controller, Module, Param, Post } from '@nestjs/common';
import { LockService, SyncGuardModule } from 'nestjs-syncguard';

@Controller('orders')
export class OrdersController {
  private readonly paid = new Set<string>(); // stands for your database

  constructor(private readonly locks: LockService) {}

  @Post(':id/pay')
  pay(@Param('id') id: string) {
    return this.locks.lock(
      async (lock) => {
        const charged = !this.paid.has(id);
        await new Promise((resolve) => setTimeout(resolve, 100)); // your payment provider
        lock.assertHeld(); // no I/O; throws LockLost where `signal.error` was thrown
        this.paid.add(id); // write `lock.fence` beside it, and refuse a lower one
        return { id, charged };
      },
      { key: `order:${id}`, ttlMs: 5_000 },
    );
  }
}

@Module({
  imports: [SyncGuardModule.forRoot({ redis: process.env.REDIS_URL })],
  controllers: [OrdersController],
})
export class AppModule {}
