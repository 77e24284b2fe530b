import { randomBytes } from 'node:crypto';
import type { Redis } from 'ioredis';
import { Sealer } from '../../sample/all/secrets/sealer.js';
import { freshRedis, workerRedis } from '../support/redis.js';
import { createApp } from '../../sample/all/create-app.js';
import { closeAll, OPERATOR_PASSWORD, SETTINGS, start } from './sample-app.js';

interface Answer {
  status: number;
  body: Record<string, unknown>;
  headers: Headers;
}

const HOUR_MS = 3_600_000;

async function request(method: string, url: string, body?: unknown): Promise<Answer> {
  const headers = { 'Content-Type': 'application/json' };
  const response = await fetch(url, {
    method,
    ...(body === undefined ? {} : { headers, body: typeof body === 'string' ? body : JSON.stringify(body) }),
  });
  const text = await response.text();
  const json = text.startsWith('{') ? (JSON.parse(text) as Record<string, unknown>) : {};
  return { status: response.status, body: json, headers: response.headers };
}

afterAll(closeAll);

describe.each(SETTINGS)('secrets in the sample app on $adapter and $backend', ({ adapter, backend }) => {
  const options = {
    adapter,
    redisUrl: backend === 'redis' ? workerRedis().url : undefined,
    secretsKey: randomBytes(32).toString('base64'),
  };
  let url: string;
  const create = async (secret: object): Promise<{ id: string; url: string }> => {
    const { status, body } = await request('POST', `${url}/secrets`, secret);
    expect(status).toBe(201);
    return body as { id: string; url: string };
  };
  const reveal = (id: string): Promise<Answer> => request('POST', `${url}/secrets/${id}/reveal`);

  beforeAll(async () => {
    await freshRedis();
    ({ url } = await start(options));
  });

  it('opens as often as it has views, and is gone then', async () => {
    const { id } = await create({ text: 'caf\u00e9 \u{1f512}', views: 2, ttlMs: HOUR_MS });
    expect(id).toMatch(/^[\w-]{22}$/);
    const first = await reveal(id);
    expect([first.status, first.body]).toStrictEqual([
      200,
      { text: 'caf\u00e9 \u{1f512}', viewsRemaining: 1, burned: false },
    ]);
    expect(first.headers.get('cache-control')).toBe('no-store');
    expect((await reveal(id)).body).toStrictEqual({
      text: 'caf\u00e9 \u{1f512}',
      viewsRemaining: 0,
      burned: true,
    });
    const gone = await reveal(id);
    expect([gone.status, gone.body.message]).toStrictEqual([410, 'The secret is burned.']);
    expect((await request('GET', `${url}/secrets/${id}`)).status).toBe(410);
  });

  it('tells a program how many views there are, and a browser what to press', async () => {
    const { id, url: link } = await create({ text: 'only for you', views: 1, ttlMs: HOUR_MS });
    expect((await request('GET', link)).body).toStrictEqual({
      ...{ id, viewsRemaining: 1, expiresAtMs: expect.any(Number) as number },
    });
    const page = await fetch(link, { headers: { accept: 'text/html' } });
    expect(page.headers.get('content-type')).toBe('text/html; charset=utf-8');
    expect(page.headers.get('content-security-policy')).toContain("default-src 'none'");
    expect(page.headers.get('referrer-policy')).toBe('no-referrer');
    expect(await page.text()).toContain('Open it');
  });

  it('answers 404 for an id that never was, and for what is no id', async () => {
    for (const id of ['A'.repeat(22), 'x', '%00', 'a%2Fb', '{0}', 'x'.repeat(100)]) {
      const [peeked, revealed] = [await request('GET', `${url}/secrets/${id}`), await reveal(id)];
      expect([id, peeked.status, revealed.status]).toStrictEqual([id, 404, 404]);
      expect([peeked.body.message, revealed.body.message]).toStrictEqual(
        Array(2).fill('There is no such secret.'),
      );
    }
  });

  it('opens once and lives for a day unless told otherwise', async () => {
    const { id } = await create({ text: 't' });
    const { body } = await request('GET', `${url}/secrets/${id}`);
    expect(body.viewsRemaining).toBe(1);
    expect(Math.round(((body.expiresAtMs as number) - Date.now()) / HOUR_MS)).toBe(24);
  });

  it.each<[string, unknown]>([
    ['no text', { views: 1, ttlMs: 1_000 }],
    ['an empty text', { text: '', views: 1, ttlMs: 1_000 }],
    ['a text that is none', { text: 7, views: 1, ttlMs: 1_000 }],
    ['a text over 20,000 bytes', { text: 'é'.repeat(10_001), views: 1, ttlMs: 1_000 }],
    ['half a character', '{"text":"\\ud83d","views":1,"ttlMs":1000}'],
    ...[0, -1, 1.5, 101, '3', null].map((views): [string, unknown] => [
      `views: ${views}`,
      { text: 't', views },
    ]),
    ...[0, -1, 0.5, 31 * 24 * HOUR_MS, '60', null].map((ttlMs): [string, unknown] => [
      `ttlMs: ${ttlMs}`,
      { text: 't', ttlMs },
    ]),
    ['a list', []],
    ['broken JSON', '{"text":'],
  ])('refuses %s with 400', async (_, body) => {
    expect((await request('POST', `${url}/secrets`, body)).status).toBe(400);
  });
});

describe('secrets in the sample app on Redis', () => {
  const secretsKey = randomBytes(32).toString('base64');
  let redis: Redis;
  beforeEach(async () => {
    redis = (await freshRedis()).client();
  });

  it('are held encrypted, without their ids, and are gone from it with the last view', async () => {
    const { url } = await start({ redisUrl: workerRedis().url, secretsKey });
    const { body } = await request('POST', `${url}/secrets`, {
      text: 'the door code is 4711',
      views: 1,
      ttlMs: 60_000,
    });
    const held = async (): Promise<string> => {
      const keys = await redis.keys('*');
      const dumps = await Promise.all(keys.map((key) => redis.dumpBuffer(key)));
      return keys.sort().join() + Buffer.concat(dumps).toString('latin1');
    };
    expect(await held()).toMatch(/secret:\{[\w-]{22}\},/);
    expect(await held()).not.toMatch(new RegExp(`door code|${body.id as string}`));
    await request('POST', `${url}/secrets/${body.id as string}/reveal`);
    expect(await held()).not.toMatch(/secret:\{[\w-]{22}\}(?!:record)/);
  });

  it('open in another process with the same key; under another key none is lost', async () => {
    const redisUrl = workerRedis().url;
    const [one, two, stranger] = await Promise.all([
      start({ redisUrl, secretsKey }),
      start({ redisUrl, secretsKey, adapter: 'fastify' }),
      start({ redisUrl, secretsKey: randomBytes(32).toString('base64') }),
    ]);
    const { body } = await request('POST', `${one.url}/secrets`, { text: 'shared', views: 1, ttlMs: 60_000 });
    const id = body.id as string;
    expect((await request('POST', `${stranger.url}/secrets/${id}/reveal`)).status).toBe(404);
    expect((await request('POST', `${two.url}/secrets/${id}/reveal`)).body.text).toBe('shared');
  });

  it('refuses to start on a key that is none', async () => {
    const options = {
      redisUrl: workerRedis().url,
      logger: false,
      operatorPassword: OPERATOR_PASSWORD,
    } as const;
    await expect(createApp({ ...options, secretsKey: 'short' })).rejects.toThrow(
      'SECRETS_KEY must be 32 bytes',
    );
  });
});

describe('Sealer', () => {
  it('opens what it sealed, for this id only, and notices every changed byte', () => {
    const sealer = new Sealer(randomBytes(32));
    const sealed = sealer.seal('id', 'text');
    expect(sealer.open('id', sealed)).toBe('text');
    expect(sealer.seal('id', 'text').equals(sealed)).toBe(false);
    expect(() => sealer.open('other', sealed)).toThrow();
    expect(() => new Sealer(randomBytes(32)).open('id', sealed)).toThrow();
    for (let at = 0; at < sealed.length; at++) {
      const changed = Buffer.from(sealed);
      changed[at]! ^= 1;
      expect(() => sealer.open('id', changed)).toThrow();
    }
    expect(() => sealer.open('id', Buffer.alloc(3))).toThrow();
  });
});
