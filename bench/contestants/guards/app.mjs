// node app.mjs express|fastify VARIANT: one Nest app with one route and at most one guard.
import 'reflect-metadata';
import { Controller, Get, Module } from '@nestjs/common';
import { APP_GUARD, NestFactory } from '@nestjs/core';
import { ThrottlerGuard, ThrottlerModule } from '@nestjs/throttler';
import { ThrottlerStorageRedisService } from '@nest-lab/throttler-storage-redis';
import { address, connect } from '../../harness/redis.mjs';

const [platform, variant] = process.argv.slice(2);
const MINUTE = 60_000;

class AppController {
  hello() {
    return { ok: true };
  }
}
const hello = Object.getOwnPropertyDescriptor(AppController.prototype, 'hello');
Get('hello')(AppController.prototype, 'hello', hello);
Controller()(AppController);

const clientOf = (request) => request.headers['x-client'] ?? request.ip;
const throttler = (storage) => ({
  imports: [
    ThrottlerModule.forRoot({ throttlers: [{ ttl: MINUTE, limit: 1e9 }], getTracker: clientOf, storage }),
  ],
  providers: [{ provide: APP_GUARD, useClass: ThrottlerGuard }],
});
async function ours(redis) {
  const { RateLimitGuard, SyncGuardModule } = await import(process.env.BENCH_PACKAGE ?? 'nestjs-syncguard');
  // An exact sliding log. 1,000 clients cannot reach 1,000 a minute each in the seconds of a round.
  const limits = { default: { keyBy: 'headers.x-client', limit: 1000, windowMs: MINUTE } };
  return {
    // The three headers that throttler sends, too.
    imports: [SyncGuardModule.forRoot({ redis, limits, limit: { headers: 'legacy' } })],
    providers: [{ provide: APP_GUARD, useClass: RateLimitGuard }],
  };
}

const VARIANTS = {
  none: () => ({ imports: [], providers: [] }),
  'throttler-memory': () => throttler(),
  'throttler-redis': () => throttler(new ThrottlerStorageRedisService(connect())),
  'ours-memory': () => ours(),
  'ours-redis': () => ours(address()),
};

class AppModule {}
Module({ controllers: [AppController], ...(await VARIANTS[variant]()) })(AppModule);
const options = { logger: ['warn', 'error'] };
const app =
  platform === 'fastify'
    ? await NestFactory.create(
        AppModule,
        new (await import('@nestjs/platform-fastify')).FastifyAdapter(),
        options,
      )
    : await NestFactory.create(AppModule, options);
await app.listen(0, '127.0.0.1');
process.on('message', () => process.send({ cpu: process.cpuUsage() }));
process.on('disconnect', () => process.exit());
process.send({ port: app.getHttpServer().address().port });
