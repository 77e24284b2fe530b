import { type DynamicModule, Module } from '@nestjs/common';
import { SyncGuardModule } from 'nestjs-syncguard';
import { HealthController } from './health/health.controller.js';
import { OrdersModule } from './orders/orders.module.js';
import { PageController } from './page/page.controller.js';
import { SecretsModule } from './secrets/secrets.module.js';

@Module({})
export class AppModule {
  static with({ redisUrl, secretsKey }: { redisUrl?: string; secretsKey?: string }): DynamicModule {
    return {
      module: AppModule,
      imports: [
        SyncGuardModule.forRoot({ redis: redisUrl }),
        OrdersModule.with({ redisUrl }),
        SecretsModule.with({ redisUrl, secretsKey }),
      ],
      controllers: [PageController, HealthController],
    };
  }
}
