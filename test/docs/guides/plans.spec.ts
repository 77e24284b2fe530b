import { Controller, Get, Module, UseGuards } from '@nestjs/common';
import { minutes, RateLimit, SyncGuardModule } from 'nestjs-syncguard';
import { ask, stage } from './instances.js';

describe('docs/guides/plans.md', () => {
  const on = stage();

  it('limits each user by the plan, on two instances together', async () => {
    const { ReportsModule } = await import('./plans/reports.js');
    const urls = [(await on.start(ReportsModule)).url, (await on.start(ReportsModule)).url];
    const call = async (authorization: string, times: number) => {
      const answers = [];
      for (let i = 0; i < times; i++)
        answers.push(await ask(`${urls[i % 2]}/reports`, { headers: { authorization } }));
      return answers;
    };
    const statuses = async (...args: Parameters<typeof call>) =>
      (await call(...args)).map(({ status }) => status);

    const [first] = await call('ann free', 1);
    expect(first?.headers.get('ratelimit')).toContain('r=2');
    expect(first?.headers.get('ratelimit-policy')).toContain('q=3');
    expect(await statuses('ann free', 3)).toEqual([200, 200, 429]);
    expect(await statuses('bob free', 1)).toEqual([200]);
    expect(await statuses('ann pro', 8)).toEqual([...Array<number>(7).fill(200), 429]); // The plan was changed.
    expect(await statuses('eve unlimited', 20)).toEqual(Array(20).fill(200));
    expect(await statuses('', 2)).toEqual([403, 403]);
  });

  it('counts by address what the guard refuses, with the limit of the edges beside it', async () => {
    const { AuthGuard } = await import('./plans/reports.js');
    @Controller('reports')
    @UseGuards(AuthGuard)
    class Reports {
      @Get()
      @RateLimit('plan')
      list(): string[] {
        return [];
      }
    }
    const refused = { keyBy: 'ip', count: 'failure' as const, limit: 20, windowMs: minutes(1) };
    const limits = { plan: [{ keyBy: 'user', limit: 3, windowMs: minutes(1) }, refused] };
    @Module({ imports: [SyncGuardModule.forRoot({ limits })], controllers: [Reports] })
    class App {}
    const { url } = await on.start(App);
    const statuses: number[] = [];
    for (let i = 0; i < 22; i++) statuses.push((await ask(`${url}/reports`)).status);
    expect(statuses.slice(0, 20)).toEqual(Array(20).fill(403));
    expect(statuses.slice(20)).toEqual([429, 429]);
  });
});
