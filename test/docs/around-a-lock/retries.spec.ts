// retries.spec.ts
import { Injectable } from '@nestjs/common';
import { Test } from '@nestjs/testing';
import { minutes, SyncGuardModule, WithLock } from 'nestjs-syncguard';

@Injectable()
class Reports {
  runs = 0;

  // Every minute on each machine. The clocks of the machines differ by seconds, so the lock outlives the job.
  @WithLock('nightly', { onContention: 'skip', minHoldMs: minutes(0.5), minHoldOnFailureMs: 0 })
  async send(): Promise<string | undefined> {
    if (++this.runs === 1) throw new Error('the mail server is away');
    return 'sent';
  }
}

it('a retry runs after a failure, and is skipped after a success', async () => {
  const module = await Test.createTestingModule({
    imports: [SyncGuardModule.forRoot()],
    providers: [Reports],
  }).compile();
  const reports = module.get(Reports);
  await expect(reports.send()).rejects.toThrow('the mail server is away');
  expect(await reports.send()).toBe('sent');
  expect(await reports.send()).toBeUndefined(); // Skipped: the minimum hold is not over.
  expect(reports.runs).toBe(2);
  await module.close();
});
