// reports.ts
import { Injectable, Module } from '@nestjs/common';
import { Cron, ScheduleModule } from '@nestjs/schedule';
import { hours, minutes, SyncGuardModule, WithLock } from 'nestjs-syncguard';

@Injectable()
export class Reports {
  readonly sent: string[] = []; // Stands for your mail server.

  @Cron('0 3 * * *', { name: 'nightly' })
  @WithLock('nightly-report', {
    onContention: 'skip', // Another instance runs it: return undefined at once.
    minHoldMs: minutes(1), // From the start: keep the lock after a short run, for late clocks.
    minHoldOnFailureMs: 0, // But a run that failed may be repeated.
    maxHoldMs: hours(1), // A run that hangs loses the lock.
  })
  async send(): Promise<string | undefined> {
    this.sent.push('report');
    return 'sent';
  }
}

@Module({
  // Once, in your root module, with the options of all features.
  imports: [ScheduleModule.forRoot(), SyncGuardModule.forRoot({ redis: process.env.REDIS_URL })],
  providers: [Reports],
})
export class ReportsModule {}
