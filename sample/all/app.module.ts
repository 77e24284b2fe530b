import { type DynamicModule, Module } from '@nestjs/common';
import { APP_GUARD } from '@nestjs/core';
import { minutes, RateLimitGuard, seconds, SyncGuardModule } from 'nestjs-syncguard';
import { aiLimits } from './ai/ai.budget.js';
import { AiModule } from './ai/ai.module.js';
import { HealthController } from './health/health.controller.js';
import { LoginModule } from './login/login.module.js';
import { OperationsModule } from './operations/operations.module.js';
import { OrdersModule } from './orders/orders.module.js';
import { PageController } from './page/page.controller.js';
import { SecretsModule } from './secrets/secrets.module.js';

export interface AppOptions {
  /** The address of Redis. Default: none, everything stays in this process. */
  redisUrl?: string;
  /** The key that encrypts secrets: 32 bytes in base64. */
  secretsKey?: string;
  /** Opens what operators see and do: at least 12 characters. */
  operatorPassword: string;
}

@Module({})
export class AppModule {
  static with({ redisUrl, secretsKey, operatorPassword }: AppOptions): DynamicModule {
    return {
      module: AppModule,
      imports: [
        SyncGuardModule.forRoot({
          redis: redisUrl,
          limits: {
            default: { limit: 300, windowMs: seconds(10) },
            operator: { limit: 10, windowMs: minutes(1), count: 'failure' },
          },
          operations: true, // The processes ask each other who holds a lock.
          budget: { limits: aiLimits },
        }),
        AiModule,
        LoginModule,
        OperationsModule.with({ password: operatorPassword }),
        OrdersModule.with({ redisUrl }),
        SecretsModule.with({ redisUrl, secretsKey }),
      ],
      controllers: [PageController, HealthController],
      providers: [{ provide: APP_GUARD, useClass: RateLimitGuard }],
    };
  }
}
