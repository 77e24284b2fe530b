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
/** The seconds until it is worth trying again, which error and context must agree on. */
function retryAfterOf(numbers: Parameters<typeof violation>[0]): unknown {
  const { retryAtMs, context } = new BudgetExceededError({
    ok: false,
    reason: 'exceeded',
    violations: [violation(numbers)],
    retryAtMs: 7_200_000,
    retryAfterMs: 3_600_000,
  });
  expect(retryAtMs).toBe(3_600_000 + 1_000 * Number(context.retryAfter));
  return context.retryAfter;
}

describe('BudgetExceededError', () => {
  it('asks to come back soon where only running calls stand in the way', () => {
    expect(retryAfterOf({ committed: 0, reserved: 100, available: 0, requested: 50 })).toBe(1);
    expect(retryAfterOf({ committed: 50, reserved: 30, available: 20, requested: 50 })).toBe(1);
  });

  it('counts credits, also where a call in flight holds the rest of them', () => {
    const bought = { credits: 500, committed: 300, reserved: 300, available: 0 };
    expect(retryAfterOf({ ...bought, requested: 10 })).toBe(1);
    expect(retryAfterOf({ ...bought, requested: 301 })).toBe(3_600);
  });

  it('asks to wait for the window where it is spent', () => {
    expect(retryAfterOf({ committed: 95, reserved: 20, available: 0, requested: 10 })).toBe(3_600);
    expect(retryAfterOf({ committed: 100, reserved: 0, available: 0, requested: 1 })).toBe(3_600);
  });

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
