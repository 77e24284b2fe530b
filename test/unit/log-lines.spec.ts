import 'reflect-metadata';
import { Logger } from '@nestjs/common';
import { hashKey, LockError, LockService, minutes } from 'nestjs-syncguard';
import { BudgetUnavailableError } from '../../lib/budget/budget.errors.js';
import { MemoryBudgetBackend } from '../../lib/budget/memory/budget.memory-backend.js';
import { resolveBudgetDefaults } from '../../lib/budget/budget.options.js';
import { BudgetService } from '../../lib/budget/budget.service.js';
import { AbuseLimiterService } from '../../lib/limit/abuse-limiter.service.js';
import { MemoryLimitBackend } from '../../lib/limit/memory/limit.memory-backend.js';
import { MemoryLockBackend } from '../../lib/lock/memory/lock.memory-backend.js';
import { resolveOptions } from '../../lib/module/syncguard.options.js';

const AWAY = { code: 'ServiceUnavailable', message: 'Redis cannot be reached.' } as const;

/** Fails once, as a short outage of Redis does. */
const failOnce = (error: Error): (() => Promise<never>) => jest.fn(() => Promise.reject(error));

describe('a line of the log', () => {
  const lines: string[] = [];
  beforeEach(() => {
    lines.length = 0;
    for (const level of ['warn', 'debug'] as const)
      jest.spyOn(Logger.prototype, level).mockImplementation((...[line]) => void lines.push(String(line)));
  });
  afterEach(() => jest.restoreAllMocks());

  it('says which lock could not be given back, by the hash that events have, and why', async () => {
    const backend = new MemoryLockBackend();
    const locks = new LockService(backend, resolveOptions());
    jest.spyOn(backend, 'release').mockImplementationOnce(failOnce(new LockError(AWAY)));
    expect(await locks.lock(() => 'done', { key: 'order:7' })).toBe('done');
    await locks.onModuleDestroy();
    expect(lines).toStrictEqual([
      `The lock ${hashKey('order:7')} could not be released yet. SyncGuard tries again in the background. Redis cannot be reached.`,
    ]);
  });

  it('says which budget could not be settled, and why', async () => {
    const backend = new MemoryBudgetBackend({ retentionMs: 60_000 });
    const limits = [{ scope: 'user', period: 'lifetime' as const, limit: 10 }];
    const budgets = new BudgetService(backend, resolveBudgetDefaults({ limits, reaper: false }));
    const finalize = jest.spyOn(backend, 'finalize');
    for (let i = 0; i < 3; i++) finalize.mockImplementationOnce(failOnce(new BudgetUnavailableError(AWAY)));
    expect(await budgets.run(() => 'done', { scopes: ['user'], amount: 1, id: 'call 7' })).toBe('done');
    await budgets.onModuleDestroy();
    expect(lines).toStrictEqual([
      `Budget operation ${hashKey('call 7')} could not be settled yet, and is retried in the background: Redis cannot be reached.`,
    ]);
  });

  it.each([
    [1, '1 lock'],
    [2, '2 locks'],
  ])('counts what a shutdown does not wait for: %i', async (count, text) => {
    const locks = new LockService(new MemoryLockBackend(), resolveOptions({ shutdown: { drainMs: 10 } }));
    for (let i = 0; i < count; i++) await locks.acquire({ key: `order:${i}`, ttlMs: minutes(1) });
    await locks.onModuleDestroy();
    expect(lines).toStrictEqual([`Still in use after 10 ms of shutdown, and left to their TTLs: ${text}.`]);
  });

  it('says who was denied by the hash that events have, never by name', async () => {
    const backend = new MemoryLimitBackend();
    const limiter = new AbuseLimiterService(backend, backend, resolveOptions());
    const policy = { name: 'login', limit: 1, windowMs: 60_000 };
    for (let i = 0; i < 2; i++) await limiter.check('ann@example.org', policy);
    expect(lines).toStrictEqual([
      `limit login ${hashKey('ann@example.org')}: denied (temp) for 60 s, 1 in the short window, 1 in the long`,
    ]);
  });
});
