import type { Moment } from '../clock.js';

/** The abilities of a backend, in its type: with `supportsFencing: true` a grant's `fence` needs no assertion. */
export interface BackendCapabilities {
  readonly backend: string;
  readonly supportsFencing: true;
  /** Whose clock says when a lock ends. */
  readonly timeAuthority: 'server' | 'client';
}

export interface RedisCapabilities extends BackendCapabilities {
  readonly backend: 'redis';
  readonly timeAuthority: 'server';
}

export interface MemoryCapabilities extends BackendCapabilities {
  readonly backend: 'memory';
  readonly timeAuthority: 'client';
}

/** One key, or several that are locked together or not at all. */
export type LockKeyOption =
  | {
      /** A string of 1 to 512 UTF-8 bytes after NFC. */
      key: string;
      keys?: undefined;
    }
  | {
      /** 1 to 32 different ones; their order does not matter. On a Cluster they share a `{tag}`. */
      keys: readonly string[];
      key?: undefined;
    };

export type AcquireOptions = LockKeyOption & {
  /** How long the lock lives unless extended, in ms, 1 to 2^31 - 1. */
  ttlMs: number;
  signal?: AbortSignal | undefined;
  /** Given by `lock()` while it waits: the attempt keeps, and uses, its place in the queues of its keys. */
  turn?: LockTurn | undefined;
};

/**
 * A call's place in the queues of its keys, from `takeTurn()`. It stands in a queue as soon as an attempt that was
 * given it finds a key locked.
 */
export interface LockTurn {
  /** When the turn was taken, by `performance.now()`. */
  readonly sinceMs: number;
  /** Which one it was in the queue when waiting began: 1 is the next. Undefined: it has not waited. */
  readonly place: number | undefined;
  /** Called once, when it may be this call's turn; at once, if it was that since the last attempt began. */
  onWake(listener: (() => void) | undefined): void;
  /**
   * Gives up the place, and what was handed over to it meanwhile. To be called when waiting ends without a grant.
   * Returns at once: what is left to do is done in the background.
   */
  leave(): void;
}

export interface ReleaseOptions {
  /** From the grant: 22 base64url characters. */
  lockId: string;
  /** @internal Given by a grant's own handle: makes the call one lean round trip. */
  held?: HeldLock | undefined;
  signal?: AbortSignal | undefined;
}

/** @internal What the holder of a grant knows of it. */
export interface HeldLock {
  readonly keys: readonly string[];
  /** When the grant ends at the latest, by this process's clocks: counted from before the request was sent. */
  readonly deadline: Moment;
}

export interface ExtendOptions extends ReleaseOptions {
  /** Replaces the rest of the lock's life, and may shorten it. In ms, 1 to 2^31 - 1. */
  ttlMs: number;
}

export interface ReleaseResult {
  /** False: the lock was not ours any more. Never a fault. */
  ok: boolean;
}

export type ExtendResult = { ok: true; expiresAtMs: number } | { ok: false };

/** A lock that was granted. `await using` releases it at the end of the block. */
export interface LockHandle extends AsyncDisposable {
  readonly ok: true;
  readonly lockId: string;
  /**
   * Rises with every grant of the key: give it to the resource, and let that refuse a lower one. 15 digits,
   * compared as text. It starts at the clock, in tenths of a ms, so that it rises even when its counter is lost (ADR 0002).
   * After a failover that lost writes two grants may have the same one: compare `lockId` too.
   */
  readonly fence: string;
  /** The fence of each key, by its name in NFC. One grant has one fence: it is above all that any of its keys has had. */
  readonly fences: Readonly<Record<string, string>>;
  /** By the backend's clock; follows `extend`. */
  readonly expiresAtMs: number;
  release(signal?: AbortSignal): Promise<ReleaseResult>;
  extend(ttlMs: number, signal?: AbortSignal): Promise<ExtendResult>;
}

/** Somebody else holds the lock. Without methods, so that `await using` on an unchecked result does not compile. */
export interface AcquireFailure {
  readonly ok: false;
  readonly reason: 'locked';
}

export type AcquireResult = LockHandle | AcquireFailure;

/** Facts of a live lock, fit for logs: the key and the id are hashed. */
export interface LockInfo {
  readonly keyHash: string;
  readonly lockIdHash: string;
  readonly expiresAtMs: number;
  readonly acquiredAtMs: number;
  readonly fence: string;
}

/** With the key and the id themselves. Anyone who has the id can release the lock. */
export interface RawLockInfo extends LockInfo {
  readonly key: string;
  readonly lockId: string;
}

export interface IsLockedOptions {
  key: string;
  signal?: AbortSignal | undefined;
}

export type LookupOptions = ({ key: string; lockId?: never } | { lockId: string; key?: never }) & {
  signal?: AbortSignal | undefined;
};
