import { type SyncGuardHealth, SyncGuardHealthIndicator } from '../module/syncguard.health.js';
import type { SwitchedBackends } from './switched-backends.js';

/** A health indicator that is down while a test makes the backends unreachable. */
export class SwitchedHealthIndicator extends SyncGuardHealthIndicator {
  readonly #backends: SwitchedBackends;

  constructor(backends: SwitchedBackends) {
    super(undefined);
    this.#backends = backends;
  }

  override async isHealthy(key = 'syncguard'): Promise<SyncGuardHealth> {
    const { outage } = this.#backends;
    if (!outage) return super.isHealthy(key);
    return { [key]: { status: 'down', backend: 'memory', code: outage.code, message: outage.summary } };
  }
}
