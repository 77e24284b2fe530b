import type { BudgetService } from '../budget/budget.service.js';
import type { LockService } from '../lock/lock.service.js';
import { SyncGuardConfigError } from '../core/errors.js';
import { BUDGET_SERVICE } from '../budget/with-budget.decorator.js';
import { LOCK_SERVICE } from '../lock/with-lock.decorator.js';
import type { FakeClock } from './fake-clock.js';
import type { SwitchedBackends } from './switched-backends.js';

/**
 * Lets a test move the clock of SyncGuard, and cause contention, losses and outages. Get it from the module
 * that imports `SyncGuardTestingModule.forRoot()`.
 *
 * @example
 * const testing = module.get(SyncGuardTesting);
 * testing.contend('order:7');
 * await expect(orders.pay('7')).rejects.toMatchObject({ code: 'AcquisitionTimeout' });
 */
export class SyncGuardTesting {
  /** The clock of all backends. */
  readonly clock: FakeClock;
  readonly #backends: SwitchedBackends;
  readonly #locks: LockService;
  readonly #services: ReadonlyMap<symbol, LockService | BudgetService>;

  /** @internal */
  constructor(clock: FakeClock, backends: SwitchedBackends, locks: LockService, budgets: BudgetService) {
    this.clock = clock;
    this.#backends = backends;
    this.#locks = locks;
    this.#services = new Map<symbol, LockService | BudgetService>([
      [LOCK_SERVICE, locks],
      [BUDGET_SERVICE, budgets],
    ]);
  }

  /**
   * Makes a lock look held by another caller until `restore()`: `acquire` returns `locked`. `lock()` and
   * `@WithLock()` wait for it in real time, so set `timeoutMs` to what the test may take. A caller that
   * already holds the lock keeps it.
   */
  contend(key: string): void {
    this.#backends.contend(key);
  }

  /** `contend` for every lock. */
  contendAll(): void {
    this.#backends.contendAll();
  }

  /**
   * Takes a lock from its holder, as if Redis had lost it. Others can acquire it now. A body of `lock()` or
   * `@WithLock()` learns of it at once and not only at its next renewal: its `signal` aborts, and
   * `assertHeld()` throws. The owner of a handle learns of it when it extends or releases the lock.
   *
   * @throws SyncGuardConfigError when nobody holds the lock
   */
  async lose(key: string): Promise<void> {
    const lockId = await this.#backends.lose(key);
    if (lockId === undefined)
      throw new SyncGuardConfigError('lose(key) found no lock to take: nobody holds this key.', {
        hint: 'Wait until the body runs, and pass the key that the decorator builds.',
      });
    this.#locks.lose(lockId);
  }

  /** Takes every lock that is held, as `lose` does. Does nothing if no lock is held. */
  async loseLocks(): Promise<void> {
    for (const lockId of await this.#backends.loseAll()) this.#locks.lose(lockId);
  }

  /**
   * Makes Redis unreachable until `restore()`. Every operation of locks, limits, counters, budgets and
   * secrets then fails with the code `ServiceUnavailable`, at once instead of after `commandTimeoutMs`.
   * Limits follow their `onError`, and health is down. Stored data is still there afterwards.
   */
  makeUnreachable(): void {
    this.#backends.makeUnreachable();
  }

  /** Ends contention and outage. The clock keeps its time, and lost locks stay lost. */
  restore(): void {
    this.#backends.restore();
  }

  /**
   * Gives an instance that was built by `new` the services that its `@WithLock()` and `@WithBudget()` methods
   * need. Returns the same instance.
   *
   * @example const orders = testing.bind(new OrdersService(fakePayments));
   */
  bind<Instance extends object>(instance: Instance): Instance {
    // The decorators have defined an accessor of that name on the class.
    for (const [token, service] of this.#services)
      if (token in instance) (instance as Record<symbol, unknown>)[token] = service;
    return instance;
  }
}
