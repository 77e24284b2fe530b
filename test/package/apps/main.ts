// The app of a user, the same for every combination of versions and module formats: see ../package.spec.ts.
import 'reflect-metadata';
import { Controller, Module, Post } from '@nestjs/common';
import { NestFactory } from '@nestjs/core';
import { createRequire } from 'node:module';
import {
  type LockHandle,
  Lock,
  type LockContext,
  LockService,
  RateLimit,
  SyncGuardModule,
  WithBudget,
  WithLock,
} from 'nestjs-syncguard';
import { SyncGuardTesting, SyncGuardTestingModule } from 'nestjs-syncguard/testing';

const KEY = 'package:order:7';

@Controller()
class OrdersController {
  #held: LockHandle | undefined;

  constructor(private readonly locks: LockService) {}

  @Post('take')
  async take(): Promise<{ ok: boolean; fence?: string }> {
    const result = await this.locks.acquire({ key: KEY, ttlMs: 30_000 });
    if (!result.ok) return { ok: false };
    this.#held = result;
    return { ok: true, fence: result.fence };
  }

  @Post('release')
  async release(): Promise<{ ok: boolean }> {
    return (await this.#held?.release()) ?? { ok: false };
  }

  @Post('pay')
  @WithLock(KEY, { timeoutMs: 0 })
  async pay(@Lock() lock?: LockContext): Promise<{ fence: string | undefined }> {
    return { fence: lock?.fence };
  }

  @Post('log-in')
  @RateLimit({ limit: 2, windowMs: 60_000, keyBy: () => 'package:everybody' })
  logIn(): { ok: boolean } {
    return { ok: true };
  }

  @Post('ask')
  @WithBudget({ scopes: () => ['user:package'], estimate: () => 60 })
  async ask(): Promise<{ ok: boolean }> {
    return { ok: true };
  }
}

@Module({
  imports: [
    SyncGuardModule.forRoot({
      redis: process.env.REDIS_URL,
      shutdown: { drainMs: 500, heldLocks: 'release' },
      budget: { limits: [{ scope: 'user', period: { every: 'month' }, limit: 120 }] },
    }),
  ],
  controllers: [OrdersController],
})
class AppModule {}

/** The module for tests, out of its own entry: it must be of one piece with the package. */
async function tryTesting(): Promise<boolean> {
  const app = await NestFactory.createApplicationContext(
    { module: class {}, imports: [SyncGuardTestingModule.forRoot()] },
    { logger: false },
  );
  app.get(SyncGuardTesting).contend(KEY);
  const { ok } = await app.get(LockService).acquire({ key: KEY, ttlMs: 1_000 });
  await app.close();
  return !ok;
}

async function main(): Promise<void> {
  const required = createRequire(`${process.cwd()}/`)(
    'nestjs-syncguard',
  ) as typeof import('nestjs-syncguard');
  const imported = await import('nestjs-syncguard');
  const copies = new Set([required.LockService, imported.LockService, LockService]).size;
  if (!(await tryTesting())) throw new Error('nestjs-syncguard/testing did not do as it was told');

  const app = await NestFactory.create(AppModule, { logger: ['error', 'warn'] });
  app.enableShutdownHooks();
  await app.listen(0, '127.0.0.1');
  console.log(JSON.stringify({ url: await app.getUrl(), copies }));
}

void main();
