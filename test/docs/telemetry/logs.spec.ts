// logs.spec.ts
import { Test } from '@nestjs/testing';
import { LockService, seconds, type SyncGuardEvent, SyncGuardModule } from 'nestjs-syncguard';

it('logs failures, with keys for locks and hashes for everything else', async () => {
  const lines: SyncGuardEvent[] = [];
  const app = await Test.createTestingModule({
    imports: [
      SyncGuardModule.forRoot({
        telemetry: {
          onEvent: (event) => {
            if (event.result === 'fail') lines.push(event); // in an app: your logger
          },
          hashSecret: 'the same in all processes', // in an app: process.env.TELEMETRY_SECRET
          includeRaw: ({ feature, result }) => feature === 'lock' && result === 'fail',
        },
      }),
    ],
  }).compile();

  const locks = app.get(LockService);
  const handle = await locks.acquire({ key: 'report:7', ttlMs: seconds(30) });
  const waiting = locks.lock(() => 'never', { key: 'report:7', timeoutMs: 0 });
  await expect(waiting).rejects.toMatchObject({ code: 'AcquisitionTimeout' });
  expect(lines).toMatchObject([
    { type: 'acquire', reason: 'locked', key: 'report:7' },
    { type: 'lock', reason: 'timeout', key: 'report:7', code: 'AcquisitionTimeout' },
  ]);
  for (const { keyHash } of lines) expect(keyHash).toMatch(/^[0-9a-f]{64}$/);
  if (handle.ok) await handle.release();
  await app.close();
});
