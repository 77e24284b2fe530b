import type { BudgetBackend } from '../budget/budget.backend.js';
import type { CounterBackend } from '../limit/counter.backend.js';
import type { LimitBackend } from '../limit/limit.backend.js';
import type { LockBackend } from '../lock/lock.backend.js';
import type { BackendCapabilities } from '../lock/lock.types.js';
import type { SecretBackend } from '../secret/secret.backend.js';

/** One backend a feature: what the services stand on. */
export interface Backends<C extends BackendCapabilities = BackendCapabilities> {
  readonly lock: LockBackend<C>;
  readonly limit: LimitBackend;
  /** Counts in this process while `limit` does not answer; null where `limit` is in this process itself. */
  readonly limitFallback: LimitBackend | null;
  readonly budget: BudgetBackend;
  readonly secret: SecretBackend;
  readonly counter: CounterBackend;
}
