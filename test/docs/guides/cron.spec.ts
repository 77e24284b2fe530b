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

  it('does not run without Redis', async () => {
    const { reports, sent } = await open();
    await on.redis.kill();
    await expect(reports[0]?.send()).rejects.toMatchObject({ name: 'LockError', code: 'ServiceUnavailable' });
    expect(sent()).toEqual([]);
  });
});
