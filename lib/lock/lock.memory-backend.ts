import { refuseAborted } from '../aborted.js';
import { type Clock, momentNow, steadyClock } from '../clock.js';
import { IdleSweep } from '../idle-sweep.js';
import { LockHandle } from './acquired-lock.js';
import { type LockBackend, withDetail } from './lock.backend.js';
import { LockError } from './lock.errors.js';
import type {
  AcquireOptions,
  AcquireResult,
  ExtendOptions,
  ExtendResult,
  IsLockedOptions,
  LockInfo,
  LookupOptions,
  MemoryCapabilities,
  RawLockInfo,
  ReleaseOptions,
  ReleaseResult,
} from './lock.types.js';
import {
  createLockId,
  formatFence,
  type LockRecord,
  toLockInfo,
  toRawLockInfo,
  validateAcquire,
  validateExtend,
  validateIsLocked,
  validateKey,
  validateLockId,
  validateLookup,
  validateRelease,
} from './lock.values.js';

// Fences follow the clock as on Redis: in tenths of a ms.
const FENCES_PER_MS = 10;
const SWEEP_AT_LEAST = 1_024;

/** Locks of one process, with the behaviour of the Redis backend. */
export class MemoryLockBackend implements LockBackend<MemoryCapabilities> {
  readonly capabilities: MemoryCapabilities = {
    backend: 'memory',
    supportsFencing: true,
    timeAuthority: 'client',
  };
  readonly #byKey = new Map<string, LockRecord>();
  readonly #keyById = new Map<string, string>();
  // One counter for all keys: it rises for each of them, and needs no memory for a key that is not held.
  #lastFence = 0;
  #sweepAt = SWEEP_AT_LEAST;
  readonly #idleSweep = new IdleSweep(() => this.#sweep());

  constructor(private readonly clock: Clock = steadyClock) {}

  async acquire(options: AcquireOptions): Promise<AcquireResult> {
    const { key, ttlMs } = validateAcquire(options);
    refuseAborted(options.signal, LockError);
    const sentAt = momentNow();
    const nowMs = this.clock.now();
    const held = this.#live(key);
    if (held)
      return withDetail(
        { ok: false, reason: 'locked' },
        { reason: 'locked', remainingMs: held.expiresAtMs - nowMs },
      );
    const record = this.#grant(key, ttlMs, nowMs);
    return new LockHandle(this, { ...record, ttlMs, sentAt });
  }

  async release(options: ReleaseOptions): Promise<ReleaseResult> {
    const lockId = validateRelease(options);
    refuseAborted(options.signal, LockError);
    const record = this.#liveById(lockId);
    if (!record) return withDetail({ ok: false }, { reason: 'not_found' });
    this.#drop(record);
    return { ok: true };
  }

  async extend(options: ExtendOptions): Promise<ExtendResult> {
    const { lockId, ttlMs } = validateExtend(options);
    refuseAborted(options.signal, LockError);
    const record = this.#liveById(lockId);
    if (!record) return withDetail({ ok: false }, { reason: 'not_found' });
    const expiresAtMs = this.clock.now() + ttlMs;
    this.#byKey.set(record.key, { ...record, expiresAtMs });
    return { ok: true, expiresAtMs };
  }

  async isLocked(options: IsLockedOptions): Promise<boolean> {
    const key = validateIsLocked(options);
    refuseAborted(options.signal, LockError);
    return this.#live(key) !== null;
  }

  async lookup(options: LookupOptions): Promise<LockInfo | null> {
    const wanted = validateLookup(options);
    refuseAborted(options.signal, LockError);
    const record = 'key' in wanted ? this.#live(wanted.key) : this.#liveById(wanted.lockId);
    return record && toLockInfo(record);
  }

  async getByKeyRaw(key: string): Promise<RawLockInfo | null> {
    const record = this.#live(validateKey(key));
    return record && toRawLockInfo(record);
  }

  async getByIdRaw(lockId: string): Promise<RawLockInfo | null> {
    const record = this.#liveById(validateLockId(lockId));
    return record && toRawLockInfo(record);
  }

  #grant(key: string, ttlMs: number, nowMs: number): LockRecord {
    if (this.#byKey.size >= this.#sweepAt) this.#sweep();
    this.#lastFence = Math.max(this.#lastFence + 1, Math.floor(nowMs * FENCES_PER_MS));
    const record: LockRecord = {
      lockId: createLockId(),
      expiresAtMs: nowMs + ttlMs,
      acquiredAtMs: nowMs,
      key,
      fence: formatFence(this.#lastFence),
    };
    this.#byKey.set(key, record);
    this.#idleSweep.start();
    this.#keyById.set(record.lockId, key);
    return record;
  }

  #live(key: string): LockRecord | null {
    const record = this.#byKey.get(key);
    if (!record) return null;
    // The instant at which Redis drops a key: after its expiry, not at it.
    if (this.clock.now() <= record.expiresAtMs) return record;
    this.#drop(record);
    return null;
  }

  #liveById(lockId: string): LockRecord | null {
    const key = this.#keyById.get(lockId);
    return key === undefined ? null : this.#live(key);
  }

  #drop(record: LockRecord): void {
    this.#byKey.delete(record.key);
    this.#keyById.delete(record.lockId);
  }

  /** Expired locks that nobody asked for again: swept when the map has doubled, so a grant stays O(1), and when idle. */
  #sweep(): number {
    for (const key of this.#byKey.keys()) this.#live(key);
    this.#sweepAt = Math.max(SWEEP_AT_LEAST, 2 * this.#byKey.size);
    return this.#byKey.size;
  }
}
