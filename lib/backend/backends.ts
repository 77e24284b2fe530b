import type { LockBackend } from '../lock/lock.backend.js';
import type { BackendCapabilities } from '../lock/lock.types.js';

/** One backend a feature: what the services stand on. */
export interface Backends<C extends BackendCapabilities = BackendCapabilities> {
  readonly lock: LockBackend<C>;
}
