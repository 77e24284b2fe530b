// The package as an app has it: a Nest application context, and its services.
import 'reflect-metadata';
import { Module } from '@nestjs/common';
import { NestFactory } from '@nestjs/core';
import { address } from '../harness/redis.mjs';

export const syncguard = await import(process.env.BENCH_PACKAGE ?? 'nestjs-syncguard');

/** Starts an app on Redis, or on the memory backend where `redis` is null. */
export async function openApp({ redis = address(), providers = [], ...options } = {}) {
  class AppModule {}
  const imports = [syncguard.SyncGuardModule.forRoot({ ...(redis && { redis }), ...options })];
  Module({ imports, providers })(AppModule);
  return NestFactory.createApplicationContext(AppModule, { logger: ['warn', 'error'] });
}

export const autoPipelining = () => ({ ...address(), enableAutoPipelining: true });
