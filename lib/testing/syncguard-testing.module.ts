import type { DynamicModule, Provider } from '@nestjs/common';
import { BudgetService } from '../budget/budget.service.js';
import { LockService } from '../lock/lock.service.js';
import { OnceService } from '../once/once.service.js';
import { SyncGuardConfigError } from '../core/errors.js';
import { SyncGuardHealthIndicator } from '../module/syncguard.health.js';
import { SYNCGUARD_OPTIONS, SyncGuardModule } from '../module/syncguard.module.js';
import {
  resolveOptions,
  type SyncGuardModuleOptions,
  type SyncGuardOptions,
} from '../module/syncguard.options.js';
import { makeParts, SYNCGUARD_PARTS } from '../module/syncguard.parts.js';
import { invalidOption } from '../core/validate.js';
import { FakeClock } from './fake-clock.js';
import { Switches } from './switches.js';
import { SyncGuardTesting } from './syncguard-testing.js';

/**
 * Options of `SyncGuardTestingModule.forRoot`: those of `SyncGuardModule.forRoot` without `redis`, and a clock.
 * `shutdown.drainMs` is 0 by default, so that no test waits for locks that it left behind.
 */
export interface SyncGuardTestingOptions extends Omit<SyncGuardModuleOptions, 'redis'> {
  /** The clock of the backends. Default: a new FakeClock, which stands at the moment when the module was created. */
  clock?: FakeClock;
}

/**
 * Replaces `SyncGuardModule` in tests: the same services and decorators on memory, with a clock that the test moves.
 * Its switches cause the faults of production. See {@link SyncGuardTesting}.
 *
 * @example
 * const module = await Test.createTestingModule({
 *   imports: [SyncGuardTestingModule.forRoot()],
 *   providers: [OrdersService],
 * }).compile();
 * const testing = module.get(SyncGuardTesting);
 */
export class SyncGuardTestingModule {
  /**
   * Creates the module in memory.
   *
   * @throws SyncGuardConfigError on a malformed option, and on `redis`
   */
  static forRoot(options: SyncGuardTestingOptions = {}): DynamicModule {
    const { clock, shutdown = { drainMs: 0 }, ...rest } = options ?? {};
    if (clock !== undefined && !(clock instanceof FakeClock))
      throw invalidOption('clock', 'a FakeClock', clock);
    if ((rest as SyncGuardOptions).redis !== undefined)
      throw new SyncGuardConfigError(
        'SyncGuardTestingModule has no option `redis`, because it runs in memory.',
        { hint: 'To test on Redis, import `SyncGuardModule.forRoot({ redis })`.' },
      );
    const base = SyncGuardModule.forRoot({ ...rest, shutdown });
    return {
      ...base,
      // Of two providers with the same token Nest uses the last, so these replace those of the module.
      providers: [...(base.providers ?? []), ...testingProviders(clock)],
      exports: [...(base.exports ?? []), SyncGuardTesting],
    };
  }
}

const testingProviders = (clock: FakeClock | undefined): Provider[] => [
  { provide: FakeClock, useFactory: () => clock ?? new FakeClock() },
  {
    provide: Switches,
    useFactory: (options: SyncGuardOptions, time: FakeClock) => new Switches(resolveOptions(options), time),
    inject: [SYNCGUARD_OPTIONS, FakeClock],
  },
  {
    provide: SYNCGUARD_PARTS,
    useFactory: (options: SyncGuardOptions, { backends }: Switches) => makeParts(options, backends),
    inject: [SYNCGUARD_OPTIONS, Switches],
  },
  {
    provide: SyncGuardHealthIndicator,
    useFactory: (switches: Switches) => new SyncGuardHealthIndicator('memory', async () => switches.outage),
    inject: [Switches],
  },
  {
    provide: SyncGuardTesting,
    useFactory: (...args: ConstructorParameters<typeof SyncGuardTesting>) => new SyncGuardTesting(...args),
    inject: [FakeClock, Switches, LockService, BudgetService, OnceService],
  },
];
