import { setImmediate as nextTurn } from 'node:timers/promises';
import { type Page, pageOf, pageOfNames } from '../../core/page.js';
import { type CallOptions, refuseAborted } from '../../core/validate.js';
import { type Clock, steadyClock } from '../../core/clock.js';
import { IdleSweep } from '../../core/idle-sweep.js';
import { randomId } from '../../core/random-id.js';
import { type LockBackend, withDetail } from '../lock.backend.js';
import { LockError } from '../lock.errors.js';
import { BackendHandle, momentNow } from '../lock.handle.js';
import { MemoryQueues, MemoryTurn } from './lock.memory-turns.js';
import {
  formatFence,
  listedOf,
  LockLookups,
  type LockRecord,
  notReleased,
  type KeyOrId,
} from '../lock.record.js';
import { CLAIM_MS, KEEP_MS, KEEPING_LOOK_MS } from '../lock.times.js';
import type {
  AcquireOptions,
  AcquireResult,
  ExtendOptions,
  ExtendResult,
  ForceReleaseOptions,
  ForceReleaseResult,
  IsLockedOptions,
  ListedLock,
  LockListOptions,
  LockTurn,
  MemoryCapabilities,
  ReleaseOptions,
  ReleaseResult,
  WaitingCall,
} from '../lock.types.js';
import {
  validateAcquire,
  validateCall,
  validateExtend,
  validateForceRelease,
  validateIsLocked,
  validateKey,
  validateList,
  validateRelease,
} from '../lock.validate.js';

// As on Redis, a fence starts at the clock, in tenths of a ms.
const FENCES_PER_MS = 10;

/** As on Redis, no more are listed. */
const MOST_WAITERS = 1_000;

/** The pause between two attempts under a clock that a test moves by hand, where nobody knows when time will pass. */
const LOOK_BY_HAND_MS = 50;

/** The turn has an older ticket than the head, and holds a lock as that one does, or none as that one. */
const isBefore = (turn: MemoryTurn | undefined, head: MemoryTurn): boolean =>
  turn !== undefined && turn.ticket > 0 && turn.ticket <= head.ticket && turn.isNested === head.isNested;

/** Locks within one process. They behave like those on Redis. */
export class MemoryLockBackend extends LockLookups implements LockBackend<MemoryCapabilities> {
  readonly capabilities: MemoryCapabilities = {
    backend: 'memory',
    supportsFencing: true,
    timeAuthority: 'client',
  };
  readonly #byKey = new Map<string, LockRecord>();
  readonly #keysById = new Map<string, readonly string[]>();
  readonly #queues = new MemoryQueues();
  // One fence counter serves all keys. It rises for each of them, and a key that is not held needs no memory.
  #lastFence = 0;
  readonly #idleSweep = new IdleSweep(() => this.#sweep());

  constructor(private readonly clock: Clock = steadyClock) {
    super();
  }

  async acquire(options: AcquireOptions): Promise<AcquireResult> {
    const { keys, ttlMs } = validateAcquire(options);
    // As on Redis, the answer comes in a later turn: a shutdown that begins in the turn of the call comes before it.
    await nextTurn();
    refuseAborted(options.signal, LockError);
    const turn = options.turn as MemoryTurn | undefined;
    const sentAt = momentNow();
    const lockId = turn?.lockId ?? randomId();
    if (turn) {
      turn.begin();
      Object.assign(turn, { keys, lockId });
    }
    const blocked = this.#firstLocked(keys, lockId, turn);
    if (blocked !== undefined) return this.#refuse(keys, blocked, turn);
    for (const key of keys) if (turn) this.#queues.leave(key, turn);
    if (turn) turn.lockId = undefined; // As on Redis, the next attempt of this turn uses a new lockId.
    this.#idleSweep.grow(this.#byKey.size);
    const { fence, expiresAtMs } = this.#put(keys, lockId, ttlMs);
    this.#keysById.set(lockId, keys);
    return new BackendHandle(this, { keys, lockId, ttlMs, sentAt, fence, expiresAtMs });
  }

  takeTurn({ pollMs, isNested = false }: { pollMs: number; isNested?: boolean }): LockTurn {
    const turn: MemoryTurn = new MemoryTurn(pollMs, isNested, () => {
      for (const key of turn.keys) this.#queues.leave(key, turn);
      if (turn.lockId !== undefined) this.#releaseAll(turn.lockId, turn.keys);
    });
    return turn;
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
      // The lock now ends sooner, so the first waiter is woken to try again in time.
      if (expiresAtMs < record.expiresAtMs) this.#queues.head(record.key)?.wake();
    }
    return { ok: true, expiresAtMs };
  }

  async isLocked(options: IsLockedOptions): Promise<boolean> {
    const key = validateIsLocked(options);
    refuseAborted(options.signal, LockError);
    return this.#live(key) !== null;
  }

  async list(options?: LockListOptions): Promise<Page<ListedLock>> {
    const { prefix, ...page } = validateList(options);
    refuseAborted(page.signal, LockError);
    const wanted = [...this.#byKey.keys()].filter((key) => key.startsWith(prefix) && this.#live(key));
    const { names, cursor } = pageOfNames(wanted, page);
    const items = names.map((key) =>
      listedOf(this.#byKey.get(key) as LockRecord, this.#queues.waiting(key).length),
    );
    return pageOf(items, cursor);
  }

  async waiters(key: string, options: CallOptions = {}): Promise<WaitingCall[]> {
    const turns = this.#queues.waiting(validateKey(key));
    refuseAborted(validateCall(options).signal, LockError);
    const nowMs = this.clock.now();
    return turns.slice(0, MOST_WAITERS).map(({ sinceMs }, i) => ({
      position: i + 1,
      process: String(process.pid),
      sinceMs: Math.floor(nowMs - (performance.now() - sinceMs)),
    }));
  }

  async forceRelease(key: string, options: ForceReleaseOptions): Promise<ForceReleaseResult> {
    const held = this.#live(validateForceRelease(key, options));
    refuseAborted(options.signal, LockError);
    if (held?.fence !== options.fence) return notReleased(held);
    // A lock that was handed over and not taken yet has no keys under its id.
    this.#releaseAll(held.lockId, this.#keysById.get(held.lockId) ?? [held.key]);
    return { released: true };
  }

  protected override async find(
    wanted: KeyOrId,
    signal: AbortSignal | undefined,
  ): Promise<LockRecord | null> {
    refuseAborted(signal, LockError);
    return 'key' in wanted ? this.#live(wanted.key) : (this.#liveById(wanted.lockId)?.[0] ?? null);
  }

  /** @internal For tests: the ids of all locks that are held. */
  heldIds(): string[] {
    return [...this.#keysById.keys()].filter((lockId) => this.#liveById(lockId));
  }

  /**
   * Returns the index of the first key that the call cannot have: another owner holds it, or another call is first in its
   * queue. A free key with such a queue is handed over to that call.
   */
  #firstLocked(keys: readonly string[], lockId: string, turn: MemoryTurn | undefined): number | undefined {
    let first: number | undefined;
    for (const [i, key] of keys.entries()) {
      const record = this.#live(key);
      const head = this.#queues.head(key);
      const isFirst = !head || head === turn || isBefore(turn, head);
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
    const { keeps } = turn;
    this.#settleOthers(keys, blocked, turn);
    this.#queues.enter(key, turn);
    // Only the first one looks by itself. The others come after it.
    const isFirst = turn.line?.first === turn;
    const dueMs = !isFirst ? Infinity : this.clock === steadyClock ? remainingMs + 1 : LOOK_BY_HAND_MS;
    const lookAgainMs = Math.max(1, Math.min(dueMs, turn.pollMs, keeps ? KEEPING_LOOK_MS : Infinity));
    return withDetail(refused, { reason: 'locked', remainingMs, lookAgainMs });
  }

  /**
   * Settles the other keys of a call that cannot have the key at `blocked`, as lock-acquire does. Keys that were handed
   * over to it go on to the next waiters. A call that `keeps` holds on to all keys before `blocked` instead, but for those
   * that a holder of a lock waits for.
   */
  #settleOthers(keys: readonly string[], blocked: number, turn: MemoryTurn): void {
    const { lockId, keeps } = turn as MemoryTurn & { lockId: string };
    let hasPassed = false;
    for (const [i, key] of keys.entries()) {
      if (i === blocked) continue;
      const isKept = keeps && i < blocked && !this.#queues.isWantedByHolder(key, turn);
      this.#queues.leave(key, turn);
      if (isKept) this.#put([key], lockId, KEEP_MS);
      else if (this.#live(key)?.lockId === lockId) {
        this.#byKey.delete(key);
        this.#handOver(key);
        hasPassed = true;
      }
    }
    if (hasPassed) turn.passed();
  }

  /** Makes the head of a queue the owner of the key, for the time of a claim. */
  #handOver(key: string): void {
    const head = this.#queues.head(key);
    if (!head) return;
    this.#queues.handOver(key, head);
    this.#put([key], head.lockId as string, CLAIM_MS);
    head.wake();
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

  /** Releases all keys of a lock. Returns whether all of them were still held. */
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
    // As in Redis, a record still exists in the ms of its expiry.
    if (this.clock.now() <= record.expiresAtMs) return record;
    this.#byKey.delete(key);
    this.#keysById.delete(record.lockId);
    return null;
  }

  /** Returns the records of all keys of a lock, or null if any of them is gone. */
  #liveById(lockId: string): LockRecord[] | null {
    const keys = this.#keysById.get(lockId);
    const records = keys?.map((key) => this.#live(key)) ?? [null];
    return records.every((record) => record?.lockId === lockId) ? (records as LockRecord[]) : null;
  }

  /** Deletes expired locks, and returns how many are left. */
  #sweep(): number {
    for (const key of this.#byKey.keys()) this.#live(key);
    return this.#byKey.size;
  }
}
