import { setTimeout as sleep } from 'node:timers/promises';
import { Test } from '@nestjs/testing';
import { BudgetService, SyncGuardModule, type SyncGuardOptions } from 'nestjs-syncguard';
import { eventually } from '../support/eventually.js';
import { freshRedis } from '../support/redis.js';

describe.each(['memory', 'Redis'])('maxHoldMs of a budget on %s', (kind) => {
  let budgets: BudgetService;
  let close: () => Promise<void>;
  const start = async (budget: SyncGuardOptions['budget'] = {}): Promise<void> => {
    const limits = [{ scope: 'org', period: 'lifetime' as const, limit: 100 }];
    const redis = kind === 'Redis' ? (await freshRedis()).url : undefined;
    const module = await Test.createTestingModule({
      imports: [SyncGuardModule.forRoot({ redis, budget: { limits, ...budget } })],
    }).compile();
    await module.init();
    budgets = module.get(BudgetService);
    close = () => module.close();
  };
  afterEach(() => close());

  const balance = async (): Promise<unknown[]> => {
    const [org] = await budgets.balance({ scope: 'org' });
    return [org?.committed, org?.reserved];
  };

  it.each([
    ['of the module', { maxHoldMs: 400 }, {}],
    ['of the call', {}, { maxHoldMs: 400 }],
  ])('%s ends a hold whose body hangs, and counts its cost late', async (_, ofModule, ofCall) => {
    await start(ofModule);
    let finish!: () => void;
    const running = budgets.run(() => new Promise<void>((resolve) => (finish = resolve)), {
      scopes: ['org'],
      amount: 60,
      actual: () => 30,
      ...ofCall,
    });
    await eventually(async () => expect(await balance()).toEqual([0, 60]));
    await eventually(async () => expect(await balance()).toEqual([0, 0]));
    finish();
    await running;
    expect(await balance()).toEqual([30, 0]);
  });

  it('is no shorter for short TTLs, which are extended until then', async () => {
    await start();
    const running = budgets.run(() => sleep(1_000), {
      scopes: ['org'],
      amount: 60,
      ttlMs: 300,
      maxHoldMs: 60_000,
    });
    await sleep(700);
    expect(await balance()).toEqual([0, 60]);
    await running;
  });

  it.each([0, -1, 1.5, '1'])('refuses %p', async (maxHoldMs) => {
    await start();
    await expect(
      budgets.run(() => 1, { scopes: ['org'], amount: 1, maxHoldMs: maxHoldMs as number }),
    ).rejects.toMatchObject({ code: 'InvalidArgument' });
    expect(() => SyncGuardModule.forRoot({ budget: { maxHoldMs: maxHoldMs as number } })).toThrow(
      /budget.maxHoldMs/,
    );
    expect(() => SyncGuardModule.forRoot({ budget: { idleMs: maxHoldMs as number } })).toThrow(
      /budget.idleMs/,
    );
    expect(() => SyncGuardModule.forRoot({ lock: { idleMs: maxHoldMs as number } })).toThrow(/lock.idleMs/);
  });
});
