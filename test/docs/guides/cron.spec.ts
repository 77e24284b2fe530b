import { Injectable, Module } from '@nestjs/common';
import { SchedulerRegistry } from '@nestjs/schedule';
import { seconds, SyncGuardModule, WithLock } from 'nestjs-syncguard';
import { createRedisBackend } from 'nestjs-syncguard/core';
import { eventually } from '../../support/eventually.js';
import { stage } from './instances.js';

describe('docs/guides/cron.md', () => {
  const on = stage();
  const open = async () => {
    const { ReportsModule, Reports } = await import('./cron/reports.js');
    const apps = [(await on.start(ReportsModule)).app, (await on.start(ReportsModule)).app];
    const reports = apps.map((app) => app.get(Reports));
    return {
      apps,
      reports,
      sent: () => reports.flatMap(({ sent }) => sent),
      fire: () =>
        Promise.all(apps.map((app) => app.get(SchedulerRegistry).getCronJob('nightly').fireOnTick())),
    };
  };

  it('runs on one instance, and again when its minute is over', async () => {
    const { fire, sent, reports } = await open();
    await fire();
    await eventually(() => expect(sent()).toEqual(['report']));
    expect(await reports[0]?.send()).toBeUndefined(); // A clock that is late: the lock outlives the run.
    expect(await reports[1]?.send()).toBeUndefined();

    on.redis.clock.advance(60_000);
    await fire();
    await eventually(() => expect(sent()).toEqual(['report', 'report']));
  });

  it('may be repeated at once after a failure', async () => {
    const { reports, sent } = await open();
    Object.defineProperty(reports[0], 'sent', {
      get: () => {
        throw new Error('the mail server is away');
      },
      configurable: true,
    });
    await expect(reports[0]?.send()).rejects.toThrow('the mail server is away');
    Object.defineProperty(reports[0], 'sent', { value: [] });
    expect(await reports[1]?.send()).toBe('sent');
    expect(sent()).toEqual(['report']);
  });

  it('a job of every few seconds whose runner died runs again after its own `ttlMs`', async () => {
    let runs = 0;
    @Injectable()
    class Ticks {
      @WithLock('tick', { onContention: 'skip', ttlMs: seconds(5) })
      async tick(): Promise<number | undefined> {
        return ++runs;
      }
    }
    @Module({
      imports: [SyncGuardModule.forRoot({ redis: process.env.REDIS_URL as string })],
      providers: [Ticks],
    })
    class App {}
    const ticks = (await on.start(App)).app.get(Ticks);
    const died = await createRedisBackend(on.redis.client()).acquire({ key: 'tick', ttlMs: seconds(5) });
    expect(died.ok).toBe(true);
    expect(await ticks.tick()).toBeUndefined();
    on.redis.clock.advance(5_000);
    expect(await ticks.tick()).toBe(1);
  });

  it('runs once a calendar day, also where 02:30 comes twice, and on the next one again', async () => {
    const { DailyReports, dayIn } = await import('./cron/daily.js');
    // The clocks of Berlin went back at 01:00 UTC, and both instants are 02:30 there.
    const twice = [Date.UTC(2026, 9, 25, 0, 30), Date.UTC(2026, 9, 25, 1, 30)];
    expect(twice.map((now) => dayIn('Europe/Berlin', now))).toEqual(['2026-10-25', '2026-10-25']);
    expect(dayIn('Europe/Berlin', Date.UTC(2026, 9, 25, 23, 0))).toBe('2026-10-26');

    @Module({
      imports: [SyncGuardModule.forRoot({ redis: process.env.REDIS_URL as string })],
      providers: [DailyReports],
    })
    class App {}
    const [one, other] = [await on.start(App), await on.start(App)].map(({ app }) => app.get(DailyReports));
    const reports = [one, other] as InstanceType<typeof DailyReports>[];
    const sent = (): string[] => reports.flatMap((each) => each.sent);
    let fails = 1;
    for (const { sent: list } of reports)
      list.push = (...items) => {
        if (fails-- > 0) throw new Error('the mail server is away');
        return Array.prototype.push.apply(list, items);
      };
    const send = (): Promise<unknown[]> =>
      Promise.all(reports.map((each) => each.send().catch((error: Error) => error.message)));
    expect((await send()).sort()).toEqual([1, 'the mail server is away']);
    expect([await send(), sent()]).toEqual([[1, 1], ['report']]);

    const now = Date.now.bind(Date);
    const tomorrow = jest.spyOn(Date, 'now').mockImplementation(() => now() + 86_400_000);
    const [first, second] = await send();
    expect(first).toBe(second);
    expect(sent()).toEqual(['report', 'report']);
    tomorrow.mockRestore();
  });

  it('does not run without Redis', async () => {
    const { reports, sent } = await open();
    await on.redis.kill();
    await expect(reports[0]?.send()).rejects.toMatchObject({ name: 'LockError', code: 'ServiceUnavailable' });
    expect(sent()).toEqual([]);
  });
});
