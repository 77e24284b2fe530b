import { refuseAborted } from '../../core/validate.js';
import { SyncGuardError } from '../../core/errors.js';
import type { CallOptions } from '../../core/validate.js';
import type { FenceBackend, FencedWrite, FenceResult } from '../fence.backend.js';

/** The last fences of one process, and the values that were written under them. They behave as those on Redis. */
export class MemoryFenceBackend implements FenceBackend {
  readonly #last = new Map<string, { readonly fence: string; readonly lockId: string }>();
  readonly #values = new Map<string, string>();

  async apply({ resource, fence, lockId, set, signal }: FencedWrite): Promise<FenceResult> {
    refuseAborted(signal, SyncGuardError);
    const last = this.#last.get(resource);
    if (last && (last.fence > fence || (last.fence === fence && last.lockId !== lockId)))
      return { ok: false, lastFence: last.fence };
    this.#last.set(resource, { fence, lockId });
    if (set) this.#values.set(set.key, set.value);
    return { ok: true };
  }

  async get(key: string, { signal }: CallOptions): Promise<string | null> {
    refuseAborted(signal, SyncGuardError);
    return this.#values.get(key) ?? null;
  }
}
