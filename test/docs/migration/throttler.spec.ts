import type { INestApplication, Type } from '@nestjs/common';
import { SyncGuardModule } from 'nestjs-syncguard';
import { listen } from '../../support/adapters.js';
import { closeApp } from '../../support/close-app.js';
import { freshRedis } from '../../support/redis.js';
import { ReportsController } from './throttler/class-override.js';
import { SlowDownModule } from './throttler/custom-text.js';

let app: INestApplication;
let url: string;

beforeEach(async () => {
  process.env.REDIS_URL = (await freshRedis()).url;
});
afterEach(() => closeApp(app));
afterAll(() => delete process.env.REDIS_URL);

async function statuses(
  path: string,
  count: number,
  headers: Record<string, string> = {},
): Promise<number[]> {
  const all: number[] = [];
  while (all.length < count) all.push((await fetch(`${url}/${path}`, { headers })).status);
  return all;
}

it.each<[string, () => Promise<{ AppModule: Type }>]>([
  ['before', () => import('./throttler/before.js')],
  ['after', () => import('./throttler/after.js')],
])('the app limits the same calls, %s', async (_name, load) => {
  const { AppModule } = await load();
  ({ app, url } = await listen('express', { imports: [AppModule] }));
  expect(await statuses('items', 4)).toEqual([200, 200, 200, 429]);
  expect(await statuses('items/search', 2)).toEqual([200, 429]);
  expect(await statuses('items/export', 6)).toEqual([200, 200, 200, 200, 200, 429]);
  expect(await statuses('items/feed', 7)).toEqual([200, 200, 200, 200, 200, 200, 429]);
  expect(new Set(await statuses('items/health', 8))).toEqual(new Set([200]));
  expect(await statuses('items', 1)).toEqual([429]);
  for (const key of ['a', 'b'])
    expect(await statuses('items', 4, { 'x-api-key': key })).toEqual([200, 200, 200, 429]);
});

it.each([true, false])('the guard of throttler counts by one line, with Redis: %s', async (hasRedis) => {
  if (!hasRedis) delete process.env.REDIS_URL;
  const { AppModule } = await import('./throttler/one-line.js');
  ({ app, url } = await listen('express', { imports: [AppModule] }));
  expect(await statuses('items', 4)).toEqual([200, 200, 200, 429]);
  expect(await statuses('items/search', 2)).toEqual([200, 429]);
});

it.each(['express', 'fastify'] as const)(
  'a limit of a class and one of a method add up, on %s',
  async (adapter) => {
    ({ app, url } = await listen(adapter, {
      imports: [SyncGuardModule.forRoot()],
      controllers: [ReportsController],
    }));
    expect(await statuses('reports/both', 2)).toEqual([200, 429]);
    expect(await statuses('reports/own', 5)).toEqual([200, 200, 200, 200, 429]);
  },
);

it.each(['express', 'fastify'] as const)('a 429 has a text of the app, on %s', async (adapter) => {
  ({ app, url } = await listen(adapter, {
    imports: [SyncGuardModule.forRoot(), SlowDownModule],
    controllers: [ReportsController],
  }));
  expect(await statuses('reports/both', 1)).toEqual([200]);
  const denied = await fetch(`${url}/reports/both`);
  const secs = denied.headers.get('retry-after');
  expect(Number(secs)).toBeGreaterThan(0);
  expect(await denied.json()).toEqual({ statusCode: 429, message: `Slow down, and come back in ${secs} s.` });
  expect((await fetch(`${url}/nowhere`)).status).toBe(404);
});
