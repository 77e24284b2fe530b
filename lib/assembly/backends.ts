import type { BudgetBackend } from '../budget/budget.backend.js';
import type { CounterBackend } from '../counter/counter.backend.js';
import type { LimitBackend } from '../limit/limit.backend.js';
import type { FenceBackend } from '../lock/fence.backend.js';
import type { LockBackend } from '../lock/lock.backend.js';
import type { OnceBackend } from '../once/once.backend.js';
import type { SecretBackend } from '../secret/secret.backend.js';

/** The backends of all features. The services work on these ports. */
export interface Backends {
  readonly lock: LockBackend;
  readonly fence: FenceBackend;
  readonly limit: LimitBackend;
  /** Counts in this process while `limit` does not answer. Null if `limit` itself counts in this process. */
  readonly limitFallback: LimitBackend | null;
  readonly budget: BudgetBackend;
  readonly secret: SecretBackend;
  readonly counter: CounterBackend;
  readonly once: OnceBackend;
}
