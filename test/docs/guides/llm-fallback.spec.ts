import { BudgetService } from 'nestjs-syncguard';
import { stage } from './instances.js';

describe('docs/guides/llm-fallback.md', () => {
  const on = stage();

  const text = 'an answer';
  const failing = (usd: number) => async () => ({ text: '', usd });
  const answering = async () => ({ text, usd: 0.02 });
  const away = () => Promise.reject(Object.assign(new Error('away'), { code: 'ECONNREFUSED' }));

  it.each([
    ['both are asked', undefined, 32_000],
    ['the first one answers', [answering], 20_000],
    ['the second one fails, too', [failing(0.012), away], 12_000],
  ])('where %s, their costs are added', async (_, providers, committed) => {
    const { AnswersModule, Answers } = await import('./llm-fallback/answers.js');
    const { app } = await on.start(AnswersModule, (builder) =>
      providers ? builder.overrideProvider('PROVIDERS').useValue(providers) : builder,
    );
    const answer = await app
      .get(Answers)
      .ask('ann', 'hi')
      .catch(() => undefined);
    expect(answer?.text).toBe(committed === 12_000 ? undefined : text);
    const [balance] = await app.get(BudgetService).balance({ scope: 'user:ann' });
    expect(balance).toMatchObject({ committed, reserved: 0 });
  });

  it('rounds each price to a whole number, and the plain product is none', async () => {
    const { microUsd } = await import('./llm-fallback/answers.js');
    const prices = Array.from({ length: 10_000 }, (_, i) => i / 10_000);
    expect(prices.map(microUsd).every(Number.isSafeInteger)).toBe(true);
    expect(prices.some((usd) => !Number.isSafeInteger(usd * 1e6))).toBe(true);
    expect(0.0079 * 1e6).toBe(7900.000000000001);
  });
});
