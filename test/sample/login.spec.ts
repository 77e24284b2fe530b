import type { INestApplication } from '@nestjs/common';
import { LoginService } from '../../sample/all/login/login.service.js';
import { startRedisServer } from '../support/redis-server.js';
import { freshRedis, workerRedis } from '../support/redis.js';
import { clocksCanPass, closeAll, pass, SETTINGS, start } from './sample-app.js';

interface Answer {
  status: number;
  body: Record<string, unknown>;
  retryAfter: string | null;
}

async function logIn(url: string, body: unknown): Promise<Answer> {
  const response = await fetch(`${url}/login`, {
    method: 'POST',
    headers: { 'Content-Type': 'application/json' },
    body: typeof body === 'string' ? body : JSON.stringify(body),
  });
  const { status, headers } = response;
  return {
    status,
    body: (await response.json()) as Record<string, unknown>,
    retryAfter: headers.get('retry-after'),
  };
}

beforeAll(clocksCanPass);

afterAll(async () => {
  jest.restoreAllMocks();
  await closeAll();
});

const tooMany = (seconds: number): Answer => ({
  status: 429,
  body: {
    statusCode: 429,
    code: 'TooManyAttempts',
    message: `Too many attempts. Try again in ${seconds} seconds.`,
    context: { retryAfter: seconds, retryAtMs: expect.any(Number) as unknown },
  },
  retryAfter: String(seconds),
});

describe.each(SETTINGS)('logins of the sample app on $adapter and $backend', ({ adapter, backend }) => {
  const redisUrl = backend === 'redis' ? workerRedis().url : undefined;
  let app: INestApplication;
  let url: string;
  const attempt = (name: string, password: string): Promise<Answer> =>
    logIn(url, { email: `${name}@example.org`, password });
  const guess = (name: string): Promise<Answer> => attempt(name, 'guess');
  const guessTimes = async (count: number, name: string): Promise<number[]> => {
    const statuses: number[] = [];
    while (statuses.length < count) statuses.push((await guess(name)).status);
    return statuses;
  };

  beforeAll(async () => {
    await freshRedis();
    ({ app, url } = await start({ adapter, redisUrl }));
  });

  it('lets in with the right password, and tells nothing apart that is wrong', async () => {
    expect(await attempt('ann', 'correct')).toStrictEqual({
      ...{ status: 200, body: { welcome: 'ann@example.org' }, retryAfter: null },
    });
    const { status, body } = await guess('ann');
    expect([status, body.message]).toStrictEqual([401, 'Wrong e-mail or password.']);
  });

  it('answers the fifth failure in a minute itself with 429, and all that follows for that account alone', async () => {
    expect(await guessTimes(4, 'bob')).toStrictEqual([401, 401, 401, 401]);
    expect(await guess('bob')).toStrictEqual(tooMany(60));

    const isRight = jest.spyOn(app.get(LoginService), 'isRight');
    const right = await attempt('bob', 'correct');
    expect([right.status, right.body.code]).toStrictEqual([429, 'TooManyAttempts']);
    expect((await attempt(' BOB', 'correct')).status).toBe(429);
    expect(isRight).not.toHaveBeenCalled();

    expect((await attempt('someone-else', 'correct')).status).toBe(200);
  });

  it('lets in who waits exactly Retry-After, and asks for twice the time the next time', async () => {
    expect(await guessTimes(4, 'carl')).toStrictEqual([401, 401, 401, 401]);
    const { retryAfter } = await guess('carl');
    pass(Number(retryAfter) * 1000 - 1_500);
    expect((await attempt('carl', 'correct')).status).toBe(429);
    pass(1_500);
    expect(await guessTimes(4, 'carl')).toStrictEqual([401, 401, 401, 401]);
    expect(await guess('carl')).toStrictEqual(tooMany(120));
  });

  it('locks nobody out by successes, however many come at once', async () => {
    const answers = await Promise.all(Array.from({ length: 40 }, () => attempt('eve', 'correct')));
    const later = answers.filter(({ status }) => status !== 200);
    // While four calls are in flight, a fifth gets 429 with a second to wait, and is not blocked.
    expect(later).toStrictEqual(later.map(() => ({ ...tooMany(1), body: expect.anything() as unknown })));
    expect((await attempt('eve', 'correct')).status).toBe(200);
  });

  it('forgets the failures before a success', async () => {
    for (let round = 0; round < 3; round++) {
      expect(await guessTimes(4, 'fritz')).toStrictEqual([401, 401, 401, 401]);
      expect((await attempt('fritz', 'correct')).status).toBe(200);
    }
  });

  it('lets 20 guesses at once try no more than those in a row would', async () => {
    const isRight = jest.spyOn(app.get(LoginService), 'isRight').mockClear();
    const answers = await Promise.all(Array.from({ length: 20 }, () => guess('gina')));
    expect(isRight.mock.calls.length).toBeLessThanOrEqual(5);
    expect(answers.filter(({ status }) => status === 401).length).toBeLessThanOrEqual(4);
  });

  it.each<[string, unknown]>([
    ['no e-mail', { password: 'correct' }],
    ['an e-mail that is none', { email: 'ann', password: 'correct' }],
    ['a list of e-mails', { email: ['ann@example.org'], password: 'correct' }],
    ['an e-mail with a space', { email: 'ann @example.org', password: 'correct' }],
    ['an e-mail of 255 characters', { email: `${'a'.repeat(243)}@example.org`, password: 'correct' }],
    ['no password', { email: 'ann@example.org' }],
    ['an empty password', { email: 'ann@example.org', password: '' }],
    ['a password that is a number', { email: 'ann@example.org', password: 1 }],
    ['a password of 201 characters', { email: 'ann@example.org', password: 'x'.repeat(201) }],
    ['nothing', ''],
    ['a list', []],
    ['broken JSON', '{"email":'],
  ])('refuses %s with 400', async (_, body) => {
    expect((await logIn(url, body)).status).toBe(400);
  });

  it('stops who asks for more than 300 pages in 10 seconds, and no health probe', async () => {
    const statusesOf = async (path: string): Promise<Set<number>> => {
      const statuses = new Set<number>();
      for (let batch = 0; batch < 8; batch++) {
        const some = Array.from({ length: 40 }, () => fetch(`${url}${path}`));
        for (const response of await Promise.all(some)) {
          statuses.add(response.status);
          await response.arrayBuffer();
        }
      }
      return statuses;
    };
    pass(10_000);
    expect([...(await statusesOf('/ai/budget?user=ada'))]).toStrictEqual([200, 429]);
    expect([...(await statusesOf('/health'))]).toStrictEqual([200]);
    pass(10_000);
    expect((await fetch(url)).status).toBe(200);
  });

  it('has a page with the buttons for it', async () => {
    const html = await (await fetch(url)).text();
    expect(html).toContain('Five wrong ones in a row');
    expect(html).toContain("setUp('login'");
  });
});

it('two processes on one Redis count together', async () => {
  const { url: redisUrl } = await freshRedis();
  // One adapter only: Express and Fastify listen on different loopback addresses, and the address is part of
  // the key.
  const both = await Promise.all([start({ redisUrl }), start({ redisUrl })]);
  const statuses: number[] = [];
  for (const { url } of [...both, ...both, ...both])
    statuses.push((await logIn(url, { email: 'ann@example.org', password: 'guess' })).status);
  expect(statuses).toStrictEqual([401, 401, 401, 401, 429, 429]);
});

it('answers 503 on both adapters while Redis is away, and tries no password', async () => {
  await using server = await startRedisServer();
  const both = await Promise.all(
    (['express', 'fastify'] as const).map((adapter) => start({ adapter, redisUrl: server.url })),
  );
  const tried = both.map(({ app }) => jest.spyOn(app.get(LoginService), 'isRight'));
  await server.kill();
  for (const { url } of both) {
    const answer = await logIn(url, { email: 'ann@example.org', password: 'correct' });
    expect([answer.status, answer.body.code]).toStrictEqual([503, 'ServiceUnavailable']);
    expect(answer.retryAfter).toMatch(/^[1-9]$/);
  }
  for (const isRight of tried) expect(isRight).not.toHaveBeenCalled();
});
