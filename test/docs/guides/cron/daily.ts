// daily.ts
import { Injectable } from '@nestjs/common';
import { Cron } from '@nestjs/schedule';
import { days, minutes, Once } from 'nestjs-syncguard';

/** The date somewhere, such as 2026-10-25. */
export const dayIn = (timeZone: string, now = Date.now()) =>
  new Intl.DateTimeFormat('sv-SE', { timeZone }).format(now);

@Injectable()
export class DailyReports {
  readonly sent: string[] = [];
  @Cron('30 2 * * *', { timeZone: 'Europe/Berlin' })
  @Once({ key: () => `report:${dayIn('Europe/Berlin')}`, keepMs: days(2), waitMs: minutes(10) })
  async send(): Promise<number> {
    return this.sent.push('report');
  }
}
