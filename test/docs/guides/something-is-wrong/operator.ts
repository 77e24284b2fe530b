// operator.ts
import { Module } from '@nestjs/common';
import { NestFactory } from '@nestjs/core';
import * as guard from 'nestjs-syncguard';

/** Once, with the options of all features: your root module imports it as well. */
export const syncGuard = guard.SyncGuardModule.forRoot({
  redis: process.env.REDIS_URL,
  operations: true, // Processes answer who holds a lock, and hear of its release.
  limits: { login: guard.presets.login },
  budget: { limits: [{ scope: 'org', period: { every: 'day' }, limit: 1_000 }] },
});

/** Nothing else of your app, so that no job of it starts here, too. */
@Module({ imports: [syncGuard] })
export class OperatorModule {}

export async function open(): Promise<void> {
  const app = await NestFactory.createApplicationContext(OperatorModule, {
    logger: ['warn', 'error'],
  });
  const [locks, once] = [app.get(guard.LockService), app.get(guard.OnceService)];
  const [limiter, budgets] = [app.get(guard.AbuseLimiterService), app.get(guard.BudgetService)];
  Object.assign(globalThis, { app, locks, once, limiter, budgets });
}
