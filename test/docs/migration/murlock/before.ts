// before.ts
import { Controller, Injectable, Module, Param, Post } from '@nestjs/common';
import { MurLock, MurLockModule } from 'murlock';

@Injectable()
export class Payments {
  private readonly paid = new Set<string>(); // stands for your database

  @MurLock(5_000, 'id')
  async pay(id: string) {
    const charged = !this.paid.has(id);
    await new Promise((resolve) => setTimeout(resolve, 100)); // your payment provider
    this.paid.add(id);
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
  imports: [
    MurLockModule.forRoot({
      redisOptions: { url: process.env.REDIS_URL },
      wait: 100,
      maxAttempts: 50,
      logLevel: 'error',
    }),
  ],
  controllers: [OrdersController],
  providers: [Payments],
})
export class AppModule {}
