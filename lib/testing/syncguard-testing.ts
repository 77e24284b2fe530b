import type { BudgetService } from '../budget/budget.service.js';
import type { LockService } from '../lock/lock.service.js';
import { SyncGuardConfigError } from '../syncguard.errors.js';
import { BUDGET_SERVICE, LOCK_SERVICE } from '../syncguard.tokens.js';
import type { FakeClock } from './fake-clock.js';
import type { SwitchedBackends } from './switched-backends.js';

/**
 * What a test can do to SyncGuard: move its clock, and make happen what is hard to bring about. Get it from the
 * module that `SyncGuardTestingModule.forRoot()` was imported in.
 *
 * @example
 * const testing = module.get(SyncGuardTesting);
 * testing.contend('order:7');
 * await expect(orders.pay('7')).rejects.toMatchObject({ code: 'AcquisitionTimeout' });
 */
export class SyncGuardTesting {
  /** The time that all backends go by. */
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
   * Until `restore()` somebody else holds this lock: who asks for it is told that it is locked. `lock()` and
   * `@WithLock()` wait for it as ever, in real time: set `timeoutMs` to what the test may take. Who holds it
   * already keeps it.
   */
  contend(key: string): void {
    this.#backends.contend(key);
  }

  /** `contend` for every lock. */
  contendAll(): void {
    this.#backends.contendAll();
  }

  /**
   * Takes a lock from its holder, as if Redis had lost it: others can have it now. A body of `lock()` or `@WithLock()`
   * learns of it at once, not only at its next renewal: its `signal` aborts, `assertHeld()` throws. The holder of a
   * handle is told when it extends or releases it.
   *
   * @throws SyncGuardConfigError when nobody holds it
   */
  async lose(key: string): Promise<void> {
    const lockId = await this.#backends.lose(key);
    if (lockId === undefined)
      throw new SyncGuardConfigError('lose(key): nobody holds this lock.', {
        hint: 'Wait until the body runs, and pass the key as the decorator makes it.',
      });
    this.#locks.lose(lockId);
  }

  /** `lose` for every lock that is held; none is fine. */
  async loseLocks(): Promise<void> {
    for (const lockId of await this.#backends.loseAll()) this.#locks.lose(lockId);
  }

  /**
   * Until `restore()` every operation of locks, limits, counters, budgets and secrets fails as it does while Redis
   * is away, with the code `ServiceUnavailable`, but at once instead of after `commandTimeoutMs`. Limits do what
   * their `onError` says, and health is down. What was stored is still there afterwards.
   */
  makeUnreachable(): void {
    this.#backends.makeUnreachable();
  }

  /** Ends contention and outage. The clock stays, and so does what was lost. */
  restore(): void {
    this.#backends.restore();
  }

  /**
   * Gives an instance that Nest did not build (`new`) the services that its `@WithLock()` and `@WithBudget()`
   * methods need. Gives the same instance.
   *
   * @example const orders = testing.bind(new OrdersService(fakePayments));
   */
  bind<Instance extends object>(instance: Instance): Instance {
    // Where a decorator stands, the class has an accessor of that name.
    for (const [token, service] of this.#services)
      if (token in instance) (instance as Record<symbol, unknown>)[token] = service;
    return instance;
  }
}
