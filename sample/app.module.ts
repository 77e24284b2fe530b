import { type DynamicModule, Module } from '@nestjs/common';
import { SyncGuardModule } from 'nestjs-syncguard';
import { HealthController } from './health/health.controller.js';
import { OrdersModule } from './orders/orders.module.js';
import { PageController } from './page/page.controller.js';

@Module({})
export class AppModule {
  static with({ redisUrl }: { redisUrl?: string }): DynamicModule {
    return {
      module: AppModule,
      imports: [SyncGuardModule.forRoot({ redis: redisUrl }), OrdersModule.with({ redisUrl })],
      controllers: [PageController, HealthController],
    };
  }
}
