// budgets.spec.ts
import { Injectable } from '@nestjs/common';
import { Test, type TestingModule } from '@nestjs/testing';
import { hours, WithBudget } from 'nestjs-syncguard';
import { FakeClock, SyncGuardTesting, SyncGuardTestingModule } from 'nestjs-syncguard/testing';

@Injectable()
class Llm {
  @WithBudget({
    scopes: (user: string) => [`user:${user}`],
    estimate: (_user: string, maxTokens: number) => maxTokens,
  })
  async complete(user: string, maxTokens: number): Promise<string> {
    return `${maxTokens} tokens for ${user}`;
  }
}

describe('Llm', () => {
  let module: TestingModule;
  let testing: SyncGuardTesting;
  let llm: Llm;

  beforeEach(async () => {
    module = await Test.createTestingModule({
      imports: [
        SyncGuardTestingModule.forRoot({
          clock: new FakeClock(new Date('2026-01-31T23:00:00Z')),
          budget: { limits: [{ scope: 'user', period: { every: 'month' }, limit: 1_000 }] },
        }),
      ],
      providers: [Llm],
    }).compile();
    testing = module.get(SyncGuardTesting);
    llm = module.get(Llm);
  });

  afterEach(() => module.close());

  it('answers again when the next month has begun', async () => {
    await llm.complete('ada', 900);
    await expect(llm.complete('ada', 200)).rejects.toMatchObject({
      code: 'BudgetExceeded',
      retryAtMs: Date.parse('2026-02-01T00:00:00Z'),
    });

    testing.clock.advance(hours(1));
    expect(await llm.complete('ada', 200)).toBe('200 tokens for ada');
  });

  it('spends nothing that cannot be counted', async () => {
    testing.makeUnreachable();
    await expect(llm.complete('ada', 200)).rejects.toMatchObject({
      name: 'BudgetUnavailableError',
      code: 'ServiceUnavailable',
    });
  });
});
