import { Controller, Get, Injectable, Module } from '@nestjs/common';
import { Cron, ScheduleModule } from '@nestjs/schedule';
import { hours, seconds, SyncGuardModule, WithLock } from 'nestjs-syncguard';

@Injectable()
export class Reports {
  runs = 0;

  /**
   * Every process is woken, and one runs. `minHoldMs` keeps the lock for those whose clocks are late, and
   * `maxHoldMs` ends one that hangs.
   */
  @Cron('*/30 * * * * *', { name: 'report' })
  @WithLock('report', {
    onContention: 'skip',
    minHoldMs: seconds(10),
    minHoldOnFailureMs: 0,
    maxHoldMs: hours(1),
  })
  async report(): Promise<void> {
    this.runs++;
  }
}

@Controller()
export class RunsController {
  constructor(private readonly reports: Reports) {}

  @Get()
  runs() {
    return { runs: this.reports.runs }; // of this process
  }
}

@Module({
  imports: [
    ScheduleModule.forRoot(),
    SyncGuardModule.forRoot({ redis: process.env.REDIS_URL }), // without it there is one process anyway
  ],
  controllers: [RunsController],
  providers: [Reports],
})
export class AppModule {}
