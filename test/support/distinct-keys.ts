import { setImmediate as nextTurn } from 'node:timers/promises';
import type { DynamicModule } from '@nestjs/common';
import { Test, type TestingModule } from '@nestjs/testing';
import {
  AbuseLimiterService,
  BudgetService,
  CounterService,
  LockService,
  SecretService,
} from 'nestjs-syncguard';

/** What is kept is kept for so long. */
export const KEPT_MS = 1_000;
/** After so long nothing is: the keys of a budget outlive what is in them by an hour. */
export const ALL_OVER_MS = 2 * 3_600_000;

const AT_ONCE = 50;

export type Operation = (i: number) => Promise<unknown>;

interface Services {
  readonly locks: LockService;
  readonly limiter: AbuseLimiterService;
  readonly counters: CounterService;
  readonly budgets: BudgetService;
  readonly secrets: SecretService;
}

/** What uses a key of its own every time, of each feature. */
const features: Record<string, (services: Services) => Operation> = {
  locks:
    ({ locks }) =>
    async (i) => {
      const lock = await locks.acquire({ key: `order:${i}`, ttlMs: KEPT_MS });
      if (lock.ok && i % 2) await lock.release();
    },
  limits: ({ limiter }) => {
    const policies = [
      { name: 'log', limit: 5, windowMs: KEPT_MS },
      { name: 'window', limit: 5, windowMs: KEPT_MS, algorithm: 'fixed-window' as const },
      { name: 'block', limit: 1, windowMs: KEPT_MS, blockMs: KEPT_MS },
    ];
    return async (i) => {
      const policy = policies[i % policies.length] as (typeof policies)[number];
      for (let n = 0; n < 2; n++) await limiter.check(`user:${i}`, policy);
    };
  },
  counters:
    ({ counters }) =>
    (i) =>
      counters.increment(`count:${i}`, { max: 5, windowMs: KEPT_MS, id: `call:${i}` }),
  'budgets of one root':
    ({ budgets }) =>
    async (i) => {
      const hold = await budgets.reserve({
        root: 'tenant',
        scopes: [`user:${i}`],
        amount: 5,
        ttlMs: KEPT_MS,
      });
      if (hold.ok && i % 2) await budgets.finalize(hold, 3);
    },
  'budgets of many roots':
    ({ budgets }) =>
    async (i) => {
      const hold = await budgets.reserve({ root: `tenant:${i}`, scopes: ['org'], amount: 5, ttlMs: KEPT_MS });
      if (hold.ok && i % 2) await budgets.finalize(hold, 3);
    },
  secrets:
    ({ secrets }) =>
    async (i) => {
      const { id } = await secrets.create({ payload: `secret ${i}`, views: 2, ttlMs: KEPT_MS });
      await secrets.view(id);
      if (i % 2) await secrets.view(id);
    },
};

export const distinctKeyFeatures = Object.keys(features);

const period = { windowMs: KEPT_MS };
export const distinctKeyOptions = {
  commandTimeoutMs: 10_000,
  limit: { commandTimeoutMs: 10_000 },
  budget: {
    limits: ['user', 'org'].map((scope) => ({ scope, period, limit: 100 })),
    retentionMs: KEPT_MS,
    reaper: { everyMs: KEPT_MS },
  },
  secret: { tombstoneMs: 0 },
};

export async function boot(imported: DynamicModule): Promise<TestingModule> {
  const module = await Test.createTestingModule({ imports: [imported] }).compile();
  return module.init();
}

export function operationOf(name: string, module: TestingModule): Operation {
  return (features[name] as (typeof features)[string])({
    locks: module.get(LockService),
    limiter: module.get(AbuseLimiterService),
    counters: module.get(CounterService),
    budgets: module.get(BudgetService),
    secrets: module.get(SecretService),
  });
}

export async function runMany(operation: Operation, from: number, to: number): Promise<void> {
  let next = from;
  const worker = async (): Promise<void> => {
    while (next < to) {
      await operation(next++);
      if (next % AT_ONCE === 0) await nextTurn(); // Memory answers at once: timers have a turn as well.
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, worker));
}
