import { Logger } from '@nestjs/common';
import type { BudgetBackend } from '../../lib/budget/budget.backend.js';
import { BudgetUnavailableError } from '../../lib/budget/budget.errors.js';
import { MemoryBudgetBackend } from '../../lib/budget/memory/budget.memory-backend.js';
import { resolveBudgetDefaults } from '../../lib/budget/budget.options.js';
import { BudgetReaper } from '../../lib/budget/budget.reaper.js';
import { BudgetService } from '../../lib/budget/budget.service.js';
import { movedTime } from '../support/moved-time.js';

const EVERY_MS = 100;
const SCOPES = ['user'];
/** In this time each root comes up at least once. */
const ROUNDS_MS = 3 * EVERY_MS;

let time: ReturnType<typeof movedTime>;
beforeEach(() => {
  time = movedTime();
});
afterEach(() => time.end());

/** A service on memory. The test controls its time and the steps of its reaper. */
function start(
  reap?: (real: BudgetBackend['reap']) => BudgetBackend['reap'],
  reaper: object | false = {},
  windowMs = 1_000,
) {
  const clock = { nowMs: 1_000_000, now: () => clock.nowMs };
  const backend = new MemoryBudgetBackend({ clock, retentionMs: 1_000 });
  if (reap) backend.reap = reap(backend.reap.bind(backend));
  const told: string[] = [];
  const options = {
    limits: [{ scope: 'user', period: { windowMs }, limit: 1_000 }],
    reaper: reaper && { everyMs: EVERY_MS, ...reaper },
  };
  const budgets = new BudgetService(backend, resolveBudgetDefaults(options), {
    onExpired: (_, ids) => told.push(...ids),
  });
  const hold = async (count: number): Promise<string[]> => {
    const ids = Array.from({ length: count }, (_, i) => `hold ${i}`);
    for (const id of ids) await budgets.reserve({ scopes: SCOPES, amount: 1, id, ttlMs: 50 });
    clock.nowMs += 50;
    return ids;
  };
  return { budgets, clock, told, hold, [Symbol.asyncDispose]: () => budgets.onModuleDestroy() };
}

describe('holds that expired are told', () => {
  it('once each, of however many, and never again', async () => {
    await using app = start();
    const ids = await app.hold(250);
    await time.pass(ROUNDS_MS);
    expect(app.told).toHaveLength(250);
    await time.pass(ROUNDS_MS);
    await app.budgets.reap();
    expect(app.told.sort()).toStrictEqual(ids.sort());
  });

  it('by nobody but a caller of reap() with `reaper: false`', async () => {
    await using app = start(undefined, false);
    const ids = await app.hold(3);
    await time.pass(ROUNDS_MS);
    expect(app.told).toStrictEqual([]);
    expect(await app.budgets.reap()).toStrictEqual({ expired: ids, purged: 0 });
    expect(app.told).toStrictEqual(ids);
  });

  it('or the log says why not, once, unless Redis is away', async () => {
    const warn = jest.spyOn(Logger.prototype, 'warn').mockImplementation();
    let code: 'NetworkTimeout' | 'Internal' = 'NetworkTimeout';
    let rounds = 0;
    await using app = start(() => () => {
      rounds++;
      return Promise.reject(new BudgetUnavailableError({ code, message: 'A foreign value is in the way.' }));
    });
    await app.hold(1);
    while (rounds < 1) await time.pass(20);
    expect(warn.mock.calls).toEqual([]);
    code = 'Internal';
    while (rounds < 3) await time.pass(20);
    expect(warn.mock.calls).toEqual([
      [
        expect.stringMatching(
          /^BUDGET_REAPER_FAILED: The reaper of budgets failed, and tries again .*\. A foreign value is in the way\./,
        ),
      ],
    ]);
    warn.mockRestore();
  });

  it('though the next step of a reap() fails, or was aborted', async () => {
    let steps = 0;
    await using app = start(
      (real) => async (request) => {
        if (++steps === 2) throw new BudgetUnavailableError({ code: 'NetworkTimeout', message: 'too slow' });
        return real(request);
      },
      false,
    );
    const ids = await app.hold(150);
    await expect(app.budgets.reap()).rejects.toThrow('too slow');
    expect(app.told).toStrictEqual(ids.slice(0, 100));
    await app.budgets.reap();
    expect(app.told).toStrictEqual(ids);
  });

  it('though the answer came too late for whoever asked', async () => {
    await using app = start((real) => async (request) => {
      const step = await real(request);
      if (step.expired.length === 0) return step;
      setTimeout(() => request.onLate?.(step), 10);
      throw new BudgetUnavailableError({ code: 'NetworkTimeout', message: 'too slow' });
    });
    const ids = await app.hold(2);
    await time.pass(ROUNDS_MS);
    expect(app.told).toStrictEqual(ids);
    await time.pass(ROUNDS_MS);
    expect(app.told).toStrictEqual(ids);
  });

  it('before a shutdown is over that found a step on its way', async () => {
    let isReaping = false;
    const app = start((real) => async (request) => {
      const step = await real(request);
      isReaping = true;
      await new Promise((resolve) => setTimeout(resolve, 50));
      return step;
    });
    const ids = await app.hold(1);
    while (!isReaping) await time.pass(20);
    await Promise.all([app.budgets.onModuleDestroy(), time.pass(50)]);
    expect(app.told).toStrictEqual(ids);
  });

  it('though there was nothing to do in their root for a long time', async () => {
    const steps: (number | null)[] = [];
    await using app = start(
      (real) => async (request) => {
        const step = await real(request);
        steps.push(step.nextInMs);
        return step;
      },
      {},
      3_600_000,
    );
    await app.budgets.charge({ scopes: SCOPES, amount: 1, id: 'a' });
    app.clock.nowMs += 1_001; // The charge is purged now. Only its window is left, for another hour.
    await time.pass(ROUNDS_MS);
    expect(steps.at(-1)).toBeGreaterThan(1_000_000);
    const ids = await app.hold(1);
    await time.pass(ROUNDS_MS);
    expect(app.told).toStrictEqual(ids);
  });

  it('though they were made while their root was found empty', async () => {
    let made: Promise<string[]> | undefined;
    await using app = start((real) => async (request) => {
      const step = await real(request);
      if (step.nextInMs === null) await (made ??= app.hold(1));
      return step;
    });
    await app.budgets.charge({ scopes: SCOPES, amount: 1, id: 'a' });
    app.clock.nowMs += 10_000;
    await time.pass(ROUNDS_MS);
    expect(app.told).toStrictEqual(['hold 0']);
  });

  it('after rounds that failed', async () => {
    let steps = 0;
    await using app = start((real) => async (request) => {
      if (++steps <= 2) throw new BudgetUnavailableError({ code: 'ServiceUnavailable', message: 'away' });
      return real(request);
    });
    const ids = await app.hold(1);
    await time.pass(2 * EVERY_MS + ROUNDS_MS);
    expect(app.told).toStrictEqual(ids);
    expect(steps).toBeGreaterThan(2);
  });
});

describe('rounds', () => {
  /** How long a reaper waits after its start, with this random number. */
  function firstRoundAfter(chance: number): unknown {
    const random = jest.spyOn(Math, 'random').mockReturnValue(chance);
    const timer = jest.spyOn(globalThis, 'setTimeout');
    const reaper = new BudgetReaper(
      new MemoryBudgetBackend({ retentionMs: 1 }),
      1_000,
      () => {},
      () => {},
    );
    const [, ms] = timer.mock.calls[0] ?? [];
    void reaper.stop();
    random.mockRestore();
    timer.mockRestore();
    return ms;
  }

  it('come up to a fifth sooner, by chance, so that processes do not go in step', () => {
    expect(firstRoundAfter(0)).toBe(1_000);
    expect(firstRoundAfter(0.5)).toBeCloseTo(900);
    expect(firstRoundAfter(0.999)).toBeCloseTo(800.2);
  });

  it('ask for no root that nobody here has used', async () => {
    const asked: string[] = [];
    await using app = start((real) => async (request) => {
      asked.push(request.root);
      return real(request);
    });
    await time.pass(2 * EVERY_MS);
    expect(asked).toStrictEqual([]);
    await app.budgets.charge({ root: 'acme', scopes: SCOPES, amount: 1, id: 'a' });
    await app.budgets.balance({ root: 'other', scope: 'user' });
    app.clock.nowMs += 10_000;
    await time.pass(ROUNDS_MS);
    expect(asked.length).toBeGreaterThan(0);
    expect(new Set(asked)).toStrictEqual(new Set(['acme']));
  });

  it('leave a root alone that nothing is left of, until it is used again', async () => {
    let steps = 0;
    await using app = start((real) => async (request) => {
      steps++;
      return real(request);
    });
    await app.budgets.charge({ scopes: SCOPES, amount: 1, id: 'a' });
    app.clock.nowMs += 10_000;
    await time.pass(ROUNDS_MS);
    expect(steps).toBeGreaterThan(0);
    await time.pass(2 * EVERY_MS);
    const before = steps;
    await time.pass(ROUNDS_MS);
    expect(steps).toBe(before);
    await app.budgets.charge({ scopes: SCOPES, amount: 1, id: 'b' });
    app.clock.nowMs += 10_000;
    await time.pass(ROUNDS_MS);
    expect(steps).toBeGreaterThan(before);
  });
});
