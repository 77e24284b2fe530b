import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import type { INestApplication } from '@nestjs/common';
import { NestFactory } from '@nestjs/core';
import { SchedulerRegistry } from '@nestjs/schedule';
import { closeApp } from '../support/close-app.js';
import { eventually } from '../support/eventually.js';
import { freshRedis } from '../support/redis.js';

const SAMPLES = join(__dirname, '../../sample');
const apps: INestApplication[] = [];

/** Runs main.ts of a sample as `npm run sample` does, and returns the address of its app. */
async function start(sample: string): Promise<string> {
  const create = NestFactory.create.bind(NestFactory);
  const spied = jest
    .spyOn(NestFactory, 'create')
    .mockImplementation(async (module: Parameters<typeof create>[0]) => {
      const app = await create(module, { logger: false });
      apps.push(app);
      return app as never;
    });
  process.env.PORT = '0';
  await import(`../../sample/${sample}/main.js`);
  const url = await eventually(async () => {
    const address = await apps[0]?.getUrl();
    if (!address || address.endsWith(':0')) throw new Error('It does not listen yet.');
    return address;
  });
  spied.mockRestore();
  return url;
}

afterEach(async () => {
  for (const name of ['PORT', 'REDIS_URL']) delete process.env[name];
  await Promise.all(apps.splice(0).map(closeApp));
});

async function post(url: string, body: object = {}): Promise<{ status: number; body: unknown }> {
  const headers = { 'Content-Type': 'application/json' };
  const response = await fetch(url, { method: 'POST', headers, body: JSON.stringify(body) });
  return { status: response.status, body: await response.json() };
}

it('each sample is of one screen', () => {
  const folders = readdirSync(SAMPLES, { withFileTypes: true })
    .filter((entry) => entry.isDirectory() && !['all', 'dist'].includes(entry.name))
    .map(({ name }) => name);
  expect(folders.sort()).toEqual(['ai-budget', 'cron', 'login', 'once', 'pay-once', 'secrets']);
  const readme = readFileSync(join(SAMPLES, 'README.md'), 'utf8');
  for (const folder of folders) {
    const text = readFileSync(join(SAMPLES, folder, 'app.module.ts'), 'utf8');
    expect(text.split('\n').length).toBeLessThanOrEqual(60);
    expect(readme).toContain(`| [${folder}](${folder}/app.module.ts) |`);
  }
});

it('pay-once charges once', async () => {
  const url = await start('pay-once');
  const answers = await Promise.all([post(`${url}/orders/7/pay`), post(`${url}/orders/7/pay`)]);
  const bodies = answers.map(({ body }) => body as { charged: boolean; fence: string });
  expect(bodies.map(({ charged }) => charged).sort()).toEqual([false, true]);
  expect(bodies[0]?.fence).toMatch(/^\d{15}$/);
  expect(bodies[1]?.fence).toBe(bodies[0]?.fence);
});

it('once makes one order of two calls, and another one for another user', async () => {
  const url = await start('once');
  const order = async (user: string, item: string) => {
    // As `curl -d` sends it.
    const headers = { 'x-user': user, 'idempotency-key': '8e03' };
    const body = new URLSearchParams({ item });
    const response = await fetch(`${url}/orders`, { method: 'POST', headers, body });
    const { number, code } = (await response.json()) as { number?: number; code?: string };
    return [response.status, response.headers.get('idempotency-replayed'), number ?? code];
  };
  const atOnce = await Promise.all([order('ann', 'tea'), order('ann', 'tea')]);
  expect(atOnce.sort()).toEqual([
    [201, null, 1],
    [409, null, 'OnceInProgress'],
  ]);
  expect(await order('ann', 'tea')).toEqual([201, 'true', 1]);
  expect(await order('ann', 'cake')).toEqual([422, null, 'OncePayloadMismatch']);
  expect(await order('bob', 'tea')).toEqual([201, null, 2]);
  const paid = { id: 'evt_1', number: 1 };
  for (let i = 0; i < 2; i++)
    expect(await post(`${url}/webhooks`, paid)).toEqual({ status: 200, body: { received: true } });
  expect(await (await fetch(`${url}/orders`)).json()).toMatchObject([{ paid: true }, { paid: false }]);
});

it('login answers the fifth wrong password with 429', async () => {
  const url = await start('login');
  const statuses: number[] = [];
  for (let i = 0; i < 5; i++)
    statuses.push((await post(`${url}/login`, { email: 'ann@example.org', password: 'no' })).status);
  expect(statuses).toEqual([401, 401, 401, 401, 429]);
  expect(await post(`${url}/login`, { email: 'bob@example.org', password: 'correct' })).toEqual({
    status: 200,
    body: { welcome: 'bob@example.org' },
  });
});

it('ai-budget spends what was used, and refuses what does not fit', async () => {
  const url = await start('ai-budget');
  const ask = (maxTokens: number) => post(`${url}/ai`, { user: 'ada', prompt: 'hi', maxTokens });
  expect(await ask(900)).toEqual({ status: 201, body: { text: 'You said: hi', tokens: 2 } });
  expect(await (await fetch(`${url}/ai/ada`)).json()).toMatchObject([{ committed: 2, available: 998 }]);
  expect((await ask(999)).status).toBe(429);
  expect((await ask(2_000)).status).toBe(402);
});

it('secrets does not start on Redis without a key that all processes share', async () => {
  process.env.REDIS_URL = 'redis://localhost';
  await expect(import('../../sample/secrets/app.module.js')).rejects.toThrow('Set SECRETS_KEY.');
});

it.each(['=', '!!!!', Buffer.alloc(16, 7).toString('base64')])(
  'secrets does not start with the key %j',
  async (key) => {
    process.env.SECRETS_KEY = key;
    await expect(import('../../sample/secrets/app.module.js')).rejects.toThrow('must be 32 bytes');
    delete process.env.SECRETS_KEY;
  },
);

it('secrets opens once', async () => {
  const url = await start('secrets');
  const { body } = await post(`${url}/secrets`, { text: '4711' });
  const secret = `${url}${(body as { url: string }).url}`;
  expect(await (await fetch(secret)).json()).toMatchObject({ ok: true, viewsRemaining: 1 });
  expect(await post(`${secret}/reveal`)).toEqual({ status: 200, body: { text: '4711' } });
  expect((await post(`${secret}/reveal`)).status).toBe(410);
});

it('cron runs in one of two processes', async () => {
  process.env.REDIS_URL = (await freshRedis()).url;
  const url = await start('cron');
  const { AppModule } = await import('../../sample/cron/app.module.js');
  const other = await NestFactory.create(AppModule, { logger: false });
  apps.push(other);
  await other.listen(0, '127.0.0.1');
  await Promise.all(apps.map((app) => app.get(SchedulerRegistry).getCronJob('report').fireOnTick()));
  const runsOf = async (address: string): Promise<number> =>
    ((await (await fetch(address)).json()) as { runs: number }).runs;
  const urls = [url, await other.getUrl()];
  // `fireOnTick()` does not wait for the job.
  await eventually(async () => expect((await Promise.all(urls.map(runsOf))).sort()).toEqual([0, 1]));
});
