import { type DynamicModule, Module } from '@nestjs/common';
import { APP_GUARD } from '@nestjs/core';
import { RateLimitGuard, seconds, SyncGuardModule } from 'nestjs-syncguard';
import { aiLimits } from './ai/ai.budget.js';
import { AiModule } from './ai/ai.module.js';
import { HealthController } from './health/health.controller.js';
import { LoginModule } from './login/login.module.js';
import { OrdersModule } from './orders/orders.module.js';
import { PageController } from './page/page.controller.js';
import { SecretsModule } from './secrets/secrets.module.js';

@Module({})
export class AppModule {
  static with({ redisUrl, secretsKey }: { redisUrl?: string; secretsKey?: string }): DynamicModule {
    return {
      module: AppModule,
      imports: [
        SyncGuardModule.forRoot({
          redis: redisUrl,
          limits: { default: { limit: 300, windowMs: seconds(10) } },
          budget: { limits: aiLimits },
        }),
        AiModule,
        LoginModule,
        OrdersModule.with({ redisUrl }),
        SecretsModule.with({ redisUrl, secretsKey }),
      ],
      controllers: [PageController, HealthController],
      providers: [{ provide: APP_GUARD, useClass: RateLimitGuard }],
    };
  }
}
