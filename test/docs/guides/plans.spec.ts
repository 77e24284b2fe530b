import { Controller, Get, Module, UseGuards } from '@nestjs/common';
import { minutes, RateLimit, SyncGuardModule } from 'nestjs-syncguard';
import { eventually } from '../../support/eventually.js';
import { ask, stage } from './instances.js';

describe('docs/guides/plans.md', () => {
  const on = stage();

  it('limits each user by the plan, on two instances together', async () => {
    const { ReportsModule } = await import('./plans/reports.js');
    const urls = [(await on.start(ReportsModule)).url, (await on.start(ReportsModule)).url];
    const statuses = async (authorization: string, times: number) => {
      const answers = [];
      for (let i = 0; i < times; i++)
        answers.push(await ask(`${urls[i % 2]}/reports`, { headers: { authorization } }));
      return answers.map(({ status }) => status);
    };

    expect(await statuses('ann free', 4)).toEqual([200, 200, 200, 429]);
    expect(await statuses('bob free', 1)).toEqual([200]);
    expect(await statuses('ann pro', 8)).toEqual([...Array<number>(7).fill(200), 429]); // The plan was changed.
    expect(await statuses('eve unlimited', 20)).toEqual(Array(20).fill(200));
    expect(await statuses('', 2)).toEqual([403, 403]);
  });

  it('counts by address what the guard refuses, and tells the client, with the options of the edges', async () => {
    const { AuthGuard } = await import('./plans/reports.js');
    @Controller('reports')
    @UseGuards(AuthGuard)
    class Reports {
      readonly waiting: (() => void)[] = [];

      @Get()
      @RateLimit('plan')
      list(): string[] {
        return [];
      }

      @Get('slow')
      @RateLimit('plan')
      async slow(): Promise<void> {
        await new Promise<void>((resolve) => this.waiting.push(resolve));
      }
    }
    const refused = {
      ...({ keyBy: 'ip', count: 'failure', judgedBy: 'guards' } as const),
      ...{ limit: 20, windowMs: minutes(1) },
    };
    const limits = { plan: [{ keyBy: 'user', limit: 3, windowMs: minutes(1) }, refused] };
    @Module({
      imports: [SyncGuardModule.forRoot({ limits, limit: { headers: 'draft-10' } })],
      controllers: [Reports],
    })
    class App {}
    const { app, url } = await on.start(App);
    const { headers } = await ask(`${url}/reports`, { headers: { authorization: 'ann free' } });
    expect(headers.get('ratelimit')).toContain('r=2');
    expect(headers.get('ratelimit-policy')).toContain('q=3');

    const { waiting } = app.get(Reports);
    const customers = [];
    for (let i = 0; i < 40; i++) {
      customers.push(ask(`${url}/reports/slow`, { headers: { authorization: `c${i} free` } }));
      await eventually(() => expect(waiting).toHaveLength(i + 1));
    }
    for (const answer of waiting) answer();
    expect((await Promise.all(customers)).map(({ status }) => status)).toEqual(Array(40).fill(200));

    const statuses: number[] = [];
    for (let i = 0; i < 22; i++) statuses.push((await ask(`${url}/reports`)).status);
    expect(statuses.slice(0, 20)).toEqual(Array(20).fill(403));
    expect(statuses.slice(20)).toEqual([429, 429]);
  });
});
