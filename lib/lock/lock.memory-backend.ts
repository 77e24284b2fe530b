import { refuseAborted } from '../aborted.js';
import { type Clock, momentNow, steadyClock } from '../clock.js';
import { IdleSweep } from '../idle-sweep.js';
import type { CallOptions } from '../validate.js';
import { type LockBackend, withDetail } from './lock.backend.js';
import { LockError } from './lock.errors.js';
import { BackendHandle } from './lock.handle.js';
import { MemoryQueues, MemoryTurn } from './lock.memory-turns.js';
import { createLockId, formatFence, type LockRecord, toLockInfo, toRawLockInfo } from './lock.record.js';
import type {
  AcquireOptions,
  AcquireResult,
  ExtendOptions,
  ExtendResult,
  IsLockedOptions,
  LockInfo,
  LockTurn,
  LookupOptions,
  MemoryCapabilities,
  RawLockInfo,
  ReleaseOptions,
  ReleaseResult,
} from './lock.types.js';
import {
  validateAcquire,
  validateExtend,
  validateIsLocked,
  validateKey,
  validateLockId,
  validateLookup,
  validateRelease,
  validateCall,
} from './lock.validate.js';

// Fences follow the clock as on Redis: in tenths of a ms.
const FENCES_PER_MS = 10;
const SWEEP_AT_LEAST = 1_024;

// As on Redis: for how long a lock that was handed over waits for its new owner; after how many turns in vain a call for
// several keys keeps what it gets, and for how long it does without asking again.
const CLAIM_MS = 500;
const PASSES = 4;
const KEEP_MS = 1_000;
const KEEPING_LOOK_MS = 400;
/** A clock that is moved by hand says nothing of when to look again. */
const LOOK_BY_HAND_MS = 50;

/** Locks of one process, with the behaviour of the Redis backend. */
export class MemoryLockBackend implements LockBackend<MemoryCapabilities> {
  readonly capabilities: MemoryCapabilities = {
    backend: 'memory',
    supportsFencing: true,
    timeAuthority: 'client',
  };
  readonly #byKey = new Map<string, LockRecord>();
  readonly #keysById = new Map<string, readonly string[]>();
  readonly #queues = new MemoryQueues();
  // One counter for all keys: it rises for each of them, and needs no memory for a key that is not held.
  #lastFence = 0;
  #sweepAt = SWEEP_AT_LEAST;
  readonly #idleSweep = new IdleSweep(() => this.#sweep());

  constructor(private readonly clock: Clock = steadyClock) {}

  async acquire(options: AcquireOptions): Promise<AcquireResult> {
    const { keys, ttlMs } = validateAcquire(options);
    refuseAborted(options.signal, LockError);
    const turn = options.turn as MemoryTurn | undefined;
    if (turn) {
      turn.begin();
      turn.keys = keys;
    }
    const sentAt = momentNow();
    const lockId = (turn ? (turn.lockId ??= createLockId()) : undefined) ?? createLockId();
    const blocked = this.#firstLocked(keys, lockId, turn);
    if (blocked !== undefined) return this.#refuse(keys, blocked, turn);
    for (const key of keys) if (turn) this.#queues.leave(key, turn);
    if (turn) turn.lockId = undefined; // As on Redis: it was used for this grant.
    const { fence, expiresAtMs } = this.#grant(keys, lockId, ttlMs);
    return new BackendHandle(this, { keys, lockId, ttlMs, sentAt, fence, expiresAtMs });
  }

  takeTurn({ pollMs }: { pollMs: number }): LockTurn {
    return new MemoryTurn(pollMs, (turn) => {
      for (const key of turn.keys) this.#queues.leave(key, turn);
      if (turn.lockId !== undefined) this.#releaseAll(turn.lockId, turn.keys);
    });
  }

  async release(options: ReleaseOptions): Promise<ReleaseResult> {
    const lockId = validateRelease(options);
    refuseAborted(options.signal, LockError);
    return this.#releaseAll(lockId) ? { ok: true } : withDetail({ ok: false }, { reason: 'not_found' });
  }

  async extend(options: ExtendOptions): Promise<ExtendResult> {
    const { lockId, ttlMs } = validateExtend(options);
    refuseAborted(options.signal, LockError);
    const records = this.#liveById(lockId);
    if (!records) return withDetail({ ok: false }, { reason: 'not_found' });
    const expiresAtMs = this.clock.now() + ttlMs;
    for (const record of records) {
      this.#byKey.set(record.key, { ...record, expiresAtMs });
      // It looks when the life that has become shorter is over.
      if (expiresAtMs < record.expiresAtMs) this.#queues.head(record.key)?.wake();
    }
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
    const record = 'key' in wanted ? this.#live(wanted.key) : this.#firstById(wanted.lockId);
    return record && toLockInfo(record);
  }

  async getByKeyRaw(key: string, options: CallOptions = {}): Promise<RawLockInfo | null> {
    refuseAborted(validateCall(options).signal, LockError);
    const record = this.#live(validateKey(key));
    return record && toRawLockInfo(record);
  }

  async getByIdRaw(lockId: string, options: CallOptions = {}): Promise<RawLockInfo | null> {
    refuseAborted(validateCall(options).signal, LockError);
    const record = this.#firstById(validateLockId(lockId));
    return record && toRawLockInfo(record);
  }

  /** The first key that another holds, or whose queue has another at its head: that one has it from here on. */
  #firstLocked(keys: readonly string[], lockId: string, turn: MemoryTurn | undefined): number | undefined {
    let first: number | undefined;
    for (const [i, key] of keys.entries()) {
      const record = this.#live(key);
      const head = this.#queues.head(key);
      const isFirst =
        !head || head === turn || (turn !== undefined && turn.ticket > 0 && turn.ticket <= head.ticket);
      if (!record && !isFirst) this.#handOver(key);
      if (record ? record.lockId !== lockId : !isFirst) first ??= i;
    }
    return first;
  }

  #refuse(keys: readonly string[], blocked: number, turn: MemoryTurn | undefined): AcquireResult {
    const key = keys[blocked] as string;
    const remainingMs = (this.#live(key)?.expiresAtMs ?? 0) - this.clock.now();
    const refused = { ok: false, reason: 'locked' } as const;
    if (!turn) return withDetail(refused, { reason: 'locked', remainingMs });
    const keeps = turn.timesPassed >= PASSES;
    this.#settleOthers(keys, blocked, turn, keeps);
    this.#queues.enter(key, turn);
    const dueMs = this.clock === steadyClock ? remainingMs + 1 : LOOK_BY_HAND_MS;
    const lookAgainMs = Math.max(1, Math.min(dueMs, turn.pollMs, keeps ? KEEPING_LOOK_MS : Infinity));
    return withDetail(refused, { reason: 'locked', remainingMs, lookAgainMs });
  }

  /**
   * What was handed over to a call that cannot use it yet goes on to the next; or stays its own as long as all keys
   * before it are. Those are in one order for all callers, so none waits for another in a circle.
   */
  #settleOthers(keys: readonly string[], blocked: number, turn: MemoryTurn, keeps: boolean): void {
    const { lockId } = turn as { lockId: string };
    let passedOn = 0;
    for (const [i, key] of keys.entries()) {
      if (i === blocked) continue;
      this.#queues.leave(key, turn);
      if (keeps && i < blocked) this.#put([key], lockId, KEEP_MS);
      else if (this.#live(key)?.lockId === lockId) {
        this.#byKey.delete(key);
        this.#handOver(key);
        passedOn = 1;
      }
    }
    turn.timesPassed += passedOn;
  }

  /** Makes the head of a queue the owner, for as long as it may take to claim that. */
  #handOver(key: string): void {
    const head = this.#queues.head(key);
    if (!head) return;
    this.#queues.leave(key, head);
    this.#put([key], head.lockId as string, CLAIM_MS);
    head.wake();
  }

  #grant(keys: readonly string[], lockId: string, ttlMs: number): LockRecord {
    if (this.#byKey.size >= this.#sweepAt) this.#sweep();
    const record = this.#put(keys, lockId, ttlMs);
    this.#keysById.set(lockId, keys);
    this.#idleSweep.start();
    return record;
  }

  #put(keys: readonly string[], lockId: string, lifeMs: number): LockRecord {
    const nowMs = this.clock.now();
    this.#lastFence = Math.max(this.#lastFence + 1, Math.floor(nowMs * FENCES_PER_MS));
    const fence = formatFence(this.#lastFence);
    const records = keys.map((key) => ({
      ...{ lockId, key, fence },
      ...{ expiresAtMs: nowMs + lifeMs, acquiredAtMs: nowMs },
    }));
    for (const record of records) this.#byKey.set(record.key, record);
    return records[0] as LockRecord;
  }

  /** Returns whether all of it was held still. */
  #releaseAll(lockId: string, keys = this.#keysById.get(lockId) ?? []): boolean {
    const live = keys.filter((key) => this.#live(key)?.lockId === lockId);
    this.#keysById.delete(lockId);
    for (const key of live) this.#byKey.delete(key);
    for (const key of live) this.#handOver(key);
    return live.length > 0 && live.length === keys.length;
  }

  #live(key: string): LockRecord | null {
    const record = this.#byKey.get(key);
    if (!record) return null;
    // The instant at which Redis drops a key: after its expiry, not at it.
    if (this.clock.now() <= record.expiresAtMs) return record;
    this.#byKey.delete(key);
    this.#keysById.delete(record.lockId);
    return null;
  }

  /** All of a grant; null if any of it is gone. */
  #liveById(lockId: string): LockRecord[] | null {
    const keys = this.#keysById.get(lockId);
    const records = keys?.map((key) => this.#live(key)) ?? [null];
    return records.every((record) => record?.lockId === lockId) ? (records as LockRecord[]) : null;
  }

  #firstById(lockId: string): LockRecord | null {
    return this.#liveById(lockId)?.[0] ?? null;
  }

  /** Expired locks that nobody asked for again: swept when the map has doubled, so a grant stays O(1), and when idle. */
  #sweep(): number {
    for (const key of this.#byKey.keys()) this.#live(key);
    this.#sweepAt = Math.max(SWEEP_AT_LEAST, 2 * this.#byKey.size);
    return this.#byKey.size;
  }
}
