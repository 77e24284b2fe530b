import { Controller, Module, Param, Post } from '@nestjs/common';
import { NestFactory } from '@nestjs/core';
import { RateLimit, seconds, SyncGuardModule, WithLock } from 'nestjs-syncguard';

@Controller('orders')
class OrdersController {
  @Post(':id/pay')
  @RateLimit({ limit: 3, windowMs: seconds(10) }) // the 4th call in 10 s gets a 429
  @WithLock('order:{0}') // one call an order at a time, in all processes
  async pay(@Param('id') id: string) {
    return { paid: id };
  }
}

@Module({
  imports: [SyncGuardModule.forRoot({ redis: process.env.REDIS_URL })], // without it: in this process
  controllers: [OrdersController],
})
class AppModule {}

void NestFactory.create(AppModule).then((app) => app.enableShutdownHooks().listen(3000));
