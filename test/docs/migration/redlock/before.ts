// before.ts
import { Controller, Module, type OnApplicationShutdown, Param, Post } from '@nestjs/common';
import { Redis } from 'ioredis';
import Redlock from 'redlock';

@Controller('orders')
export class OrdersController implements OnApplicationShutdown {
  private readonly redlock = new Redlock([new Redis(process.env.REDIS_URL!)], { retryCount: 25 });
  private readonly paid = new Set<string>(); // stands for your database

  @Post(':id/pay')
  pay(@Param('id') id: string) {
    return this.redlock.using([`order:${id}`], 5_000, async (signal) => {
      const charged = !this.paid.has(id);
      await new Promise((resolve) => setTimeout(resolve, 100)); // your payment provider
      if (signal.aborted) throw signal.error!;
      this.paid.add(id);
      return { id, charged };
    });
  }

  async onApplicationShutdown() {
    await this.redlock.quit();
  }
}

@Module({ controllers: [OrdersController] })
export class AppModule {}
