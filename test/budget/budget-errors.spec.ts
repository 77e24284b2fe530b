import { BudgetExceededError } from 'nestjs-syncguard';

const violation = (numbers: {
  committed: number;
  reserved: number;
  available: number;
  requested: number;
  credits?: number;
}) => ({
  scope: 'user:ada',
  period: { every: 'day' } as const,
  limit: 100,
  credits: 0,
  resetAtMs: 0,
  ...numbers,
});

describe('BudgetExceededError', () => {
  it.each([
    [{ every: 'day' } as const, 'user per day'],
    [{ windowMs: 20_000 }, 'user per 20 s'],
    ['lifetime' as const, 'user in all'],
  ])('names the limit of %j, and of the scope no more than its type', (period, name) => {
    const spent = violation({ committed: 100, reserved: 0, available: 0, requested: 1 });
    const error = new BudgetExceededError({
      ok: false,
      reason: 'exceeded',
      violations: [{ ...spent, period }],
      retryAtMs: null,
      retryAfterMs: null,
    });
    expect(error.message).toBe(`The request exceeds the budget: ${name}.`);
    expect(JSON.stringify(error.context)).not.toContain('ada');
  });
});
