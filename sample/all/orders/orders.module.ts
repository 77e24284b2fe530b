import { type DynamicModule, Module } from '@nestjs/common';
import { Ledger } from './ledger.js';
import { MemoryLedger } from './memory-ledger.js';
import { OrdersController } from './orders.controller.js';
import { OrdersService } from './orders.service.js';
import { RedisLedger } from './redis-ledger.js';

@Module({ controllers: [OrdersController], providers: [OrdersService] })
export class OrdersModule {
  static with({ redisUrl }: { redisUrl?: string }): DynamicModule {
    const useFactory = (): Ledger => (redisUrl ? new RedisLedger(redisUrl) : new MemoryLedger());
    return { module: OrdersModule, providers: [{ provide: Ledger, useFactory }] };
  }
}
