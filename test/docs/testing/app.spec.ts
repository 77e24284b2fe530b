// app.spec.ts
import { Module } from '@nestjs/common';
import { Test } from '@nestjs/testing';
import { LockService, SyncGuardModule } from 'nestjs-syncguard';
import { SyncGuardTesting, SyncGuardTestingModule } from 'nestjs-syncguard/testing';

// In app.module.ts: a constant, exported so that tests can name it.
const syncGuard = SyncGuardModule.forRoot({ redis: 'redis://redis.example:6379', keyPrefix: 'shop' });

@Module({ imports: [syncGuard] })
class AppModule {}

it('runs the whole app on memory', async () => {
  const module = await Test.createTestingModule({ imports: [AppModule] })
    .overrideModule(syncGuard)
    .useModule(SyncGuardTestingModule.forRoot({ keyPrefix: 'shop' }))
    .compile();
  const app = await module.createNestApplication().init();
  expect(app.get(LockService).capabilities.backend).toBe('memory');

  app.get(SyncGuardTesting).contend('report');
  expect(await app.get(LockService).acquire({ key: 'report', ttlMs: 1_000 })).toEqual({
    ok: false,
    reason: 'locked',
  });
  await app.close();
});
