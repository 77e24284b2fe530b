import { Injectable } from '@nestjs/common';
import type { RedisConnection } from '../assembly/redis-connection.js';

/** The result of a health check, in the shape that @nestjs/terminus expects. */
export type SyncGuardHealth = Record<
  string,
  { status: 'up' | 'down'; backend: 'memory' | 'redis'; code?: string; message?: string }
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
  constructor(private readonly connection: RedisConnection | undefined) {}

  async isHealthy(key = 'syncguard'): Promise<SyncGuardHealth> {
    if (!this.connection) return { [key]: { status: 'up', backend: 'memory' } };
    const fault = await this.connection.check();
    return {
      [key]: fault
        ? { status: 'down', backend: 'redis', code: fault.code, message: fault.summary }
        : { status: 'up', backend: 'redis' },
    };
  }
}
