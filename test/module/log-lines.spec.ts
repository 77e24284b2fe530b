import 'reflect-metadata';
import { Logger } from '@nestjs/common';
import { HttpAdapterHost } from '@nestjs/core';
import { ExecutionContextHost } from '@nestjs/core/helpers/execution-context-host.js';
import { hashKey, LockError, LockService, minutes, SyncGuardExceptionFilter } from 'nestjs-syncguard';
import { BudgetUnavailableError } from '../../lib/budget/budget.errors.js';
import { MemoryBudgetBackend } from '../../lib/budget/memory/budget.memory-backend.js';
import { resolveBudgetDefaults } from '../../lib/budget/budget.options.js';
import { BudgetService } from '../../lib/budget/budget.service.js';
import { AbuseLimiterService } from '../../lib/limit/abuse-limiter.service.js';
import { everyMinute } from '../../lib/core/every-minute.js';
import { tooManyWaiting } from '../../lib/lock/lock.errors.js';
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
      `LOCK_NOT_RELEASED: The lock ${hashKey('order:7')} could not be released yet. SyncGuard tries again in the background. Redis cannot be reached.`,
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
      `BUDGET_NOT_SETTLED: Budget operation ${hashKey('call 7')} could not be settled yet, and is retried in the background. Redis cannot be reached.`,
    ]);
  });

  it.each([
    [1, '1 lock is'],
    [2, '2 locks are'],
  ])('counts what a shutdown does not wait for: %i', async (count, text) => {
    const locks = new LockService(new MemoryLockBackend(), resolveOptions({ shutdown: { drainMs: 10 } }));
    for (let i = 0; i < count; i++) await locks.acquire({ key: `order:${i}`, ttlMs: minutes(1) });
    await locks.onModuleDestroy();
    expect(lines).toStrictEqual([
      `SHUTDOWN_LOCKS_IN_USE: After 10 ms of shutdown ${text} still in use. They expire by their TTLs. To wait longer, raise \`shutdown.drainMs\`.`,
    ]);
  });

  it('tells of refused calls once a minute, however many they are, and then how many were left out', () => {
    const line = everyMinute((text) => void lines.push(text));
    const nowMs = performance.now();
    const clock = jest.spyOn(performance, 'now');
    for (const atMs of [0, 1, 59_999, 60_000, 119_999, 180_000, 240_000]) {
      clock.mockReturnValue(nowMs + atMs);
      line(String(atMs));
    }
    clock.mockRestore();
    const more = (atMs: number, count: number): string => `${atMs} (${count} more since the last line)`;
    expect(lines.splice(0)).toStrictEqual(['0', more(60_000, 2), more(180_000, 1), '240000']);

    const filter = new SyncGuardExceptionFilter(new HttpAdapterHost());
    const host = new ExecutionContextHost([]);
    host.setType('rpc');
    for (let i = 0; i < 1_000; i++) filter.catch(tooManyWaiting(['order:7']), host);
    filter.catch(new LockError(AWAY), host);
    expect(lines).toStrictEqual([
      expect.stringMatching(/^TooManyWaiting: /),
      'ServiceUnavailable: Redis cannot be reached.',
    ]);
  });

  it('says who was denied by the hash that events have, never by name', async () => {
    const backend = new MemoryLimitBackend();
    const limiter = new AbuseLimiterService(backend, backend, resolveOptions());
    const policy = { name: 'login', limit: 1, windowMs: 60_000 };
    for (let i = 0; i < 2; i++) await limiter.check('ann@example.org', policy);
    const tiers = { windowMs: 60_000, threshold: 2, blockMs: 60_000 };
    for (let i = 0; i < 2; i++) await limiter.check('bob', { name: 'otp', temp: tiers, long: tiers });
    expect(lines).toStrictEqual([
      `limit login ${hashKey('ann@example.org')}: denied (temp) for 60 s, 1 in the window`,
      `limit otp ${hashKey('bob')}: denied (long) for 60 s, 2 in the short window, 2 in the long`,
    ]);
  });
});
