import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import type { INestApplication } from '@nestjs/common';
import { Test } from '@nestjs/testing';
import {
  AbuseLimiterService,
  BudgetService,
  LockService,
  SyncGuardHealthIndicator,
  SyncGuardModule,
} from 'nestjs-syncguard';
import { listen } from '../support/adapters.js';
import { workerRedis } from '../support/redis.js';
import { ROOT } from './sources.js';
import { AppModule as Budgets } from './tour/budgets.js';
import { spend } from './tour/by-hand.js';
import { AppModule as Limits } from './tour/limits.js';
import { Jobs } from './tour/locks.js';
import { Exports, options } from './tour/policies.js';
import { AppModule as QuickStart } from './tour/quick-start.js';
import { forRoot, forRootAsync } from './tour/set-up.js';

const folder = join(__dirname, 'tour');
const dedented = (code: string): string => code.replace(/^ +/gm, '');

type Answer = [status: number, body: Record<string, unknown>, headers: Headers];

async function post(url: string, body: object = {}): Promise<Answer> {
  const headers = { 'Content-Type': 'application/json' };
  const response = await fetch(url, { method: 'POST', headers, body: JSON.stringify(body) });
  return [response.status, (await response.json()) as Record<string, unknown>, response.headers];
}

describe('docs/tour.md', () => {
  const page = readFileSync(join(ROOT, 'docs/tour.md'), 'utf8');
  const blocks = [...page.matchAll(/^```ts\n(.*?)^```$/gms)].map(([, code = '']) => code);
  const files = readdirSync(folder).map((file) => dedented(readFileSync(join(folder, file), 'utf8')));

  it.each(blocks)('has an example that runs below: %#', (code) => {
    expect(files.filter((file) => file.includes(dedented(code)))).toHaveLength(1);
  });

  it('has no fewer examples than it had', () => {
    expect(blocks.length).toBeGreaterThanOrEqual(13);
  });
});

describe.each(['express', 'fastify'] as const)('the whole examples of docs/tour.md, on %s', (adapter) => {
  let app: INestApplication;
  let url: string;
  const start = async (module: new () => unknown): Promise<void> =>
    void ({ app, url } = await listen(adapter, { imports: [module] }));
  afterEach(() => app.close());

  it('charges an order once that is paid twice at once', async () => {
    await start(QuickStart);
    const answers = await Promise.all([post(`${url}/orders/7/pay`), post(`${url}/orders/7/pay`)]);
    expect(answers.map(([status]) => status)).toEqual([201, 201]);
    expect(answers.map(([, { charged }]) => charged).sort()).toEqual([false, true]);
  });

  it('answers the fifth failed login 429, and limits the search', async () => {
    await start(Limits);
    const login = (): Promise<Answer> => post(`${url}/login`, { email: 'ann@example.org', password: 'no' });
    const logins: Answer[] = [];
    for (let i = 0; i < 5; i++) logins.push(await login());
    expect(logins.map(([status]) => status)).toEqual([401, 401, 401, 401, 429]);
    const [, body, headers] = logins[4] as Answer;
    const shown = /^```json\n(.*?)^```$/ms.exec(readFileSync(join(ROOT, 'docs/tour.md'), 'utf8'))?.[1] ?? '';
    const example = JSON.parse(shown) as { context: object };
    const retryAtMs: unknown = expect.any(Number);
    expect(body).toEqual({ ...example, context: { ...example.context, retryAtMs } });
    expect(headers.get('Retry-After')).toBe('60');
    const searches: number[] = [];
    for (let i = 0; i < 6; i++) searches.push((await fetch(`${url}/search`)).status);
    expect(searches).toEqual([200, 200, 200, 200, 200, 429]);
    expect((await fetch(`${url}/health`)).status).toBe(200);
  });

  it('spends what a call cost, and refuses what has no room', async () => {
    await start(Budgets);
    const [status, { text, budget }] = await post(`${url}/ai`, { user: 'ada', prompt: 'hi', maxTokens: 900 });
    expect([status, text]).toEqual([201, 'Hello ada, you said: hi']);
    expect(budget).toMatchObject([{ limit: 1_000, committed: 2, available: 998 }]);
    const [refused, , headers] = await post(`${url}/ai`, { user: 'ada', prompt: 'hi', maxTokens: 1_000 });
    expect(refused).toBe(429);
    expect(Number(headers.get('Retry-After'))).toBeGreaterThan(0);
  });

  it('reveals a secret once', async () => {
    process.env.SECRETS_KEY = Buffer.alloc(32, 7).toString('base64');
    const { AppModule } = await import('./tour/secrets.js'); // It reads its key when it is loaded.
    await start(AppModule);
    const [, { url: path }] = await post(`${url}/secrets`, { text: 'The door code is 4711' });
    const link = `${url}${String(path)}`;
    expect(await (await fetch(link)).json()).toMatchObject({ ok: true, viewsRemaining: 1 });
    const [status, body, headers] = await post(`${link}/reveal`);
    expect([status, body]).toEqual([200, { text: 'The door code is 4711', burned: true }]);
    expect(headers.get('Cache-Control')).toBe('no-store');
    const [gone, answer] = await post(`${link}/reveal`);
    expect([gone, answer.message]).toEqual([410, 'The secret is burned.']);
  });
});

describe('the pieces of docs/tour.md', () => {
  it('lock what they say', async () => {
    const module = await Test.createTestingModule({
      imports: [SyncGuardModule.forRoot({ shutdown: { heldLocks: 'release', drainMs: 0 } })],
      providers: [Jobs],
    }).compile();
    const jobs = module.get(Jobs);
    const locks = module.get(LockService);
    await jobs.ship({ id: '7' });
    await jobs.nightly();
    await jobs.nightly(); // Skipped: the first one holds the lock for a minute.
    expect(jobs.done).toEqual(['ship 7', 'import 1 15', 'import 2 15']);
    expect(await jobs.report()).toBe('ship 7, import 1 15, import 2 15');
    expect(await locks.isLocked({ key: 'report' })).toBe(false);
    await locks.lock(async () => expect(await jobs.report()).toBe('somebody is at it'), { key: 'report' });
    await module.close();
  });

  it('limit what they say', async () => {
    const module = await Test.createTestingModule({
      imports: [SyncGuardModule.forRoot(options)],
      providers: [Exports],
    }).compile();
    const exports = module.get(Exports);
    for (let i = 0; i < 10; i++) expect(await exports.run('ada')).toBe('exported');
    expect(await exports.run('ada')).toMatch(/^Try again in (3600|3599) s$/);
    const limiter = module.get(AbuseLimiterService);
    const pins = [];
    for (let i = 0; i < 5; i++) pins.push((await limiter.check('ann', 'pin')).allowed);
    expect(pins).toEqual([true, true, true, true, false]);
    await module.close();
  });

  it('spend what they say', async () => {
    const limits = [
      { scope: 'user', period: 'lifetime' as const, limit: 1_000 },
      { scope: 'org', period: 'lifetime' as const, limit: 20_000 },
    ];
    const module = await Test.createTestingModule({
      imports: [SyncGuardModule.forRoot({ budget: { limits } })],
    }).compile();
    const budgets = module.get(BudgetService);
    expect(await spend(budgets, 'job 1')).toBe('reserved');
    expect(await budgets.balance({ scope: 'user:ada' })).toMatchObject([{ committed: 345, available: 655 }]);
    expect(await spend(budgets, 'job 2')).toBe('exceeded');
    await module.close();
  });

  it('set the module up', async () => {
    expect(forRoot()).toMatchObject({ module: SyncGuardModule });
    process.env.REDIS_URL = workerRedis().url;
    const module = await Test.createTestingModule({ imports: [forRootAsync()] }).compile();
    delete process.env.REDIS_URL;
    await module.init();
    expect(await module.get(SyncGuardHealthIndicator).isHealthy('syncguard')).toMatchObject({
      syncguard: { status: 'up' },
    });
    await module.close();
  });
});
