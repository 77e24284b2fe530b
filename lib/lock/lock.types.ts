import type { PageOptions } from '../core/page.js';
import type { CallOptions } from '../core/validate.js';
import type { ByHand } from '../telemetry/by-hand.js';

/** What a backend can do. `supportsFencing: true` is part of the type, so TypeScript knows that every grant has a `fence`. */
export interface BackendCapabilities {
  /** Where locks are kept. */
  readonly backend: string;
  readonly supportsFencing: true;
  /** Whose clock decides when a lock expires. */
  readonly timeAuthority: 'server' | 'client';
}

/** What the backend on Redis can do. */
export interface RedisCapabilities extends BackendCapabilities {
  readonly backend: 'redis';
  readonly timeAuthority: 'server';
}

/** What the backend in memory can do. */
export interface MemoryCapabilities extends BackendCapabilities {
  readonly backend: 'memory';
  readonly timeAuthority: 'client';
}

/** One key, or several keys that are locked together or not at all. */
export type LockKeyOption =
  | {
      /** 1 to 512 UTF-8 bytes after Unicode normalisation (NFC). */
      key: string;
      keys?: undefined;
    }
  | {
      /** 1 to 32 different keys. Their order does not matter. On a Cluster they must share a `{tag}`. */
      keys: readonly string[];
      key?: undefined;
    };

/** Options of `acquire()`. */
export type AcquireOptions = LockKeyOption & {
  /** How long the lock lives if it is not extended. In ms, 1 to 2^31 - 1. */
  ttlMs: number;
  /** Aborts the call. A lock that was granted meanwhile is released. */
  signal?: AbortSignal | undefined;
  /** The place of a waiting call in the queues of its keys. `lock()` passes it with each of its attempts. */
  turn?: LockTurn | undefined;
};

/**
 * The place of a call in the queues of its keys. `takeTurn()` returns it. It enters a queue when the first attempt with
 * this turn finds a key locked.
 */
export interface LockTurn {
  /** When the turn was taken, as `performance.now()` counts. */
  readonly sinceMs: number;
  /** The place in the queue when waiting began. 1 is the next. Undefined if the call has not waited. */
  readonly place: number | undefined;
  /**
   * Sets the listener that is called when the turn of this call may have come. It is called at once if that happened
   * since the last attempt began.
   */
  onWake(listener: (() => void) | undefined): void;
  /**
   * Gives up the place, and releases a lock that was handed over meanwhile. Call it when waiting ends without a grant.
   * It returns at once and sends its commands in the background.
   */
  leave(): void;
}

/** Options of `release()`. */
export interface ReleaseOptions extends CallOptions {
  /** The `lockId` of the grant: 22 base64url characters. */
  lockId: string;
  /** @internal Passed by the handle of the grant. It saves the look-up of the lock's keys. */
  held?: HeldLock | undefined;
}

/**
 * @internal A point in time by both clocks of this process. The monotonic clock stands still while the machine is
 * suspended. The wall clock may be set. So a moment has come when either clock says so.
 */
export interface Moment {
  readonly monotonicMs: number;
  readonly wallMs: number;
}

/** @internal What a handle knows about its lock. */
export interface HeldLock {
  readonly keys: readonly string[];
  /** When the lock was asked for, as `performance.now()` counts. */
  readonly sinceMs: number;
  /** When the last request that gave it its life was sent. */
  readonly sentAt: Moment;
  /** When the lock expires by the clocks of this process. It is counted from before the request was sent, so it is never late. */
  readonly deadline: Moment;
  /** The body has ended, and the lock is only kept for the rest of its `minHoldMs`. */
  readonly isGivenBack?: boolean;
  /** What the backend has computed for these keys. */
  readonly ref?: object | undefined;
}

/** Options of `extend()`. */
export interface ExtendOptions extends ReleaseOptions {
  /** How long the lock lives from now on. This may be shorter than before. In ms, 1 to 2^31 - 1. */
  ttlMs: number;
}

/** What `release()` returns. */
export interface ReleaseResult {
  /** False if the lock had expired or another owner had it. A fault of Redis throws instead. */
  ok: boolean;
}

/** What `extend()` returns. */
export type ExtendResult =
  | {
      ok: true;
      /** When the lock expires now, by the clock of the backend. */
      expiresAtMs: number;
    }
  | { ok: false };

/** A granted lock. `await using` releases it at the end of the block. */
export interface LockHandle extends AsyncDisposable {
  readonly ok: true;
  /** The id of this grant: 22 base64url characters. Anyone who has it can release the lock. */
  readonly lockId: string;
  /**
   * The fence rises with every grant of the key. Pass it to the resource that you write to, and let the resource refuse a
   * lower one. It has 15 digits, so that text compares like numbers. It starts at the clock (in tenths of a ms), so it
   * rises even when its counter is lost (ADR 0002). After a failover that lost writes, two grants may have the same
   * fence: compare `lockId` too.
   */
  readonly fence: string;
  /** The fence of each key (in NFC). All keys of a grant have the same fence, above every fence that any of them has had. */
  readonly fences: Readonly<Record<string, string>>;
  /** When the lock expires, by the clock of the backend. `extend` updates it. */
  readonly expiresAtMs: number;
  /** Releases the lock. Every call after the first returns the result of the first. */
  release(signal?: AbortSignal): Promise<ReleaseResult>;
  /** Gives the lock a new time to live, in ms, from now on. */
  extend(ttlMs: number, signal?: AbortSignal): Promise<ExtendResult>;
}

/** Somebody else holds the lock. The type has no methods, so `await using` on an unchecked result does not compile. */
export interface AcquireFailure {
  readonly ok: false;
  readonly reason: 'locked';
}

/** What `acquire()` returns. */
export type AcquireResult = LockHandle | AcquireFailure;

/** A live lock, described for logs: the key and the id are hashed. */
export interface LockInfo {
  /** The hash of the key. */
  readonly keyHash: string;
  /** The hash of the lock's id. */
  readonly lockIdHash: string;
  /** When the lock expires, by the clock of the backend. */
  readonly expiresAtMs: number;
  /** When the lock was granted, by the clock of the backend. */
  readonly acquiredAtMs: number;
  /** The fence of the grant. */
  readonly fence: string;
}

/** A live lock with its unhashed key and id. Anyone who has the id can release the lock. */
export interface RawLockInfo extends LockInfo {
  /** The key. */
  readonly key: string;
  /** The id of the lock. Anyone who has it can release the lock. */
  readonly lockId: string;
}

/** Options of `list()`. */
export interface LockListOptions extends PageOptions {
  /** Only locks whose keys begin so. Default: all. */
  prefix?: string;
}

/** A lock that is held, as an operator sees it. */
export interface ListedLock {
  /** The key. */
  readonly key: string;
  /** The fence of the grant, which `forceRelease` wants. */
  readonly fence: string;
  /** When the lock was granted, by the clock of the backend. Undefined if another program has granted it and does not say. */
  readonly acquiredAtMs?: number;
  /** When the lock expires, by the clock of the backend. */
  readonly expiresAtMs: number;
  /** How many calls wait for it. */
  readonly waiting: number;
}

/** A call that waits for a lock. */
export interface WaitingCall {
  /** Its place in the queue, counted from 1. */
  readonly position: number;
  /** Names the process that waits. It is another one after each start. */
  readonly process: string;
  /** When the call began to wait, by the clock of the backend. */
  readonly sinceMs?: number;
}

/** Options of `forceRelease()`. */
export interface ForceReleaseOptions extends CallOptions, ByHand {
  /** The fence of the lock that you have seen: no other grant of the key is ended. */
  fence: string;
  /** Why, for the log: 1 to 200 characters. */
  reason: string;
}

/** What `forceRelease()` returns. */
export type ForceReleaseResult =
  | { readonly released: true }
  | {
      readonly released: false;
      /** The fence of who holds the lock now. Undefined if nobody does. */
      readonly fence?: string;
    };

/** Who holds a lock. */
export interface LockHolder {
  /** The name of the machine. */
  readonly host: string;
  /** The number of the process on it. */
  readonly pid: number;
  /** The decorated method, as `Class.method`. Undefined for locks that were taken otherwise. */
  readonly method?: string;
  /** When the lock was asked for, by the clock of that process. */
  readonly sinceMs: number;
}

/** Options of `isLocked()`. */
export interface IsLockedOptions extends CallOptions {
  /** The key: 1 to 512 UTF-8 bytes. */
  key: string;
}

/** Options of `lookup()`: a key or an id. */
export type LookupOptions = (
  | {
      /** The key of the lock, in place of `lockId`. */
      key: string;
      lockId?: never;
    }
  | {
      /** The id of the lock, in place of `key`. */
      lockId: string;
      key?: never;
    }
) &
  CallOptions;
