import type { INestApplication, Type } from '@nestjs/common';
import { listen } from '../../support/adapters.js';
import { closeApp } from '../../support/close-app.js';
import { freshRedis } from '../../support/redis.js';

interface Example {
  readonly AppModule: Type;
  setUp?(app: INestApplication): void;
}

let app: INestApplication;
let url: string;

beforeEach(async () => {
  process.env.REDIS_URL = (await freshRedis()).url;
});
afterEach(() => closeApp(app));
afterAll(() => delete process.env.REDIS_URL);

async function start({ AppModule, setUp }: Example): Promise<void> {
  ({ app, url } = await listen('express', { imports: [AppModule] }, undefined, (created) =>
    setUp?.(created),
  ));
}

const get = async (path: string, count: number): Promise<number[]> => {
  const all: number[] = [];
  while (all.length < count) all.push((await fetch(`${url}/${path}`)).status);
  return all;
};

const login = (password: string, email = 'ann@example.org') =>
  fetch(`${url}/login`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ email, password }),
  });

const logins = async (password: string, count: number, email?: string): Promise<number[]> => {
  const all: number[] = [];
  while (all.length < count) all.push((await login(password, email)).status);
  return all;
};

it.each<[string, () => Promise<Example>]>([
  ['before', () => import('./express-rate-limit/before.js')],
  ['after', () => import('./express-rate-limit/after.js')],
])('the app of express-rate-limit limits the same calls, %s', async (_name, load) => {
  await start(await load());
  expect(await logins('right', 5)).toEqual([200, 200, 200, 200, 200]);
  expect(await logins('wrong', 4)).toEqual([401, 401, 401, 429]);
  const denied = await login('right');
  expect([denied.status, await denied.json()]).toEqual([429, { error: 'Too many tries.' }]);
  expect(Number(denied.headers.get('retry-after'))).toBeGreaterThan(50);
  const items = await fetch(`${url}/items`);
  expect(['limit', 'remaining'].map((name) => items.headers.get(`x-ratelimit-${name}`))).toEqual(['20', '9']);
  expect(await get('nowhere', 1)).toEqual([404]);
  expect(await get('items', 9)).toEqual([200, 200, 200, 200, 200, 200, 200, 200, 429]);
  expect(await get('nowhere', 1)).toEqual([429]);
  expect(await get('health', 3)).toEqual([200, 200, 200]);
});

it.each<[string, () => Promise<Example>]>([
  ['before', () => import('./rate-limiter-flexible/before.js')],
  ['after', () => import('./rate-limiter-flexible/after.js')],
])('the app of rate-limiter-flexible limits the same calls, %s', async (_name, load) => {
  await start(await load());
  expect(await get('export', 1)).toEqual([200]);
  expect(await get('search', 3)).toEqual([200, 200, 429]);
  expect(await logins('wrong', 2)).toEqual([401, 401]);
  expect(await logins('right', 1)).toEqual([200]); // forgets the two
  expect(await logins('wrong', 5)).toEqual([401, 401, 401, 429, 429]);
  expect(await logins('right', 1, 'ANN@example.org')).toEqual([429]);
  expect(await logins('wrong', 1, 'bob@example.org')).toEqual([401]);
});
