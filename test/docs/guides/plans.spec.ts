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
});
