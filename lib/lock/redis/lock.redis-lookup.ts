import { isLive } from '../../core/clock.js';
import type { ScriptRunner } from '../../script/script-runner.js';
import { LockError } from '../lock.errors.js';
import { LockLookups, type LockRecord, type Wanted } from '../lock.record.js';
import type { IsLockedOptions } from '../lock.types.js';
import { validateIsLocked } from '../lock.validate.js';
import type { LockLayout } from './lock.layout.js';
import {
  CLEANUP_AFTER_MS,
  cleanupScript,
  liveRecordOf,
  readIndexScript,
  type ReadReply,
  readScript,
} from './lock.lookup.scripts.js';

/** Returns the options of the next round trip of a call. All of its round trips share one deadline. */
export type NextTrip = () => { readonly signal: AbortSignal | undefined; readonly timeoutMs: number };

/** The part of the backend on Redis that reads records: by a key, or by the lockId alone. */
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
    const read = await this.read({ key }, this.tripsOf(options.signal));
    if (liveRecordOf(read)) return true;
    if (this.cleanupInIsLocked && read && !isLive(read.record.expiresAtMs, read.nowMs, CLEANUP_AFTER_MS))
      this.#cleanup(key, read.record);
    return false;
  }

  protected override async find(wanted: Wanted, signal: AbortSignal | undefined): Promise<LockRecord | null> {
    return liveRecordOf(await this.read(wanted, this.tripsOf(signal)));
  }

  protected tripsOf(signal: AbortSignal | undefined): NextTrip {
    const endMs = performance.now() + this.runner.commandTimeoutMs;
    return () => ({ signal, timeoutMs: Math.max(1, endMs - performance.now()) });
  }

  /** Returns a record as it is stored, which may have expired. */
  protected async read(wanted: Wanted, next: NextTrip): Promise<ReadReply | null> {
    try {
      if ('lockId' in wanted) return await this.#readById(wanted.lockId, next);
      return await this.runner.run(
        readScript,
        { record: this.layout.recordOf(wanted.key) },
        { isIndex: '' },
        next(),
      );
    } catch (fault) {
      throw LockError.from(fault, 'key' in wanted ? { keys: [wanted.key] } : wanted);
    }
  }

  /**
   * In the spec layout the script reads the index itself. In the slotted layout the index is read first, since a Cluster needs
   * the names of all keys before.
   */
  async #readById(lockId: string, next: NextTrip): Promise<ReadReply | null> {
    const index = this.layout.indexOf(lockId);
    let record = index;
    if (this.layout.recordFromIndex) {
      const name = await this.runner.run(readIndexScript, { index }, {}, next());
      if (name === null) return null;
      record = this.layout.recordFromIndex(name);
    }
    const isIndex = record === index ? '1' : '';
    const read = await this.runner.run(readScript, { record }, { isIndex }, next());
    return read?.record.lockId === lockId ? read : null;
  }

  #cleanup(key: string, { lockId }: LockRecord): void {
    const { record, index } = this.layout.keysOf([key], lockId);
    // A failure does no harm: the next call tries again, and the TTL of the record ends it anyway.
    this.runner.run(cleanupScript, { record, index }, { lockId }).catch(() => {});
  }
}
