import { isLive, TIME_TOLERANCE_MS } from '../../core/clock.js';
import type { RunOptions, ScriptRunner } from '../../script/script-runner.js';
import { LockError } from '../lock.errors.js';
import { randomId } from '../../core/random-id.js';
import { LockLookups, type LockRecord, type KeyOrId } from '../lock.record.js';
import type { IsLockedOptions } from '../lock.types.js';
import { validateIsLocked } from '../lock.validate.js';
import {
  type ById,
  CLEANUP_AFTER_MS,
  cleanupScript,
  extendByIdScript,
  readIndexScript,
  type ReadReply,
  readScript,
  releaseByIdScript,
} from './lock.by-id.scripts.js';
import type { LockLayout } from './lock.layout.js';
import type { ExtendReply, ReleaseCode } from './lock.replies.js';

type Signal = AbortSignal | undefined;

/** The part of the backend on Redis for locks by a key, and for locks of which a caller knows nothing but the lockId. */
export abstract class RedisLockLookups extends LockLookups {
  constructor(
    protected readonly runner: ScriptRunner,
    protected readonly layout: LockLayout,
    private readonly cleanupInIsLocked: boolean,
  ) {
    super();
  }

  async isLocked(options: IsLockedOptions): Promise<boolean> {
    const key = validateIsLocked(options);
    const read = await this.#read(key, options.signal);
    if (!read) return false;
    const { record, nowMs } = read;
    if (isLive(record.expiresAtMs, nowMs, TIME_TOLERANCE_MS)) return true;
    if (this.cleanupInIsLocked && !isLive(record.expiresAtMs, nowMs, CLEANUP_AFTER_MS))
      this.#cleanup(key, record);
    return false;
  }

  protected override async find(wanted: KeyOrId, signal: Signal): Promise<LockRecord | null> {
    if ('key' in wanted) return liveRecord(await this.#read(wanted.key, signal));
    const { lockId } = wanted;
    const read = await this.#byId<ReadReply | null>(lockId, signal, null, ({ record, index }, options) =>
      this.runner.run(readScript, { record }, { isIndex: record === index ? '1' : '' }, options),
    ).catch((fault: unknown) => {
      throw LockError.from(fault, { lockId });
    });
    return read?.record.lockId === lockId ? liveRecord(read) : null;
  }

  /** Releases a lock, or returns the keys of one that has waiters or several keys: all of them must be declared. */
  protected releaseFound(lockId: string, signal: Signal): Promise<ById<ReleaseCode>> {
    const mark = this.layout.markOf(lockId);
    const args = { lockId, nonce: randomId() };
    return this.#byId<ById<ReleaseCode>>(lockId, signal, 'not_found', (keys, options) =>
      this.runner.run(releaseByIdScript, { ...keys, mark }, args, options),
    );
  }

  /** Extends a lock, or returns its keys as `releaseFound` does. */
  protected extendFound(lockId: string, ttlMs: number, signal: Signal): Promise<ById<ExtendReply>> {
    return this.#byId<ById<ExtendReply>>(lockId, signal, { code: 'not_found' }, (keys, options) =>
      this.runner.run(extendByIdScript, keys, { lockId, ttlMs }, options),
    );
  }

  /**
   * Runs a script for a lock of which only the lockId is known. In the spec layout the script reads the index itself.
   * In the slotted layout the index is read first, since a Cluster needs the names of all keys before.
   */
  async #byId<Result>(
    lockId: string,
    signal: Signal,
    none: Result,
    run: (keys: { index: string; record: string }, options: RunOptions<Result>) => Promise<Result>,
  ): Promise<Result> {
    const index = this.layout.indexOf(lockId);
    if (!this.layout.recordFromIndex) return run({ index, record: index }, { signal });
    const endMs = performance.now() + this.runner.commandTimeoutMs;
    const name = await this.runner.run(readIndexScript, { index }, {}, { signal });
    if (name === null) return none;
    // Both round trips share one deadline.
    const timeoutMs = Math.max(1, endMs - performance.now());
    return run({ index, record: this.layout.recordFromIndex(name) }, { signal, timeoutMs });
  }

  #read(key: string, signal: Signal): Promise<ReadReply | null> {
    return this.runner
      .run(readScript, { record: this.layout.recordOf(key) }, { isIndex: '' }, { signal })
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
