import { Injectable } from '@nestjs/common';
import type { SyncGuardError } from '../core/errors.js';

/** The result of a health check, in the shape that @nestjs/terminus expects. */
export type SyncGuardHealth = Record<
  string,
  {
    /** Whether Redis answers and allows the commands that are needed. In memory always `up`. */
    status: 'up' | 'down';
    /** Where the app keeps its locks and counts. */
    backend: 'memory' | 'redis';
    /** The code of the fault, if it is down. */
    code?: string;
    /** What is wrong, if it is down. */
    message?: string;
  }
>;

/**
 * Reports whether SyncGuard can work now. It fits @nestjs/terminus, and works without it.
 *
 * @example
 * \@Get('health')
 * health() {
 *   return this.terminus.check([() => this.syncguard.isHealthy('locks')]);
 * }
 */
@Injectable()
export class SyncGuardHealthIndicator {
  /** @internal The module creates the service. */
  constructor(
    private readonly backend: 'memory' | 'redis',
    private readonly check: () => Promise<SyncGuardError | undefined>,
  ) {}

  /** Checks whether SyncGuard can work now. The result is the value of `key`. It never rejects. */
  async isHealthy(key = 'syncguard'): Promise<SyncGuardHealth> {
    const fault = await this.check();
    const { backend } = this;
    return {
      [key]: fault
        ? { status: 'down', backend, code: fault.code, message: fault.summary }
        : { status: 'up', backend },
    };
  }
}
