import { hostname } from 'node:os';
import { type INestApplication, Logger } from '@nestjs/common';
import { BudgetService, OnceService } from 'nestjs-syncguard';
import { createApp } from '../../sample/all/create-app.js';
import { eventually } from '../support/eventually.js';
import { freshRedis, workerRedis } from '../support/redis.js';
import { clocksCanPass, closeAll, OPERATOR_PASSWORD, pass, SETTINGS, start } from './sample-app.js';

interface Answer {
  status: number;
  body: Record<string, unknown>;
}

const AUTHORIZED = { Authorization: `Bearer ${OPERATOR_PASSWORD}` };

beforeAll(() => {
  clocksCanPass();
  jest.spyOn(Logger.prototype, 'warn').mockImplementation();
});

afterAll(async () => {
  await closeAll();
  jest.restoreAllMocks();
});

describe.each(SETTINGS)('what operators see on $adapter and $backend', ({ adapter, backend }) => {
  const redisUrl = backend === 'redis' ? workerRedis().url : undefined;
  let app: INestApplication;
  let url: string;

  beforeAll(async () => {
    await freshRedis();
    ({ app, url } = await start({ adapter, redisUrl }));
  });
  async function ask(
    path: string,
    body?: unknown,
    headers: Record<string, string> = AUTHORIZED,
  ): Promise<Answer> {
    const response = await fetch(`${url}/operations/${path}`, {
      ...(body === undefined ? {} : { method: 'POST', body: JSON.stringify(body) }),
      headers: { ...headers, 'Content-Type': 'application/json' },
    });
    return { status: response.status, body: (await response.json()) as Record<string, unknown> };
  }
  const locksOf = async (order: string): Promise<Record<string, unknown>[]> =>
    (await ask(`locks?prefix=order:${order}`)).body.items as Record<string, unknown>[];

  it('lists an order that hangs and who waits, and frees it by the fence that was seen', async () => {
    const hanging = fetch(`${url}/orders/slow/pay`, { method: 'POST' });
    const [lock] = await eventually(async () => {
      const found = await locksOf('slow');
      expect(found).toMatchObject([{ key: 'order:slow', waiting: 0 }]);
      return found;
    });
    const waiting = fetch(`${url}/orders/slow/pay`, { method: 'POST' });
    await eventually(async () => {
      const { body } = await ask('lock?key=order:slow');
      expect(body.waiting).toMatchObject([{ position: 1 }]);
      expect(body.holders).toMatchObject([
        { host: hostname(), pid: process.pid, method: 'OrdersService.pay' },
      ]);
    });

    const decision = { key: 'order:slow', reason: 'it hangs', by: 'ann' };
    const other = await ask('locks/release', { ...decision, fence: '000000000000001' });
    expect(other).toStrictEqual({ status: 200, body: { released: false, fence: lock?.fence } });
    const freed = await ask('locks/release', { ...decision, fence: lock?.fence });
    expect(freed).toStrictEqual({ status: 200, body: { released: true } });
    expect(await (await hanging).json()).toMatchObject({ code: 'LockLost' });

    const [next] = await eventually(async () => {
      const found = await locksOf('slow');
      expect(found).toHaveLength(1);
      return found;
    });
    expect((next?.fence as string) > (lock?.fence as string)).toBe(true);
    await ask('locks/release', { ...decision, fence: next?.fence });
    expect((await waiting).status).toBe(500);
  });

  it('shows who is blocked, and lets him in by his tag', async () => {
    const log = (): Promise<Response> =>
      fetch(`${url}/login`, {
        method: 'POST',
        headers: { 'Content-Type': 'application/json' },
        body: JSON.stringify({ email: 'ann@example.org', password: 'guess' }),
      });
    for (let i = 0; i < 5; i++) await log();
    expect((await log()).status).toBe(429);
    const { body } = await ask('blocked?policy=login');
    const [block] = body.items as { tag: string; policy: string }[];
    expect(body.items).toMatchObject([{ policy: 'login', scope: 'temp' }]);
    const freed = await ask('blocked/unblock', { tag: block?.tag, policy: 'login', by: 'ann' });
    expect(freed.body).toStrictEqual({ unblocked: 1 });
    await eventually(async () => expect((await log()).status).toBe(401));
  });

  it('shows what tenants have spent and what is running', async () => {
    const budgets = app.get(BudgetService);
    const held = await budgets.reserve({ scopes: ['user:ada'], amount: 500, ttlMs: 60_000 });
    const { body } = await ask('budgets');
    expect(body.roots).toStrictEqual(['default']);
    expect((body.balances as { items: unknown[] }).items).toEqual(
      expect.arrayContaining([expect.objectContaining({ scope: 'user:ada', reserved: 500, limit: 3_000 })]),
    );
    expect(body.holds).toMatchObject([{ amount: 500, state: 'pending' }]);
    if (held.ok) await budgets.abort({ id: held.id });
  });

  it('shows the calls of which nobody knows the end, and takes what somebody has found out', async () => {
    const once = app.get(OnceService);
    // Two that stand still for longer than their lease, as those of a process that has died.
    let end = (): void => {};
    const still = new Promise<void>((resolve) => (end = resolve));
    const given = ['charge:1', 'charge:2'].map((key) => once.run(() => still, { key, afterCrash: 'refuse' }));
    const ends = Promise.allSettled(given);
    await eventually(async () => expect(await once.get('charge:2')).toMatchObject({ state: 'running' }));
    pass(31_000);
    const keys = async (): Promise<unknown[]> =>
      ((await ask('once')).body.items as { key: string }[]).map(({ key }) => key).sort();
    expect(await keys()).toStrictEqual(['charge:1', 'charge:2']);
    expect((await ask('once/settle', { key: 'charge:1', value: 'paid', by: 'ann' })).body).toStrictEqual({
      ok: true,
    });
    expect((await ask('once/forget', { key: 'charge:2', by: 'ann' })).body).toStrictEqual({ ok: true });
    expect(await keys()).toStrictEqual([]);
    expect(await once.run(() => 'again', { key: 'charge:1' })).toMatchObject({
      value: 'paid',
      replayed: true,
    });
    end();
    await ends;
  });

  it.each([
    ['locks/release', {}],
    ['locks/release', { key: 7, fence: '1', reason: 'x', by: 'ann' }],
    ['locks/release', { key: 'a', fence: '000000000000001', reason: 'x', by: '' }],
    ['locks/release', { key: 'a', fence: '000000000000001', reason: 'x', by: 'ann', force: true }],
    ['once/forget', { key: '', by: 'ann' }],
    ['blocked/unblock', { tag: 7, by: 'ann' }],
    ['once/settle', { key: 'a', by: 7 }],
    ['locks?cursor=', undefined],
    ['lock', undefined],
    ['budgets?root=a&root=b', undefined],
  ])('refuses %s %j', async (path, body) => {
    expect((await ask(path, body)).status).toBe(400);
  });

  it('refuses other sites, whatever password they have', async () => {
    const { host } = new URL(url);
    const from = (headers: Record<string, string>): Promise<Answer> =>
      ask('locks', undefined, { ...AUTHORIZED, ...headers });
    expect((await from({ Origin: 'https://evil.example' })).status).toBe(403);
    expect((await from({ Origin: 'null' })).status).toBe(403);
    expect((await from({ 'Sec-Fetch-Site': 'cross-site' })).status).toBe(403);
    expect((await from({ Origin: `http://${host}`, 'Sec-Fetch-Site': 'same-origin' })).status).toBe(200);
  });

  it('refuses who has no password, and counts wrong ones', async () => {
    const wrong = ['', 'Bearer', 'Bearer no', `Basic ${OPERATOR_PASSWORD}`, `Bearer ${OPERATOR_PASSWORD}!`];
    for (const Authorization of wrong)
      expect((await ask('locks', undefined, { Authorization })).status).toBe(401);
    let guesses = wrong.length;
    const guess = (): Promise<Answer> =>
      ask('once/forget', { key: 'a', by: 'ann' }, { Authorization: `Bearer ${++guesses}` });
    while ((await guess()).status === 401);
    expect(guesses).toBeLessThanOrEqual(11);
    expect((await ask('locks')).status).toBe(429);
  });
});

it('starts neither without a password nor with a short one', async () => {
  for (const operatorPassword of ['', 'short'])
    await expect(createApp({ logger: false, operatorPassword })).rejects.toThrow(
      'OPERATOR_PASSWORD must have at least 12 characters',
    );
});
