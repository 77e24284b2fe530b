import type { CallOptions } from '../core/validate.js';

/** The port of FenceGuard. Each method is one atomic step, on arguments that were checked. */
export interface FenceBackend {
  /** @throws SyncGuardError InvalidArgument if this backend cannot write the key together with the resource */
  apply(write: FencedWrite): Promise<FenceResult>;
  /** Returns the value of a key that `apply()` has set. Null if there is none. */
  get(key: string, options: CallOptions): Promise<string | null>;
}

/** A write that a {@link FenceGuard} lets through or refuses. */
export interface FencedWrite {
  /**
   * What is written to: an order, an account, a file. A string of 1 to 512 UTF-8 bytes after NFC. All writers of the
   * same thing must use the same name, such as the key of their lock.
   */
  resource: string;
  /** The fence of the lock: 15 digits, from `lock.fence`. */
  fence: string;
  /** The id of the lock, from `lock.lockId`. It tells apart two holders that have the same fence after a failover. */
  lockId: string;
  /** What to write into Redis in the same atomic step. Without it only the fence is noted. */
  set?: FencedValue | undefined;
  /** Aborts the call. */
  signal?: AbortSignal | undefined;
}

/** A value for a Redis key of your own. */
export interface FencedValue {
  /**
   * The name of the key, 1 to 512 UTF-8 bytes. SyncGuard does not put its `keyPrefix` before it. An ioredis client with
   * a `keyPrefix` of its own does. The key must be free or hold a String, and must not have a name of SyncGuard. A TTL
   * of the key stays. With `keyLayout: 'slotted'`, which a Cluster always has, it must be in the slot of `resource`:
   * give both the same name, or the same `{tag}`.
   */
  key: string;
  /** A string, for example JSON. */
  value: string;
}

/** `ok: false`: a later holder has called `apply()` for this resource. Stop, and undo what you can. */
export type FenceResult =
  | { readonly ok: true }
  | {
      readonly ok: false;
      /** The highest fence that the resource has seen. */
      readonly lastFence: string;
    };
