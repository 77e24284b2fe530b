// before.ts
import { Controller, Module, type OnApplicationShutdown, Param, Post } from '@nestjs/common';
import { Redis } from 'ioredis';
import { Mutex } from 'redis-semaphore';

@Controller('orders')
export class OrdersController implements OnApplicationShutdown {
  private readonly redis = new Redis(process.env.REDIS_URL!);
  private readonly paid = new Set<string>(); // stands for your database

  @Post(':id/pay')
  async pay(@Param('id') id: string) {
    const mutex = new Mutex(this.redis, `order:${id}`, { lockTimeout: 5_000, acquireTimeout: 5_000 });
    await mutex.acquire();
    try {
      const charged = !this.paid.has(id);
      await new Promise((resolve) => setTimeout(resolve, 100)); // your payment provider
      if (!mutex.isAcquired) throw new Error('The lock was lost.');
      this.paid.add(id);
      return { id, charged };
    } finally {
      await mutex.release();
    }
  }

  onApplicationShutdown() {
    this.redis.disconnect();
  }
}

@Module({ controllers: [OrdersController] })
export class AppModule {}
