import type { BudgetService } from '../budget/budget.service.js';
import type { OnceService } from '../once/once.service.js';
import { ONCE_SERVICE } from '../once/route/once.decorator.js';
import type { LockService } from '../lock/lock.service.js';
import { SyncGuardConfigError, SyncGuardError } from '../core/errors.js';
import { validateKey } from '../lock/lock.validate.js';
import { BUDGET_SERVICE } from '../budget/with-budget.decorator.js';
import { LOCK_SERVICE } from '../lock/with-lock.decorator.js';
import type { FakeClock } from './fake-clock.js';
import type { Switches } from './switches.js';

/**
 * Lets a test move the clock of SyncGuard, and cause contention, losses and outages. Get it from the module that
 * imports `SyncGuardTestingModule.forRoot()`.
 *
 * @example
 * const testing = module.get(SyncGuardTesting);
 * testing.contend('order:7');
 * await expect(orders.pay('7')).rejects.toMatchObject({ code: 'AcquisitionTimeout' });
 */
export class SyncGuardTesting {
  /** @internal */
  constructor(
    /** The clock of all backends. */
    readonly clock: FakeClock,
    private readonly switches: Switches,
    private readonly locks: LockService,
    private readonly budgets: BudgetService,
    private readonly once: OnceService,
  ) {}

  /**
   * Makes a lock look held by another caller until `restore()`: `acquire` returns `locked`. `lock()` and `@WithLock()`
   * wait for it in real time, so set `timeoutMs` to what the test may take. A caller that already holds the lock keeps
   * it.
   */
  contend(key: string): void {
    this.switches.contended.add(validateKey(key));
  }

  /** `contend` for every lock. */
  contendAll(): void {
    this.switches.allContended = true;
  }

  /**
   * Takes a lock from its holder, as if Redis had lost it. Others can acquire it now. A body of `lock()` or
   * `@WithLock()` learns of it at once and not only at its next renewal: its `signal` aborts, and `assertHeld()`
   * throws. The owner of a handle learns of it when it extends or releases the lock.
   *
   * @throws SyncGuardConfigError when nobody holds the lock
   */
  async lose(key: string): Promise<void> {
    const { locks } = this.switches;
    const held = await locks.getByKeyRaw(key);
    if (!held || !(await locks.release({ lockId: held.lockId })).ok)
      throw new SyncGuardConfigError('lose(key) found no lock to take: nobody holds this key.', {
        hint: 'Wait until the body runs, and pass the key that the decorator builds.',
      });
    this.locks.lose(held.lockId);
  }

  /** Takes every lock that is held, as `lose` does. Does nothing if no lock is held. */
  async loseLocks(): Promise<void> {
    const { locks } = this.switches;
    const lost = locks.heldIds();
    await Promise.all(lost.map((lockId) => locks.release({ lockId })));
    for (const lockId of lost) this.locks.lose(lockId);
  }

  /**
   * Makes Redis unreachable until `restore()`. Every operation of locks, limits, counters, budgets, secrets and calls that are answered once then
   * fails with the code `ServiceUnavailable`, at once instead of after `commandTimeoutMs`. Limits follow their
   * `onError`, and health is down. Stored data is still there afterwards.
   */
  makeUnreachable(): void {
    this.switches.outage = new SyncGuardError({
      code: 'ServiceUnavailable',
      message: 'Redis cannot be reached.',
      hint: 'The test called makeUnreachable(). Call restore() to end it.',
    });
  }

  /** Ends contention and outage. The clock keeps its time, and lost locks stay lost. */
  restore(): void {
    this.switches.contended.clear();
    this.switches.allContended = false;
    this.switches.outage = undefined;
  }

  /**
   * Gives an instance that was built by `new` the services that its `@WithLock()`, `@WithBudget()` and `@Once()` methods need.
   * Returns the same instance.
   *
   * @example const orders = testing.bind(new OrdersService(fakePayments));
   */
  bind<Instance extends object>(instance: Instance): Instance {
    // The decorators have defined an accessor of that name on the class.
    if (LOCK_SERVICE in instance) instance[LOCK_SERVICE] = this.locks;
    if (BUDGET_SERVICE in instance) instance[BUDGET_SERVICE] = this.budgets;
    if (ONCE_SERVICE in instance) instance[ONCE_SERVICE] = this.once;
    return instance;
  }
}
