import { createHash } from 'node:crypto';
import { Script } from 'node:vm';
import type { INestApplication } from '@nestjs/common';
import { Ledger } from '../../sample/all/orders/ledger.js';
import { MemoryLedger } from '../../sample/all/orders/memory-ledger.js';
import { RedisLedger } from '../../sample/all/orders/redis-ledger.js';
import { startRedisServer } from '../support/redis-server.js';
import { freshRedis, workerRedis } from '../support/redis.js';
import { createApp } from '../../sample/all/create-app.js';
import { closeAll, OPERATOR_PASSWORD, SETTINGS, start } from './sample-app.js';

interface Answer {
  status: number;
  body: Record<string, unknown>;
}

async function request(method: string, url: string): Promise<Answer> {
  const response = await fetch(url, { method });
  return { status: response.status, body: (await response.json()) as Record<string, unknown> };
}

const pay = (url: string, orderId: string): Promise<Answer> =>
  request('POST', `${url}/orders/${encodeURIComponent(orderId)}/pay`);

const statuses = (answers: Answer[]): number[] => answers.map(({ status }) => status).sort();

const fences = (answers: Answer[]): number => new Set(answers.map(({ body }) => body.fence)).size;

afterAll(closeAll);

describe.each(SETTINGS)('the sample app on $adapter and $backend', ({ adapter, backend }) => {
  const redisUrl = backend === 'redis' ? workerRedis().url : undefined;
  const order = (name: string): string => `${adapter}-${name}`;
  let app: INestApplication;
  let url: string;

  beforeAll(async () => {
    await freshRedis();
    ({ app, url } = await start({ adapter, redisUrl }));
  });

  it('charges an order with 201, and tells of that charge with 200 from then on', async () => {
    const first = await pay(url, order('later'));
    expect(first).toEqual({
      status: 201,
      body: { orderId: order('later'), fence: expect.stringMatching(/^\d{15}$/) as string, charged: true },
    });
    expect(await pay(url, order('later'))).toEqual({ status: 200, body: { ...first.body, charged: false } });
  });

  it('charges once when five pay at the same moment, and the others wait for it', async () => {
    const record = jest.spyOn(app.get(Ledger), 'record');
    const answers = await Promise.all(Array.from({ length: 5 }, () => pay(url, '7')));
    // The ledger would refuse a second charge. The lock makes sure that there is no second attempt.
    expect(record).toHaveBeenCalledTimes(1);
    expect(statuses(answers)).toEqual([200, 200, 200, 200, 201]);
    expect(fences(answers)).toBe(1);
    expect(answers.filter(({ body }) => body.charged)).toHaveLength(1);
  });

  it.each(['a b', 'ü', 'a/b', '{0}', "7'; --", 'x'.repeat(65)])('refuses the id %j', async (id) => {
    const { status, body } = await pay(url, id);
    expect(status).toBe(400);
    expect(body.message).toBe('An order id is 1 to 64 letters, digits, "_" or "-".');
  });

  it('is healthy', async () => {
    expect(await request('GET', `${url}/health`)).toEqual({
      status: 200,
      body: { status: 'ok', details: { syncguard: { status: 'up', backend } } },
    });
  });

  describe('its page', () => {
    let response: Response;
    let html: string;

    beforeAll(async () => {
      response = await fetch(url);
      html = await response.text();
    });

    it('is HTML with the lines to paste, which name this very app', () => {
      expect(response.status).toBe(200);
      expect(response.headers.get('content-type')).toBe('text/html; charset=utf-8');
      expect(html).toContain(`curl -i -X POST ${url}/orders/7/pay`);
      expect(html).toContain(`curl -i ${url}/health`);
    });

    it('allows itself its own script and style, byte for byte, and nothing from elsewhere', () => {
      const policy = response.headers.get('content-security-policy') ?? '';
      expect(policy).toContain("default-src 'none'");
      for (const tag of ['script', 'style']) {
        const text = new RegExp(`<${tag}>([^]*?)</${tag}>`).exec(html)?.[1] ?? '';
        expect(policy).toContain(`${tag}-src 'sha256-${createHash('sha256').update(text).digest('base64')}'`);
      }
      expect(html).not.toMatch(/(src|href)="(?!data:)|@import|url\(/);
    });

    it('has a script that parses', () => {
      const script = /<script>([^]*?)<\/script>/.exec(html)?.[1] ?? '';
      expect(() => new Script(script)).not.toThrow();
      expect(script).toContain("setUp('orders'");
    });
  });
});

it('answers 503 on both adapters when Redis has stopped', async () => {
  await using server = await startRedisServer();
  const both = await Promise.all(
    (['express', 'fastify'] as const).map((adapter) => start({ adapter, redisUrl: server.url })),
  );
  for (const { url } of both) expect((await request('GET', `${url}/health`)).status).toBe(200);

  await server.kill();

  const asked = both.map(({ url }) => Promise.all([request('GET', `${url}/health`), pay(url, '7')]));
  for (const [health, payment] of await Promise.all(asked)) {
    expect(health.status).toBe(503);
    expect(health.body).toMatchObject({ status: 'error', details: { syncguard: { status: 'down' } } });
    expect(payment).toMatchObject({ status: 503, body: { code: 'ServiceUnavailable' } });
  }
});

describe.each([
  { name: 'MemoryLedger', create: () => new MemoryLedger() },
  { name: 'RedisLedger', create: () => new RedisLedger(workerRedis().url) },
])('$name', ({ create }) => {
  let ledger: MemoryLedger | RedisLedger;

  beforeAll(() => {
    ledger = create();
  });

  afterAll(() => {
    if (ledger instanceof RedisLedger) ledger.onApplicationShutdown();
  });

  it('lets the first charge stand, whatever the fence of one that comes late', async () => {
    expect(await ledger.find('late')).toBeUndefined();
    expect(await ledger.record('late', '2')).toBe('2');
    expect(await ledger.record('late', '1')).toBe('2');
    expect(await ledger.record('late', '3')).toBe('2');
    expect(await ledger.find('late')).toBe('2');
  });
});

it('keeps the 10,000 orders in memory that were asked for last', async () => {
  const ledger = new MemoryLedger();
  for (let order = 0; order < 10_000; order++) await ledger.record(String(order), '1');
  await ledger.find('0');
  await ledger.record('new', '1');
  expect(await ledger.find('0')).toBe('1');
  expect(await ledger.find('1')).toBeUndefined();
});

it('does not start with a malformed REDIS_URL, and keeps its password to itself', async () => {
  const failed = createApp({
    logger: false,
    operatorPassword: OPERATOR_PASSWORD,
    redisUrl: 'http://user:hunter2@localhost',
  });
  await expect(failed).rejects.toThrow(/redis must be a URL like/);
  await expect(failed).rejects.not.toThrow(/hunter2/);
});
