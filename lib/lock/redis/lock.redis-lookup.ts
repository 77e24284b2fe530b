import { isLive, TIME_TOLERANCE_MS } from '../../core/clock.js';
import type { RunOptions, ScriptRunner } from '../../script/script-runner.js';
import { LockError } from '../lock.errors.js';
import { createLockId } from '../lock.handle.js';
import type { LockRecord } from '../lock.record.js';
import {
  type ById,
  CLEANUP_AFTER_MS,
  cleanupScript,
  extendByIdScript,
  extendFoundScript,
  readByIdScript,
  readIndexScript,
  type ReadReply,
  readScript,
  releaseByIdScript,
  releaseFoundScript,
} from './lock.by-id.scripts.js';
import type { LockLayout } from './lock.layout.js';
import type { ExtendReply, ReleaseCode } from './lock.replies.js';

type Signal = AbortSignal | undefined;

/** Finds locks by a key, and locks of which a caller knows nothing but the lockId. */
export class RedisLockLookup {
  constructor(
    private readonly runner: ScriptRunner,
    private readonly layout: LockLayout,
  ) {}

  /** @param cleanup - whether a record that has been dead for long is deleted */
  async isLocked(key: string, cleanup: boolean, signal: Signal): Promise<boolean> {
    const read = await this.#read(key, signal);
    if (!read) return false;
    const { record, nowMs } = read;
    if (isLive(record.expiresAtMs, nowMs, TIME_TOLERANCE_MS)) return true;
    if (cleanup && !isLive(record.expiresAtMs, nowMs, CLEANUP_AFTER_MS)) this.#cleanup(key, record);
    return false;
  }

  async liveByKey(key: string, signal: Signal): Promise<LockRecord | null> {
    return liveRecord(await this.#read(key, signal));
  }

  async liveById(lockId: string, signal: Signal): Promise<LockRecord | null> {
    const read = await this.#byId<ReadReply | null>(lockId, signal, null, {
      once: (index, options) => this.runner.run(readByIdScript, { index }, {}, options),
      found: ({ record }, options) => this.runner.run(readScript, { record }, {}, options),
    }).catch((fault: unknown) => {
      throw LockError.from(fault, { lockId });
    });
    return read?.record.lockId === lockId ? liveRecord(read) : null;
  }

  /** Releases a lock, or returns the record of one that has waiters or several keys: its keys must be declared. */
  release(lockId: string, signal: Signal): Promise<ById<ReleaseCode>> {
    const mark = this.layout.markOf(lockId);
    const args = { lockId, nonce: createLockId() };
    return this.#byId<ById<ReleaseCode>>(lockId, signal, 'not_found', {
      once: (index, options) => this.runner.run(releaseByIdScript, { index, mark }, args, options),
      found: (keys, options) => this.runner.run(releaseFoundScript, { ...keys, mark }, args, options),
    });
  }

  /** Extends a lock, or returns its record as `release` does. */
  extend(lockId: string, ttlMs: number, signal: Signal): Promise<ById<ExtendReply>> {
    const args = { lockId, ttlMs };
    const none = { code: 'not_found' } as const;
    return this.#byId<ById<ExtendReply>>(lockId, signal, none, {
      once: (index, options) => this.runner.run(extendByIdScript, { index }, args, options),
      found: (keys, options) => this.runner.run(extendFoundScript, keys, args, options),
    });
  }

  /**
   * Runs a script for a lock of which only the lockId is known. In the spec layout the script reads the index itself.
   * In the slotted layout the index is read first, since a Cluster needs the names of all keys before.
   */
  async #byId<Result>(
    lockId: string,
    signal: Signal,
    none: Result,
    run: {
      once(index: string, options: RunOptions<Result>): Promise<Result>;
      found(keys: { index: string; record: string }, options: RunOptions<Result>): Promise<Result>;
    },
  ): Promise<Result> {
    const index = this.layout.indexOf(lockId);
    if (!this.layout.recordFromIndex) return run.once(index, { signal });
    const endMs = performance.now() + this.runner.commandTimeoutMs;
    const name = await this.runner.run(readIndexScript, { index }, {}, { signal });
    if (name === null) return none;
    // Both round trips share one deadline.
    const timeoutMs = Math.max(1, endMs - performance.now());
    return run.found({ index, record: this.layout.recordFromIndex(name) }, { signal, timeoutMs });
  }

  #read(key: string, signal: Signal): Promise<ReadReply | null> {
    return this.runner
      .run(readScript, { record: this.layout.recordOf(key) }, {}, { signal })
      .catch((fault: unknown) => {
        throw LockError.from(fault, { keys: [key] });
      });
  }

  #cleanup(key: string, { lockId }: LockRecord): void {
    const { record, index } = this.layout.keysOf([key], lockId);
    // A failure does no harm: the next call tries again, and the TTL of the record ends it anyway.
    this.runner.run(cleanupScript, { record, index }, { lockId }).catch(() => {});
  }
}

const liveRecord = (read: ReadReply | null): LockRecord | null =>
  read && isLive(read.record.expiresAtMs, read.nowMs, TIME_TOLERANCE_MS) ? read.record : null;
