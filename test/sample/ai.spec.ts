import type { INestApplication } from '@nestjs/common';
import { type Balance, BudgetService } from 'nestjs-syncguard';
import { FakeModel } from '../../sample/all/ai/fake-model.js';
import { startRedisServer } from '../support/redis-server.js';
import { freshRedis, workerRedis } from '../support/redis.js';
import { closeAll, SETTINGS, start } from './sample-app.js';

interface Answer {
  status: number;
  body: Record<string, unknown>;
  retryAfter: string | null;
}

async function request(url: string, body?: unknown): Promise<Answer> {
  const headers = { 'Content-Type': 'application/json' };
  const init = { method: 'POST', headers, body: typeof body === 'string' ? body : JSON.stringify(body) };
  const response = await fetch(url, body === undefined ? {} : init);
  return {
    status: response.status,
    body: (await response.json()) as Record<string, unknown>,
    retryAfter: response.headers.get('retry-after'),
  };
}

const PROMPT = 'Four tokens long';
const HOUR_MS = 3_600_000;

/** The time on the server, and in this process for the memory backend. */
let nowMs: number;
function setTime(epochMs: number): void {
  nowMs = epochMs;
  workerRedis().clock.hold(epochMs);
}

/** Two hours before a new day, another day before a new month, in a year in which nothing is spent yet. */
let year = 2027;
let startMs: number;
beforeEach(() => {
  startMs = Date.UTC(year++, 0, 30, 22);
  setTime(startMs);
});

beforeAll(async () => {
  await freshRedis();
  jest.spyOn(Date, 'now').mockImplementation(() => nowMs);
});

afterAll(async () => {
  jest.restoreAllMocks();
  await closeAll();
});

describe.each(SETTINGS)(
  'the language model of the sample app on $adapter and $backend',
  ({ adapter, backend }) => {
    let app: INestApplication;
    let url: string;
    const ask = (user: string, maxTokens: number): Promise<Answer> =>
      request(`${url}/ai/complete`, { user, prompt: PROMPT, maxTokens });
    /**
     * Committed and reserved in the order of `/ai/budget`: the day and the month of the user, the team and
     * the org.
     */
    const amountsOf = (body: Answer['body']): [number, number][] =>
      (body.budget as Balance[]).map(({ committed, reserved }) => [committed, reserved]);
    const amounts = async (user: string): Promise<[number, number][]> =>
      amountsOf((await request(`${url}/ai/budget?user=${user}`)).body);

    beforeAll(async () => {
      ({ app, url } = await start({
        adapter,
        redisUrl: backend === 'redis' ? workerRedis().url : undefined,
      }));
    });

    beforeEach(() => {
      app.get(FakeModel).answerMs = 10;
    });

    afterEach(async () => {
      expect(await app.get(BudgetService).verify()).toStrictEqual({
        ok: true,
        problems: [],
        quarantined: [],
      });
    });

    it('answers with what was used, and what is left of every budget', async () => {
      const { status, body } = await ask('ada', 800);
      expect(status).toBe(200);
      expect(body).toMatchObject({
        text: expect.any(String) as string,
        usage: { prompt: 4, completion: 480, total: 484 },
      });
      const day = { startMs: startMs - 22 * HOUR_MS, endMs: startMs + 2 * HOUR_MS };
      const month = { startMs: day.startMs - 29 * 24 * HOUR_MS, endMs: day.endMs + 24 * HOUR_MS };
      const used = { credits: 0, committed: 484, reserved: 0 };
      const balance = (scope: string, every: string, limit: number): object => ({
        ...{ scope, period: { every }, window: every === 'day' ? day : month, limit },
        ...{ ...used, available: limit - 484 },
      });
      expect(body.budget).toStrictEqual([
        balance('user:ada', 'day', 3_000),
        balance('user:ada', 'month', 20_000),
        balance('team:research', 'day', 6_000),
        balance('team:research', 'month', 60_000),
        balance('org', 'day', 12_000),
        balance('org', 'month', 200_000),
      ]);
      expect((await request(`${url}/ai/budget?user=ada`)).body).toStrictEqual({ budget: body.budget });
    });

    it('answers 429 over the budget of a day, says which it is, and lets in when the new day begins', async () => {
      expect((await ask('ada', 2_900)).status).toBe(200);
      expect(await ask('ada', 2_000)).toStrictEqual({
        status: 429,
        body: {
          statusCode: 429,
          code: 'BudgetExceeded',
          message: 'The request exceeds the budget: user per day.',
          context: {
            retryAfter: (2 * HOUR_MS) / 1000,
            retryAtMs: expect.any(Number) as unknown,
            violations: [
              {
                ...{
                  scope: 'user',
                  period: { every: 'day' },
                  credits: 0,
                  limit: 3_000,
                  reserved: 0,
                  available: 3_000 - 1_744,
                },
                ...{ requested: 2_004, resetAtMs: startMs + 2 * HOUR_MS },
              },
            ],
          },
        },
        retryAfter: '7200',
      });
      setTime(startMs + 2 * HOUR_MS - 1);
      expect((await ask('ada', 2_000)).status).toBe(429);
      setTime(startMs + 2 * HOUR_MS);
      expect((await ask('ada', 2_000)).status).toBe(200);
      const [day, month] = await amounts('ada');
      expect([day, month]).toStrictEqual([
        [1_204, 0],
        [1_744 + 1_204, 0],
      ]);
    });

    it('answers 402 where no new day will help: one request for more than a whole day has', async () => {
      const { status, retryAfter, body } = await ask('ada', 4_000);
      expect([status, retryAfter]).toStrictEqual([402, null]);
      expect(body.context).toMatchObject({ violations: [{ scope: 'user', limit: 3_000, requested: 4_004 }] });
      expect(await amounts('ada')).toStrictEqual(Array(6).fill([0, 0]));
    });

    it('spends nothing when the model fails', async () => {
      jest.spyOn(app.get(FakeModel), 'complete').mockRejectedValueOnce(new Error('The model is away.'));
      expect((await ask('ada', 800)).status).toBe(500);
      expect(await amounts('ada')).toStrictEqual(Array(6).fill([0, 0]));
    });

    it('refuses with 400 what is no question, and asks nobody', async () => {
      const complete = jest.spyOn(app.get(FakeModel), 'complete').mockClear();
      const good = { user: 'ada', prompt: PROMPT, maxTokens: 10 };
      const bad: unknown[] = [
        ...['', 'a b', 'a:b', 'ü', '{0}', 'x'.repeat(65), 7, ['ada']].map((user) => ({ ...good, user })),
        ...['', 'x'.repeat(2_001), 7, null].map((prompt) => ({ ...good, prompt })),
        ...[0, -1, 1.5, 4_001, '10', null].map((maxTokens) => ({ ...good, maxTokens })),
        ...[{}, [], '{"user":'],
      ];
      const answers = await Promise.all(bad.map((body) => request(`${url}/ai/complete`, body)));
      expect(answers.map(({ status }, i) => [bad[i], status])).toStrictEqual(bad.map((body) => [body, 400]));
      for (const query of ['', '?user=', '?user=a%20b', '?user=ada&user=bob'])
        expect([query, (await request(`${url}/ai/budget${query}`)).status]).toStrictEqual([query, 400]);
      expect(complete).not.toHaveBeenCalled();
    });

    it('takes what is just within the bounds', async () => {
      const body = { user: 'x_-'.padEnd(64, 'X'), prompt: 'x'.repeat(2_000), maxTokens: 1 };
      expect((await request(`${url}/ai/complete`, body)).status).toBe(200);
    });
  },
);

it('answers 503 on both adapters while Redis is away, and does not ask the model', async () => {
  await using server = await startRedisServer();
  const both = await Promise.all(
    (['express', 'fastify'] as const).map((adapter) => start({ adapter, redisUrl: server.url })),
  );
  const asked = both.map(({ app }) => jest.spyOn(app.get(FakeModel), 'complete'));
  await server.kill();
  const body = { user: 'ada', prompt: PROMPT, maxTokens: 800 };
  const answers = await Promise.all(both.map(({ url }) => request(`${url}/ai/complete`, body)));
  expect(answers.map(({ status }) => status)).toStrictEqual([503, 503]);
  for (const complete of asked) expect(complete).not.toHaveBeenCalled();
});
