import { Logger } from '@nestjs/common';
import { Test } from '@nestjs/testing';
import { AbuseLimiterService, BudgetService, FenceGuard, LockService } from 'nestjs-syncguard';
import { SyncGuardTesting, SyncGuardTestingModule } from 'nestjs-syncguard/testing';
import { eventually } from '../../support/eventually.js';
import { onEvent, operations } from './logs-and-metrics/observed.js';

it('docs/guides/logs-and-metrics.md: counts every operation, and logs what somebody should read', async () => {
  const logged: string[] = [];
  const warn = jest
    .spyOn(Logger.prototype, 'warn')
    .mockImplementation((line: string) => void logged.push(line));
  const limits = [{ scope: 'org', period: 'lifetime' as const, limit: 100, thresholds: [80] }];
  const module = await Test.createTestingModule({
    imports: [SyncGuardTestingModule.forRoot({ telemetry: { onEvent }, budget: { limits } })],
  }).compile();
  const testing = module.get(SyncGuardTesting);
  const locks = module.get(LockService);

  testing.contend('order:7');
  const busy = locks.lock(() => 1, { key: 'order:7', timeoutMs: 0 });
  await expect(busy).rejects.toMatchObject({ code: 'AcquisitionTimeout' });
  expect(logged).toEqual([]); // Contention is normal.
  testing.restore();

  const lost = locks.lock(() => testing.lose('order:7'), { key: 'order:7' });
  await expect(lost).rejects.toMatchObject({ code: 'LockLost' });
  const fences = module.get(FenceGuard);
  for (const fence of ['000000000000008', '000000000000007'])
    await fences.apply({ resource: 'order:7', fence, lockId: 'A'.repeat(22) });
  const policy = { name: 'p', limit: 1, windowMs: 60_000 };
  for (let i = 0; i < 2; i++) await module.get(AbuseLimiterService).check('ann', policy);
  const budgets = module.get(BudgetService);
  await budgets.charge({ scopes: ['org'], amount: 85, id: 'a' });
  await budgets.reserve({ scopes: ['org'], amount: 5, ttlMs: 1_000 });
  testing.clock.advance(60_000);
  await budgets.reap();
  testing.makeUnreachable();
  await expect(locks.acquire({ key: 'order:8', ttlMs: 1_000 })).rejects.toMatchObject({
    code: 'ServiceUnavailable',
  });
  testing.restore();
  await module.close();

  const names = [
    ...[
      'lock acquire fail locked',
      'lock fence fail overtaken',
      'lock lock fail timeout',
      'lock lock fail lost',
      'limit check fail temp',
    ],
    ...['budget threshold ok', 'budget expired fail', 'lock acquire fail ServiceUnavailable'],
  ];
  await eventually(() => {
    for (const name of names)
      expect([name, [...operations.keys()].some((each) => each.startsWith(name))]).toEqual([name, true]);
  });
  const alarms = logged.map((line) => line.replace(/ [0-9a-f]{24}$/, ''));
  expect(alarms.filter((line) => line.startsWith('lock lock fail lost'))).toHaveLength(1);
  expect(alarms).toEqual(expect.arrayContaining([expect.stringMatching(/^budget threshold ok/)]));
  expect(alarms).toEqual(expect.arrayContaining([expect.stringMatching(/^budget expired fail/)]));
  expect(alarms).toContain('lock fence fail overtaken');
  expect(alarms).toEqual(expect.arrayContaining(['lock acquire fail ServiceUnavailable']));
  expect(logged.join()).not.toContain('order:');
  warn.mockRestore();
});
