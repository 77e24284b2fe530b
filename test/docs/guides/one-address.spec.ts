import type { INestApplication } from '@nestjs/common';
import { listen } from '../../support/adapters.js';
import { closeApp } from '../../support/close-app.js';
import { freshRedis } from '../../support/redis.js';

let app: INestApplication;
beforeEach(async () => {
  process.env.REDIS_URL = (await freshRedis()).url;
});
afterEach(() => closeApp(app));
afterAll(() => delete process.env.REDIS_URL);

it('counts the people of one address each for themselves', async () => {
  const { ArticlesModule } = await import('./one-address/articles.js');
  const started = await listen('express', { imports: [ArticlesModule] });
  ({ app } = started);
  const statuses = async (count: number, person?: string): Promise<number[]> => {
    const all: number[] = [];
    const headers: Record<string, string> = person === undefined ? {} : { authorization: person };
    while (all.length < count) all.push((await fetch(`${started.url}/articles`, { headers })).status);
    return all;
  };
  for (const person of ['ann', 'bob', 'cid', undefined])
    expect(await statuses(21, person)).toEqual([...Array<number>(20).fill(200), 429]);
});
