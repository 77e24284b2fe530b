import type { CallOptions } from '../core/validate.js';
import type { FencedWrite, FenceResult } from './fence.types.js';

/** The port of FenceGuard. Each method is one atomic step, on arguments that were checked. */
export interface FenceBackend {
  /** @throws SyncGuardError InvalidArgument if this backend cannot write the key together with the resource */
  apply(write: FencedWrite): Promise<FenceResult>;
  /** Returns the value of a key that `apply()` has set. Null if there is none. */
  get(key: string, options: CallOptions): Promise<string | null>;
}
